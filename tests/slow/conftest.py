"""The fixtures of the tests beside a real broker."""

from tests.e2e.conftest import admin, coordinated, gateway, group, layout, options, topic, wire

__all__ = ["admin", "coordinated", "gateway", "group", "layout", "options", "topic", "wire"]
