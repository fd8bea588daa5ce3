# Needs Python 3.11, Java 17 or newer, and make. Every target does the set-up that it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# So many processes run tests side by side: two for each of two cores, because a test waits most of its time.
WORKERS ?= 4
# Two recipes at a time, where neither needs the other: types are checked while jars are fetched.
MAKEFLAGS += --jobs=2
# Otherwise each process compiles all its modules again: half of the Python of a start.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := $(VENV)/.packages
STAMP := $(VENV)/.set-up
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS)
UV_BIN := build/lock/bin/uv
# uv takes a third of pip's processor time. It gets pip's index and certificates, which a user may have set.
UV := env UV_SYSTEM_CERTS=1 $$($(PYTHON) -m pip config list | sort -r | sed -n \
	"s/.*\.index-url='\(.*\)'/UV_DEFAULT_INDEX=\1/p; s/.*\.cert='\(.*\)'/SSL_CERT_FILE=\1/p") $(UV_BIN)
# With all hashes of a version the locks hold for each system it has wheels for.
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-package kafka-why --no-annotate --custom-compile-command 'make lock' $(UPGRADE)

.PHONY: help setup run demo test test-unit test-pure pure-e2e pure-conformance test-slow test-examples test-deploy test-faults faults-campaign transactions-campaign share-campaign streams-campaign rocketmq-campaign observed-campaign conformance conformance-check mutants bench pictures lint style types imports lock dist wheels test-pythons clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(STAMP) ## make .venv with the pinned packages and fetch the jars (once)

# pyspark alone has no wheel, and to compress its jars once more would take half of the time of making one.
$(PACKAGES): pyproject.toml kafka_why/pyproject.toml requirements-dev.lock | $(UV_BIN)
	test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --requirement requirements-dev.lock \
		--config-settings=--build-option=--compression=stored
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable kafka_why --editable .
	touch $@

$(STAMP): $(PACKAGES) embedded/jars.toml streaming/query/class_archive.py
	$(BIN)/python -m embedded.jars
	$(BIN)/python -m streaming.query.class_archive
	touch $@

run: $(STAMP) ## run the coordinator
	$(BIN)/group-coordinator run

demo: $(STAMP) ## show a group rebalance, from nothing to the end
	$(BIN)/group-coordinator demo

# Without TESTS, those that pyproject.toml names. Each session of pytest has one shared broker and coordinator.
test: lint $(STAMP) ## lint, then all tests but tests/slow, tests/faults and tests/deploy (TESTS: these instead)
	$(PYTEST) $(if $(TESTS),--timeout 1800 $(TESTS))

test-unit: $(STAMP) ## the tests without Spark and without a broker
	$(PYTEST) tests/unit tests/test_architecture.py

test-pure: pure-e2e pure-conformance ## what may differ of the end-to-end tests, and the comparison with Kafka, without a replica

pure-e2e: $(STAMP)
	$(PYTEST) --pure tests/e2e

pure-conformance: $(STAMP)
	$(BIN)/python -m tests.conformance.report --pure --random 0

test-slow: $(STAMP) ## what takes minutes: tests/slow
	$(PYTEST) --timeout 1800 tests/slow

# `make test` tries each random case with EXAMPLES=1.
EXAMPLES ?= 20
test-examples: $(STAMP) ## the unit layer's random cases, so many times more
	$(PYTEST) --timeout 1800 --examples $(EXAMPLES) -m examples tests/unit

test-deploy: $(STAMP) ## the image, the compose file and a Spark cluster of containers, where Podman is
	$(PYTEST) --numprocesses 0 --timeout 1200 tests/deploy

# Two at a time: more of them would starve the clients, whose sessions end meanwhile.
test-faults: $(STAMP) ## break brokers, disks, Spark's cluster and coordinators under real clients
	$(PYTEST) --numprocesses 2 --timeout 600 tests/faults

# FAULTS of each of the SEEDS, one after the other; writes docs/faults.md. 300 take about an hour.
SEEDS ?= 1
FAULTS ?= 300
FAULTS_RESULTS ?= build/faults.jsonl
faults-campaign: $(STAMP) ## break everything under load from SEEDS="7 8", FAULTS each, and write docs/faults.md
	mkdir -p $(dir $(FAULTS_RESULTS))
	$(BIN)/python -m tests.faults.campaign $(SEEDS:%=--seed %) --faults $(FAULTS) --results $(FAULTS_RESULTS) --write

