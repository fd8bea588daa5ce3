"""The ACLs of cases with principals, and the broker that checks them.

Each client of such a case is a user of its own, and `S` is a super user. A case has lines

    acl: A allow READ,DESCRIBE group g
    acl: anyone deny READ group* g from 10.0.0.1

with a client (or `anyone`), the operations, the type of the resource (`*` behind it: a prefix) and its name.
Groups are those of the case, and so are topics such as `~x`. The ACLs are the cluster's own: Kafka's
StandardAuthorizer and the gateway read the same.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.authorization.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from gateway.upstream.connections import Address
from gateway.wire import codec
from tests.conformance.connection import Connection
from tests.conformance.told import Told

FIND_COORDINATOR, GROUP_AUTHORIZATION_FAILED = 10, 30
_CLIENTS = "ABC"
# The users of all cases are known to the broker from its start.
CASES_MAX = 250
_SUPER, _CANARY = "super", "canary"
PASSWORD = "not-secret"
_VERSION, _ANY = 3, 1
_PATIENCE_S = 60.0
_INTERVAL_S = 0.1
REFRESH_S = 0.2
"""The interval in which the gateway reads the ACLs."""

_NAMES = [f"{case}-{client}" for case in range(CASES_MAX) for client in _CLIENTS]
USERS: Mapping[str, str] = dict.fromkeys([_SUPER, _CANARY, *_NAMES], PASSWORD)


@dataclass(frozen=True)
class Rule:
    """A line of a script about ACLs. `client` is None for every principal."""

    client: str | None
    permission: Permission
    operations: tuple[Operation, ...]
    kind: ResourceType
    pattern: PatternType
    name: str
    host: str

    @classmethod
    def parse(cls, line: str) -> "Rule":
        """Read a line. Raises ValueError, KeyError."""
        client, permission, operations, kind, *rest = line.split()
        name = CLUSTER_NAME if kind == "cluster" else rest.pop(0)
        host = "*"
        if rest:
            _, host = rest
        return cls(
            None if client == "anyone" else client,
            Permission[permission.upper()],
            tuple(Operation[operation] for operation in operations.split(",")),
            ResourceType[kind.removesuffix("*").upper()],
            PatternType.PREFIXED if kind.endswith("*") else PatternType.LITERAL,
            name,
            host,
        )

    def creations(self, case: int, told: Told) -> Iterator[codec.Fields]:
        """Yield the entries of a CreateAcls request."""
        is_of_case = self.kind is ResourceType.GROUP and self.name != "*"
        for operation in self.operations:
            yield {
                "resource_type": self.kind,
                "resource_name": told.group(self.name) if is_of_case else told.topic(self.name),
                "resource_pattern_type": self.pattern,
                "principal": "User:*" if self.client is None else f"User:{user(case, self.client)}",
                "host": self.host,
                "operation": operation,
                "permission_type": self.permission,
            }


def user(case: int, client: str) -> str:
    """Return the user that this client of the case with this number is."""
    return f"{case}-{client}" if client in _CLIENTS else _SUPER


SUPER_USERS = frozenset({f"User:{_SUPER}"})


async def set_acls(
    broker: Address, gateway: Address, rules: Sequence[tuple[int, Told, Rule]], run: str
) -> None:
    """Replace the cluster's ACLs by these, and wait until the broker and the gateway decide by them."""
    to_all = {
        "resource_type_filter": _ANY,
        "resource_name_filter": None,
        "pattern_type_filter": _ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": _ANY,
        "permission_type": _ANY,
    }
    canary = f"{run}-canary"
    seen = Rule.parse(f"{_CANARY} allow DESCRIBE group *")
    creations = [one for case, told, rule in rules for one in rule.creations(case, told)]
    (allowed,) = seen.creations(0, Told("", {}))
    creations.append({**allowed, "resource_name": canary, "principal": f"User:{_CANARY}"})
    admin = Connection(*await asyncio.open_connection(broker.host, broker.port))
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await _ask(admin, ApiKey.DeleteAcls, {"filters": [to_all]})
            created = await _ask(admin, ApiKey.CreateAcls, {"creations": creations})
            assert not any(result.error_code for result in created.results), created
            wanted = len({tuple(sorted(one.items())) for one in creations})
            while await _count(admin, to_all) != wanted:
                await asyncio.sleep(_INTERVAL_S)
            while not await _is_found(gateway, canary):
                await asyncio.sleep(_INTERVAL_S)
    finally:
        await admin.close()


async def _ask(connection: Connection, api_key: int, fields: codec.Fields) -> Any:
    answer = await connection.ask(api_key, _VERSION, "acls", fields)
    assert answer is not None
    return codec.decode_response(api_key, _VERSION, answer)


async def _count(admin: Connection, to_all: codec.Fields) -> int:
    described = await _ask(admin, ApiKey.DescribeAcls, to_all)
    return sum(len(resource.acls) for resource in described.resources)


async def _is_found(gateway: Address, group_id: str) -> bool:
    """Return True if the user of the canary may describe its group. Only the newest ACLs allow that."""
    connection = Connection(*await asyncio.open_connection(gateway.host, gateway.port))
    try:
        await connection.authenticate(_CANARY, PASSWORD)
        answer = await connection.ask(FIND_COORDINATOR, 0, "acls", {"key": group_id})
    finally:
        await connection.close()
    assert answer is not None
    found = codec.decode_response(FIND_COORDINATOR, 0, answer)
    return bool(found.error_code != GROUP_AUTHORIZATION_FAILED)
