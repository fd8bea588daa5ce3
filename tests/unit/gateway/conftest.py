"""Fixtures for the tests of the gateway's security and memory."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.certificates import TokenIssuer


@pytest.fixture(scope="session")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> TokenIssuer:
    return TokenIssuer(tmp_path_factory.mktemp("tokens"))


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text("ann:secret\n")
    return path


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Python's collector walks the objects of all tests, and a few large ones live for long."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
