"""The ACLs that docs/security.md recommends."""

import re
from pathlib import Path

from kafka_why.contract.layout import DEFAULT_PREFIX
from tests.harness.secured_broker import Allowed

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
_ROW = re.compile(
    r"^\| (\w+)(?: with [^|]+)? \| (\w+) \| `([^`]+)` \| (\w+) \| ([A-Z_, ]+) \|$", re.MULTILINE
)


def recommended(prefix: str) -> list[Allowed]:
    """Return the ACLs of the page's table, with this prefix, also for optional features."""
    acls = []
    for user, resource, name, pattern, operations in _ROW.findall(PAGE.read_text()):
        if resource in ("TOPIC", "GROUP"):
            name = name.replace(f"{DEFAULT_PREFIX}-", f"{prefix}-")
        acls.append(Allowed(user, resource, name, pattern, tuple(operations.split(", "))))
    return acls
