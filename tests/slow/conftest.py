"""The fixtures of the tests beside a real broker."""

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import admin, coordinated, gateway, group, layout, options, topic, wire
from tests.harness.shared import QUICK_JAVA

__all__ = ["admin", "coordinated", "gateway", "group", "layout", "options", "quick_java", "topic", "wire"]


@pytest.fixture(scope="module")
def quick_java() -> Iterator[None]:
    """Start the JVMs of a file's commands without the optimizing compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
        yield
