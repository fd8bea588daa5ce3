"""One ACL. The names and numbers are Kafka's (org.apache.kafka.common.acl and .resource)."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

WILDCARD = "*"
"""As a literal resource name: every resource of its type. As a host: every host."""

WILDCARD_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""


class ResourceType(IntEnum):
    """What an ACL is about."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Which resources the name of an ACL means: the one of this name, or all whose names begin with it."""

    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What an ACL allows or denies."""

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
    """Whether an ACL denies or allows."""

    DENY = 2
    ALLOW = 3


class Acl(NamedTuple):
    """One ACL. `principal` is TYPE:NAME, such as `User:ann`."""

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
"""The operations that responses name as authorized operations (AclEntry.supportedOperations)."""
