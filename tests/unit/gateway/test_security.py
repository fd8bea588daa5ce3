"""TLS and SASL/PLAIN at the listeners, and the ACLs of a file or of the cluster."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

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
from gateway.authorization.sources import CurrentAcls, file_reader, read_cluster
from gateway.security.authentication import ListenerSecurity, SecurityError, SecuritySettings
from gateway.upstream import api_versions
from gateway.wire.framing import framed
from tests.harness.gateway import BEAT, HEARTBEAT, HOST, GatewayFixture, RawClient, played
from tests.harness.waiting import asynchronous, until

DATA = Path(__file__).parents[2] / "data"
PEM = DATA / "gateway.pem"
USERS = ListenerSecurity(SecuritySettings(users=DATA / "gateway_users"))


async def log_in(client: RawClient, message: bytes) -> int:
    """Return the error code of the response to a handshake and this PLAIN message."""
    agreed = await client.ask(ApiKey.SaslHandshake, 1, mechanism="PLAIN")
    assert (agreed.error_code, agreed.mechanisms) == (0, ["PLAIN"])
    return int((await client.ask(ApiKey.SaslAuthenticate, 2, auth_bytes=message)).error_code)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"x" * 400_000, f"user b'{'x' * 64}'... (400000 bytes)"),
        (b"\xff\n\x1b[2J", r"user b'\xff\n\x1b[2J' failed"),
    ],
)
@played(security=USERS)
async def test_refused_name_is_shortened_and_escaped(world: GatewayFixture, name: bytes, shown: str) -> None:
    client = await world.client()
    with capture_logs() as logs:
        assert await log_in(client, b"\0" + name + b"\0secret") == 58
        assert await client.is_closed()
    assert shown in logs[0]["why"]
    assert len(str(logs)) < 500


@played(security=USERS)
async def test_frame_before_authentication_is_limited_to_512_kib(world: GatewayFixture) -> None:
    client = await world.client()
    await client.ask(ApiKey.SaslHandshake, 1, mechanism="PLAIN")
    with capture_logs() as logs:
        await client.send_bytes((512 * 1024 + 1).to_bytes(4, "big"))  # only the size of the frame
        assert await client.is_closed()
    assert logs[0]["why"] == "a frame of 524289 bytes, where 0 to 524288 are allowed"
    client = await world.client()
    header = bytes.fromhex("0024 0000 00000001 ffff")  # SaslAuthenticate
    message = bytes(512 * 1024 - len(header) - 4)
    await client.ask(ApiKey.SaslHandshake, 1, mechanism="PLAIN")
    await client.send_bytes(framed(header + len(message).to_bytes(4, "big") + message))
    assert (await client.receive_bytes())[4:6] == (58).to_bytes(2, "big")
    client = await world.client()
    assert await log_in(client, b"\0ann\0secret") == 0
    await client.send_bytes(framed(bytes.fromhex("0002 0001 00000007 ffff") + bytes(1_000_000)))
    assert await client.receive_bytes() == (7).to_bytes(4, "big") + bytes(1_000_000)


@played(security=ListenerSecurity.read(PEM, None, None), authentication_timeout_s=0.3)
async def test_tls_handshake_timeout_disconnects_the_client(world: GatewayFixture) -> None:
    assert await (await world.client()).is_closed()


@played(security=USERS)
async def test_requests_before_authentication_are_handled_one_by_one(world: GatewayFixture) -> None:
    client = await world.client()
    world.broker.silent = True
    connected = len(world.broker.writers)
    for _ in range(3):
        await client.send(ApiKey.ApiVersions, 0)
    await until(lambda: len(world.broker.writers) != connected)
    (connection,) = world.gateway.connections()
    assert connection.unanswered == 1


@played(security=USERS)
async def test_api_versions_before_authentication_opens_no_broker_connection(world: GatewayFixture) -> None:
    world.broker.answers[ApiKey.ApiVersions] = {
        "api_keys": [{"api_key": 0, "min_version": 0, "max_version": 9}],
        "supported_features": [{"name": "metadata.version", "min_version": 1, "max_version": 25}],
    }
    connected = len(world.broker.writers)
    software = {"client_software_name": "any", "client_software_version": "1"}
    for version, fields in ((0, {}), (4, software)):
        strangers = [await world.client() for _ in range(10)]
        answers = [await client.ask(ApiKey.ApiVersions, version, **fields) for client in strangers]
        assert world.gateway.numbers()["upstream_connections"] == {(): [0]}
        assert await log_in(strangers[0], b"\0ann\0secret") == 0
        theirs = await strangers[0].ask(ApiKey.ApiVersions, version, **fields)
        assert [answer.to_dict() for answer in answers] == [theirs.to_dict()] * 10
        assert len(theirs.api_keys) > 10
        strangers[0].writer.close()
    assert len(world.broker.writers) == connected + 4  # for two versions, and for two that have logged in


@played(security=USERS)
async def test_api_versions_is_answered_without_a_broker(world: GatewayFixture) -> None:
    before = (await world.ask(ApiKey.ApiVersions, 0)).to_dict()
    with patch.object(api_versions, "AGE_MAX_S", 0.0):
        await world.stop_broker()
        assert (await world.ask(ApiKey.ApiVersions, 0)).to_dict() == before


@played(security=USERS)
async def test_other_requests_before_authentication_close_the_connection(world: GatewayFixture) -> None:
    for request in (
        framed(bytes.fromhex("000c 0004 00000001 ffff 00")),
        framed(bytes.fromhex("0002 0001 00000001 ffff")),
    ):
        client = await world.client()
        await client.send_bytes(request)
        assert await client.is_closed()
    assert (world.core.asked, world.broker.passed) == ([], [])


@played(security=USERS)
async def test_unsupported_sasl_mechanism_or_order_is_refused(world: GatewayFixture) -> None:
    client = await world.client()
    refused = await client.ask(ApiKey.SaslHandshake, 1, mechanism="SCRAM-SHA-256")
    assert (refused.error_code, refused.mechanisms) == (33, ["PLAIN"])
    assert await client.is_closed()
    client = await world.client()
    assert (await client.ask(ApiKey.SaslAuthenticate, 0, auth_bytes=b"\0ann\0secret")).error_code == 34
    assert await client.is_closed()
    client = await world.client()
    assert await log_in(client, b"\0ann\0secret") == 0
    assert (await client.ask(ApiKey.SaslHandshake, 1, mechanism="PLAIN")).error_code == 34
    assert (await client.ask(HEARTBEAT, 4, **BEAT)).error_code == 25  # its session has no end to renew
    client = await world.client()
    await client.send(ApiKey.SaslHandshake, 0, mechanism="PLAIN")
    assert await client.is_closed()


@played
async def test_sasl_on_a_listener_without_sasl_is_refused_and_not_forwarded(world: GatewayFixture) -> None:
    """A broker would take it for the gateway's own. It says the same at a listener without SASL."""
    assert (await world.ask(ApiKey.SaslHandshake, 1, mechanism="PLAIN")).error_code == 34
    assert (await world.ask(ApiKey.SaslAuthenticate, 2, auth_bytes=b"\0ann\0secret")).error_code == 34
    assert world.broker.passed == []
    assert (await world.ask(HEARTBEAT, 4, **BEAT)).error_code == 25


