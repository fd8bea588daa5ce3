"""ACLs of a file, in one of three forms.

- TOML (`.toml`) and JSON (`.json`): a list `acls`. Each entry has `principal`, `operations`, `resource_type`
  and `name`, and may have `host` (default `*`), `pattern_type` (`LITERAL`) and `permission` (`ALLOW`).
- Any other name: the output of `kafka-acls --list`.
"""

import re
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from gateway.authorization.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

E = TypeVar("E", bound=IntEnum)

_RESOURCE = re.compile(r"ResourcePattern\(resourceType=(\w+), name=(.*), patternType=(\w+)\)")
_ENTRY = re.compile(r"\(principal=(.*), host=(.*), operation=(\w+), permissionType=(\w+)\)")


class AclsUnreadable(ValueError):
    """ACLs cannot be read, or are malformed."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    principal: str
    operations: list[str]
    resource_type: str
    name: str = CLUSTER_NAME
    host: str = WILDCARD
    pattern_type: str = PatternType.LITERAL.name
    permission: str = Permission.ALLOW.name


class _File(msgspec.Struct, forbid_unknown_fields=True):
    acls: list[_Entry]


def read_acl_file(path: Path) -> list[Acl]:
    """The ACLs of the file. Raises AclsUnreadable, which names the file and the first thing wrong in it."""
    try:
        text = path.read_text(encoding="utf-8")
        return list(_parsed(path.suffix, text))
    except (OSError, UnicodeDecodeError, msgspec.DecodeError, ValueError) as error:
        raise AclsUnreadable(f"the ACLs in {path} cannot be read: {error}") from error


def _parsed(suffix: str, text: str) -> Iterator[Acl]:
    if suffix == ".toml":
        return _listed(msgspec.toml.decode(text, type=_File))
    if suffix == ".json":
        return _listed(msgspec.json.decode(text, type=_File))
    return _of_kafka_acls(text)


def _listed(file: _File) -> Iterator[Acl]:
    for entry in file.acls:
        for operation in entry.operations:
            yield _acl(
                (entry.resource_type, entry.name, entry.pattern_type),
                (entry.principal, entry.host, operation, entry.permission),
            )


def _of_kafka_acls(text: str) -> Iterator[Acl]:
    """Lines about a resource, each followed by lines about who may do what to it."""
    resource: tuple[str, str, str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if found := _RESOURCE.search(line):
            resource = found[1], found[2], found[3]
        elif found := _ENTRY.search(line):
            if resource is None:
                raise ValueError(f"line {number} has no resource before it")
            yield _acl(resource, (found[1], found[2], found[3], found[4]))
        elif line.strip():
            raise ValueError(f"line {number} is not of the output of kafka-acls --list")


def _acl(resource: tuple[str, str, str], entry: tuple[str, str, str, str]) -> Acl:
    kind, name, pattern = resource
    principal, host, operation, permission = entry
    principal_type, colon, principal_name = principal.partition(":")
    if not (principal_type and colon and principal_name):
        raise ValueError(f"the principal {principal!r} is not TYPE:NAME, such as User:ann")
    if not name:
        raise ValueError("the name of a resource is empty")
    return Acl(
        _named(ResourceType, kind),
        name,
        _named(PatternType, pattern),
        principal,
        host,
        _named(Operation, operation),
        _named(Permission, permission),
    )


def _named(kind: type[E], name: str) -> E:
    try:
        return kind[name.upper()]
    except KeyError:
        known = ", ".join(member.name for member in kind)
        raise ValueError(f"{name!r} is none of {known}") from None
