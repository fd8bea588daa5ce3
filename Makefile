# Needs Python 3.11, Java 17 or newer, and make. Every target does the set-up that it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up

.PHONY: help setup run demo test test-long conformance bench lint clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(STAMP) ## make .venv with the pinned packages and fetch the jars (once)

$(STAMP): pyproject.toml constraints.txt embedded/jars.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt setuptools
	$(BIN)/python -m pip install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	$(BIN)/python -m embedded.jars
	touch $@

run: $(STAMP) ## run the coordinator
	$(BIN)/group-coordinator run

demo: $(STAMP) ## show a group rebalance, from nothing to the end
	$(BIN)/group-coordinator demo

test: lint ## lint, then all tests but the long ones
	$(BIN)/python -m pytest -m "not long"

test-long: $(STAMP) ## the tests that take minutes
	$(BIN)/python -m pytest -m long

conformance: $(STAMP) ## compare with Kafka's own coordinator, and write docs/conformance.md
	$(BIN)/python -m tests.conformance.report

bench: $(STAMP) ## measure latency and throughput, beside Kafka's own coordinator
	$(BIN)/python -m bench

lint: $(STAMP) ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean: ## remove .venv and the tools' caches; jars and .data stay
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
