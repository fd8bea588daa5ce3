"""How Kafka's JSON of a message (clients/src/main/resources/common/message) is written."""

import re
from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def in_versions(versions: str, version: int) -> bool:
    """Whether a version is in a range of Kafka's notation (`2+`, `0-3`, `1`, `none`)."""
    if versions == "none":
        return False
    first, _, last = versions.partition("-")
    if first.endswith("+"):
        return version >= int(first[:-1])
    return int(first) <= version <= int(last or first)


def attribute_of(field: Schema) -> str:
    """The name of a field in snake_case, as decoded messages have it."""
    return _WORD.sub("_", field["name"]).lower()


def is_tagged(field: Schema, version: int) -> bool:
    """Whether this version has the field in its tag section."""
    return in_versions(field.get("taggedVersions", "none"), version)


def is_nullable(field: Schema, version: int) -> bool:
    """Whether the field may be null in this version."""
    return in_versions(field.get("nullableVersions", "none"), version)