# FAULTS of each of the SEEDS for each of the APPLICATIONS, one after the other. 200 take about an hour each.
APPLICATIONS ?= java-copier streams librdkafka kafka-python
TRANSACTIONS_RESULTS ?= build/transactions.jsonl
transactions-campaign: $(STAMP) ## kill exactly-once applications from SEEDS, FAULTS each, and write docs/transactions.md
	mkdir -p $(dir $(TRANSACTIONS_RESULTS))
	$(BIN)/python -m tests.transactions $(APPLICATIONS:%=--client %) $(SEEDS:%=--seed %) --faults $(FAULTS) \
		--results $(TRANSACTIONS_RESULTS) --write

# FAULTS of each of the SEEDS, with SHARE_GROUPS=coordinator or brokers. 100 take about 40 minutes.
SHARE_GROUPS ?= coordinator
SHARE_RESULTS ?= build/share.jsonl
share-campaign: $(STAMP) ## break what share groups need from SEEDS, FAULTS each, and write docs/share-faults.md
	mkdir -p $(dir $(SHARE_RESULTS))
	$(BIN)/python -m tests.shared $(SEEDS:%=--seed %) --faults $(FAULTS) --share-groups $(SHARE_GROUPS) \
		--results $(SHARE_RESULTS) --write

# FAULTS of each of the SEEDS. 100 take about 30 minutes.
STREAMS_RESULTS ?= build/streams.jsonl
streams-campaign: $(STAMP) ## break what streams applications need from SEEDS, FAULTS each, and write docs/streams-faults.md
	mkdir -p $(dir $(STREAMS_RESULTS))
	$(BIN)/python -m tests.streams $(SEEDS:%=--seed %) --faults $(FAULTS) --results $(STREAMS_RESULTS) --write

# FAULTS of each of the SEEDS, with SIDE=gateways or plain. 30 take about 20 minutes.
SIDE ?= gateways
ROCKETMQ_RESULTS ?= build/rocketmq.jsonl
rocketmq-campaign: $(STAMP) ## break what RocketMQ's clients need from SEEDS, FAULTS each, and write docs/rocketmq-faults.md
	mkdir -p $(dir $(ROCKETMQ_RESULTS))
	$(BIN)/python -m tests.rocketmq $(SEEDS:%=--seed %) --faults $(FAULTS) --side $(SIDE) \
		--results $(ROCKETMQ_RESULTS) --write

# Each of OBSERVED plays all stories in the order of its seed: a quarter of an hour in all.
OBSERVED ?= "Kafka 4.4" "Kafka 3.9" "Kafka 3.9, new coordinator" "our coordinator"
OBSERVED_RESULTS ?= build/observed.jsonl
observed-campaign: $(STAMP) ## play groups of every kind, judge what `why` says of them, and write docs/observed.md
	mkdir -p $(dir $(OBSERVED_RESULTS))
	for coordinator in $(OBSERVED); do \
		$(BIN)/python -m tests.observed --coordinator "$$coordinator" --results $(OBSERVED_RESULTS) --write || exit 1; \
	done

# Random scripts have the seeds from 0 to RANDOM - 1.
RANDOM ?= 60
conformance: $(STAMP) ## compare with Kafka's own coordinator, and write docs/conformance.md
	$(BIN)/python -m tests.conformance.report --random $(RANDOM) --write

conformance-check: $(STAMP) ## compare with Kafka's own coordinator; fails on what is not a kept difference
	$(BIN)/python -m tests.conformance.report --random $(RANDOM)

# `PACKAGE=gateway/wire FIRST=300`. Results stay in build/mutants, so that a second call goes on from the first.
PACKAGE ?= assignors
FIRST ?= 60
mutants: TESTS ?= tests/unit/$(firstword $(subst /, ,$(PACKAGE)))
mutants: $(STAMP) ## make FIRST mistakes in PACKAGE, one after the other, and say which layer of TESTS finds them
	CI=1 $(BIN)/python -m pytest -s -q --timeout 0 -p tests.mutation.plugin \
		--package $(PACKAGE) --first $(FIRST) $(TESTS)

bench: $(STAMP) ## measure beside Kafka's own coordinator, and write docs/benchmarks.md (85 minutes)
	$(BIN)/python -m bench --write

