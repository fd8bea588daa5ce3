"""The fixtures of the tests beside a real broker."""

from tests.e2e.conftest import coordinated, gateway, layout, options, topic

__all__ = ["coordinated", "gateway", "layout", "options", "topic"]
