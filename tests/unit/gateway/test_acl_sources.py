"""Where ACLs come from: the cluster's DescribeAcls, and files; and what holds while they cannot be read."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from kafka.protocol.api_key import ApiKey
from structlog.testing import capture_logs

from gateway.authorization.acls import (
    Acl,
    AclsUnreadable,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    read_acl_file,
)
from gateway.authorization.authorizer import Authorizer
from gateway.authorization.sources import CurrentAcls, cluster_reader, file_reader
from tests.harness.gateway import HOST, GatewayFixture, played
from tests.harness.waiting import until

READ = Acl(ResourceType.GROUP, "pay", PatternType.PREFIXED, "User:ann", "*", Operation.READ, Permission.ALLOW)
DELETE = READ._replace(operation=Operation.DELETE)
TOML = """
[[acls]]
principal = "User:ann"
resource_type = "GROUP"
name = "pay"
pattern_type = "PREFIXED"
operations = ["READ", "DELETE"]

[[acls]]
principal = "User:CN=bob,O=acme"
host = "10.0.0.1"
permission = "DENY"
resource_type = "topic"
name = "orders"
operations = ["All"]
"""
BOBS = Acl(
    ResourceType.TOPIC,
    "orders",
    PatternType.LITERAL,
    "User:CN=bob,O=acme",
    "10.0.0.1",
    Operation.ALL,
    Permission.DENY,
)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_acl_file_is_read(tmp_path: Path) -> None:
    assert read_acl_file(written(tmp_path, "acls.toml", TOML)) == [READ, DELETE, BOBS]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("acls.toml", TOML.replace("READ", "REED"), "'REED' is none of ALL, READ"),
        ("acls.toml", TOML.replace("User:ann", "ann"), "'ann' is not TYPE:NAME"),
        ("acls.toml", TOML.replace('"pay"', '""'), "the name of a resource is empty"),
        ("acls.toml", TOML.replace("permission", "permision"), "permision"),
        ("acls.toml", "[[acls", "acls.toml cannot be read"),
        ("acls.toml", "", "missing required field `acls`"),
        ("acls.toml", None, "acls.toml cannot be read"),
    ],
)
def test_malformed_acl_file_is_explained(tmp_path: Path, name: str, text: str | None, reason: str) -> None:
    if text is not None:
        written(tmp_path, name, text)
    with pytest.raises(AclsUnreadable, match=reason.replace("(", r"\(")):
        asyncio.run(file_reader(tmp_path / name)())  # type: ignore[arg-type]


def may_read(acls: CurrentAcls, group: str) -> bool:
    return acls.authorizer.may("User:ann", HOST, Operation.READ, ResourceType.GROUP, group)


def test_acls_stay_in_force_while_the_source_is_unreadable_and_it_is_logged_once() -> None:
    outcomes: list[Sequence[Acl] | None] = [[READ], None, None, None, [READ]]

    async def read() -> Sequence[Acl]:
        if (outcome := outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]) is None:
            raise AclsUnreadable("gone")
        return outcome

    async def play() -> list[str]:
        acls = CurrentAcls(Authorizer(), read, 0.001)
        await acls.refresh()
        with capture_logs() as logs:
            async with acls.followed():
                await until(lambda: len(logs) == 2 or not may_read(acls, "pay-1"))
        assert may_read(acls, "pay-1")
        return [line["event"] for line in logs]

    assert asyncio.run(play()) == [
        "the ACLs cannot be read: the last ones stay in force",
        "the ACLs are read again",
    ]


DESCRIBED = [
    {
        "resource_type": 3,
        "resource_name": "pay",
        "pattern_type": 4,
        "acls": [
            {"principal": "User:ann", "host": "*", "operation": 3, "permission_type": 3},
            {"principal": "User:ann", "host": "*", "operation": 99, "permission_type": 3},
        ],
    },
    {"resource_type": 42, "resource_name": "x", "pattern_type": 3, "acls": []},
]


@played
async def test_cluster_acls_are_read_and_unknown_newer_ones_ignored(world: GatewayFixture) -> None:
    world.broker.answers[ApiKey.DescribeAcls] = {"error_code": 0, "resources": DESCRIBED}
    assert await cluster_reader(world.cluster)() == [READ]


@pytest.mark.parametrize(
    ("error", "reason"), [(54, "have no authorizer"), (31, "needs DESCRIBE on the cluster"), (41, "error 41")]
)
@played
async def test_error_explains_why_cluster_acls_cannot_be_read(
    world: GatewayFixture, error: int, reason: str
) -> None:
    world.broker.answers[ApiKey.DescribeAcls] = {"error_code": error, "resources": []}
    with pytest.raises(AclsUnreadable, match=reason):
        await cluster_reader(world.cluster)()