pictures: $(STAMP) ## photograph the page in a real run, for README and docs (6 minutes; needs Chromium)
	$(BIN)/python -m bench.pictures

lint: types style imports ## style, types and the direction of imports

types: $(PACKAGES)
	$(BIN)/mypy

style: $(PACKAGES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

imports: $(PACKAGES)
	$(BIN)/lint-imports

# The explainer, as a package index would get it. It needs the index, for what it requires and for the tools.
DIST := build/dist
CHECKED := build/dist-checked
dist: $(UV_BIN) ## build and check the wheel and the source archive of kafka-why, with their hashes
	rm -rf $(DIST)
	$(UV) build --quiet --out-dir $(DIST) kafka_why
	$(UV) tool run --quiet twine==7.0.0 check --strict $(DIST)/*.whl $(DIST)/*.tar.gz
	$(PYTHON) -m zipfile --list $(DIST)/*.whl | grep --quiet licenses/LICENSE
	tar --list --file $(DIST)/*.tar.gz | grep --quiet /LICENSE$$
	$(PYTHON) -m venv --clear $(CHECKED)
	$(CHECKED)/bin/python -m pip install --quiet --only-binary :all: $(DIST)/*.whl
	$(CHECKED)/bin/python -m pip check
	for command in "" why page groups notify; do $(CHECKED)/bin/kafka-why $$command --help >$(CHECKED)/help || exit 1; done
	cd $(DIST) && sha256sum *.whl *.tar.gz | tee SHA256SUMS

# That there are wheels is looked up; nothing of it is run.
PLATFORMS ?= aarch64-unknown-linux-gnu aarch64-apple-darwin x86_64-apple-darwin
wheels: $(UV_BIN) ## resolve wheels of all that kafka-why requires, for PLATFORMS
	for platform in $(PLATFORMS); do for version in 3.11 3.12 3.13; do \
		$(UV) pip compile --quiet --only-binary :all: --python-platform $$platform --python-version $$version \
			--constraint requirements-why.lock --output-file build/wheels kafka_why/pyproject.toml || exit 1; \
		echo "$$platform, Python $$version: $$(grep --count == build/wheels) wheels"; \
	done; done

# Those of the explainer's tests that need nothing which only the coordinator's distribution requires. No random
# cases: they try rules, which `make test` does, not a version of Python.
PYTHONS ?= 3.12 3.13
NOT_ALONE := metrics_epochs page_access page_analyses page_coordinator page_escapes page_overview why_share
test-pythons: $(UV_BIN) ## the explainer's pure tests with PYTHONS, each if it is here or can be had
	export PATH="$$(printf '%s:' $(HOME)/.pyenv/versions/*/bin)$$PATH"; for version in $(PYTHONS); do \
		$(UV) venv --quiet --clear --python $$version build/python-$$version || { echo "no Python $$version"; continue; }; \
		$(UV) pip install --quiet --python build/python-$$version --constraint requirements-dev.lock \
			--requirement requirements-why.lock google-re2 hypothesis psutil pyarrow pytest || exit 1; \
		CI=1 build/python-$$version/bin/python -m pytest --config-file /dev/null --rootdir . --override-ini pythonpath=. \
			--import-mode=importlib --noconftest -p no:cacheprovider --quiet -m 'not hypothesis' tests/unit/kafka_why \
			$(NOT_ALONE:%=--ignore tests/unit/kafka_why/test_%.py) || exit 1; \
	done

$(UV_BIN): requirements-uv.lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --no-compile --require-hashes --requirement requirements-uv.lock
	touch $@

lock: $(UV_BIN) ## pin what pyproject.toml asks for, with hashes (UPGRADE=--upgrade: newest versions)
	echo uv | $(COMPILE) --output-file requirements-uv.lock -
	$(COMPILE) --group build --output-file requirements.lock pyproject.toml
	$(COMPILE) --group build --constraint requirements.lock --extra dev --output-file requirements-dev.lock pyproject.toml
	$(COMPILE) --group build --constraint requirements.lock --extra pkcs12 --output-file requirements-why.lock \
		kafka_why/pyproject.toml

clean: ## remove .venv and the tools' caches; jars and .data stay
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info kafka_why/build kafka_why/*.egg-info
