"""Access control lists: the names and numbers are Kafka's (org.apache.kafka.common.acl and .resource).

A file is TOML and has a list `acls`. Each entry has `principal`, `operations`, `resource_type` and `name`. It
may have `host` (default `*`), `pattern_type` (`LITERAL`) and `permission` (`ALLOW`).
"""

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import msgspec

from kafka_why.errors import UserFacingError

WILDCARD = "*"
"""As a literal resource name it means every resource of the type, as a host every host."""

WILDCARD_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""


class ResourceType(IntEnum):
    """The type of the resource of an ACL."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """The meaning of an ACL's name: the resource of this name, or all resources whose names begin with it."""

    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """The operation that an ACL allows or denies."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """The permission of an ACL."""

    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """An access control list entry. `principal` is TYPE:NAME, such as `User:ann`."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission


SUPPORTED: Mapping[ResourceType, frozenset[Operation]] = MappingProxyType(
    {
        ResourceType.TOPIC: frozenset(
            {
                Operation.READ,
                Operation.WRITE,
                Operation.CREATE,
                Operation.DESCRIBE,
                Operation.DELETE,
                Operation.ALTER,
                Operation.DESCRIBE_CONFIGS,
                Operation.ALTER_CONFIGS,
            }
        ),
        ResourceType.GROUP: frozenset(
            {
                Operation.READ,
                Operation.DESCRIBE,
                Operation.DELETE,
                Operation.DESCRIBE_CONFIGS,
                Operation.ALTER_CONFIGS,
            }
        ),
        ResourceType.CLUSTER: frozenset(
            {
                Operation.CREATE,
                Operation.CLUSTER_ACTION,
                Operation.DESCRIBE_CONFIGS,
                Operation.ALTER_CONFIGS,
                Operation.IDEMPOTENT_WRITE,
                Operation.ALTER,
                Operation.DESCRIBE,
            }
        ),
    }
)
"""The operations in responses' authorized operations (AclEntry.supportedOperations)."""


E = TypeVar("E", bound=IntEnum)


class AclsUnreadable(UserFacingError, ValueError):
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
    """Return the ACLs of the file. Raises AclsUnreadable, which names the file and its first error."""
    try:
        entries = msgspec.toml.decode(path.read_text(encoding="utf-8"), type=_File).acls
        return [_acl(entry, operation) for entry in entries for operation in entry.operations]
    except (OSError, UnicodeDecodeError, msgspec.DecodeError, ValueError) as error:
        raise AclsUnreadable(f"the ACLs in {path} cannot be read: {error}") from error


def _acl(entry: _Entry, operation: str) -> Acl:
    principal_type, colon, principal_name = entry.principal.partition(":")
    if not (principal_type and colon and principal_name):
        raise ValueError(f"the principal {entry.principal!r} is not TYPE:NAME, such as User:ann")
    if not entry.name:
        raise ValueError("the name of a resource is empty")
    return Acl(
        _member(ResourceType, entry.resource_type),
        entry.name,
        _member(PatternType, entry.pattern_type),
        entry.principal,
        entry.host,
        _member(Operation, operation),
        _member(Permission, entry.permission),
    )


def _member(enum: type[E], name: str) -> E:
    """Return the member of this name, in upper or lower case. Raises ValueError."""
    try:
        return enum[name.upper()]
    except KeyError:
        names = ", ".join(member.name for member in enum)
        raise ValueError(f"{name!r} is none of {names}") from None
