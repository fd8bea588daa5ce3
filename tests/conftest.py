"""What all tests share: Hypothesis profiles, the option --rewrite, one broker for the session."""

import os
from collections.abc import Iterator

import hypothesis
import pytest

from embedded.broker import EmbeddedBroker

# No deadlines: they measure how busy the machine is. In CI each run tries the same examples.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--rewrite``; tests read it as ``request.config.getoption("rewrite")``."""
    parser.addoption("--rewrite", action="store_true", help="write the golden files anew")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One real Kafka broker for all tests: give topics and groups names of their own."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running