def test_unusable_security_file_is_named_in_the_error() -> None:
    with pytest.raises(SecurityError, match="cannot be used"):
        ListenerSecurity.read(DATA / "gateway_users", None, None)
    with pytest.raises(SecurityError, match="none cannot be read: No such file"):
        ListenerSecurity.read(None, None, DATA / "none")
    with pytest.raises(SecurityError, match="needs its certificate"):
        ListenerSecurity.read(None, PEM, None)


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


def may_read(acls: CurrentAcls) -> bool:
    return acls.authorizer.may("User:ann", HOST, Operation.READ, ResourceType.GROUP, "pay-1")


@asynchronous
async def test_acls_stay_in_force_and_one_error_is_logged_while_unreadable() -> None:
    outcomes: list[Sequence[Acl] | None] = [[READ], None, None, None, [READ]]

    async def read() -> Sequence[Acl]:
        if (outcome := outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]) is None:
            raise AclsUnreadable("gone")
        return outcome

    acls = CurrentAcls(Authorizer(), read, 0.001)
    await acls.refresh()
    with capture_logs() as logs:
        following = asyncio.create_task(acls.follow())
        await until(lambda: len(logs) == 2 or not may_read(acls))
        following.cancel()
    assert may_read(acls)
    assert [line["event"] for line in logs] == [
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
    assert await read_cluster(world.cluster) == [READ]


@pytest.mark.parametrize(
    ("error", "reason"), [(54, "have no authorizer"), (31, "needs DESCRIBE on the cluster"), (41, "error 41")]
)
@played
async def test_error_explains_why_cluster_acls_cannot_be_read(
    world: GatewayFixture, error: int, reason: str
) -> None:
    world.broker.answers[ApiKey.DescribeAcls] = {"error_code": error, "resources": []}
    with pytest.raises(AclsUnreadable, match=reason):
        await read_cluster(world.cluster)
