"""Mutual TLS: the principal is the certificate's name, and files that change are read again."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any, TypeVar

import pytest
from structlog.testing import capture_logs

from gateway.security import authentication
from gateway.security.authentication import ClientAuth, ListenerSecurity, SecuritySettings
from gateway.security.certificate_names import PrincipalMapper
from gateway.watched_files import WatchedFiles
from gateway.wire import codec
from gateway.wire.framing import framed
from tests.harness.certificates import Authority, Issued
from tests.harness.gateway import GatewayFixture, played
from tests.harness.gateway_requests import BEAT, HEARTBEAT
from tests.harness.sasl import authenticate, by_password
from tests.harness.waiting import until

GONE = (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)
PATIENCE_S = 20.0
T = TypeVar("T")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def server(authority: Authority) -> Issued:
    return authority.issue("gateway")


def secured(authority: Authority, server: Issued, auth: ClientAuth, **given: Any) -> ListenerSecurity:
    trusted: dict[str, Any] = {"truststore": authority.certificate, "client_auth": auth}
    return ListenerSecurity(SecuritySettings(keystore=server.both, **trusted, **given))


def context_of(authority: Authority, client: Issued | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    if client is not None:
        context.load_cert_chain(client.chain, client.key)
    return context


async def principal_of(world: GatewayFixture, tls: ssl.SSLContext) -> str | None:
    """Return the principal of a request's client. None: the gateway does not serve the client."""
    try:
        client = await world.client(tls=tls)
        answer = await client.ask(HEARTBEAT, 4, **BEAT)
    except GONE:
        return None
    assert answer.error_code == 25
    return world.core.asked[-1].principal


@pytest.mark.parametrize(
    ("auth", "without"), [(ClientAuth.REQUIRED, None), (ClientAuth.REQUESTED, "User:ANONYMOUS")]
)
@played(security=lambda authority, server, auth: secured(authority, server, auth))
async def test_a_certificates_name_is_the_principal(
    world: GatewayFixture,
    authority: Authority,
    server: Issued,
    tmp_path: Path,
    auth: ClientAuth,
    without: str | None,
) -> None:
    ann = authority.issue("ann", organization="Example, Inc.")
    assert await principal_of(world, context_of(authority, ann)) == "User:CN=ann,O=Example\\, Inc."
    assert await principal_of(world, context_of(authority)) == without
    stranger = Authority(tmp_path / "other").issue("ann")
    assert await principal_of(world, context_of(authority, stranger)) is None


def test_mapping_rules_translate_or_refuse_certificate_names(authority: Authority, server: Issued) -> None:
    mapper = PrincipalMapper("RULE:^CN=([a-z]+),O=Example$/$1/U")

    @played(security=secured(authority, server, ClientAuth.REQUIRED, mapper=mapper))
    async def play(world: GatewayFixture) -> None:
        ann, bob = authority.issue("ann", organization="Example"), authority.issue("bob")
        assert await principal_of(world, context_of(authority, ann)) == "User:ANN"
        with capture_logs() as logs:
            assert await principal_of(world, context_of(authority, bob)) is None
        assert logs[0]["why"].startswith("no rule of ssl.principal.mapping.rules applies")

    play()


def test_with_sasl_the_user_is_the_principal(authority: Authority, server: Issued, tmp_path: Path) -> None:
    """As on a broker's SASL_SSL listener: the certificate lets the client in, SASL says who it is."""
    users = tmp_path / "users"
    users.write_text("bob:secret\n")

    @played(security=secured(authority, server, ClientAuth.REQUIRED, users=users))
    async def play(world: GatewayFixture) -> None:
        assert await principal_of(world, context_of(authority, authority.issue("ann"))) is None
        client = await world.client(tls=context_of(authority, authority.issue("ann")))
        assert (await authenticate(client, by_password("PLAIN", "bob", "secret"))).error_code == 0
        await client.ask(HEARTBEAT, 4, **BEAT)
        assert world.core.asked[-1].principal == "User:bob"

    play()


def replaced(path: Path, content: bytes) -> None:
    """Replace a file as a whole, as deployments do."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)


def value_of(files: WatchedFiles[T] | None) -> T:
    assert files is not None
    return files.value


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "CHECK_INTERVAL_S", 0.01)


@pytest.mark.usefixtures("often")
def test_changed_certificate_files_apply_to_new_connections(
    authority: Authority, server: Issued, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    security = secured(authority, server, ClientAuth.REQUIRED)

    @played(security=security)
    async def play(world: GatewayFixture) -> None:
        ann, bob = authority.issue("ann"), other.issue("bob")
        old = await world.client(tls=context_of(authority, ann))
        before = value_of(security.certificates)
        replaced(authority.certificate, other.certificate.read_bytes())
        await until(lambda: value_of(security.certificates) is not before)
        # The gateway's own certificate is still of the first authority.
        trusting = ssl.create_default_context(cafile=tmp_path / "first.pem")
        trusting.load_cert_chain(bob.chain, bob.key)
        assert await principal_of(world, trusting) == "User:CN=bob"
        trusting = ssl.create_default_context(cafile=tmp_path / "first.pem")
        trusting.load_cert_chain(ann.chain, ann.key)
        assert await principal_of(world, trusting) is None
        before = value_of(security.certificates)
        replaced(server.both, other.issue("gateway").both.read_bytes())
        await until(lambda: value_of(security.certificates) is not before)
        assert await principal_of(world, context_of(other, bob)) == "User:CN=bob"
        assert (await old.ask(HEARTBEAT, 4, **BEAT)).error_code == 25

    (tmp_path / "first.pem").write_bytes(authority.certificate.read_bytes())
    play()


class Resuming:
    """A client that resumes its last TLS session, if the server allows it."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._session: ssl.SSLSession | None = None

    def is_served(self, port: int) -> bool:
        """Return True if a request gets a response."""
        message = codec.encode_request(HEARTBEAT, 4, 1, "me", BEAT)
        try:
            with (
                socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain,
                self._tls.wrap_socket(plain, server_hostname="127.0.0.1", session=self._session) as client,
            ):
                client.sendall(framed(message))
                served = bool(client.recv(1))
                self._session = client.session
                return served
        except (ssl.SSLError, ConnectionError):
            return False


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("auth", [ClientAuth.REQUESTED, ClientAuth.REQUIRED])
def test_a_client_of_a_removed_ca_resumes_no_session(
    authority: Authority, server: Issued, tmp_path: Path, auth: ClientAuth, version: ssl.TLSVersion
) -> None:
    security = secured(authority, server, auth)

    @played(security=security)
    async def play(world: GatewayFixture) -> None:
        tls = context_of(authority, authority.issue("ann"))
        tls.maximum_version = version
        client = Resuming(tls)
        port = world.gateway.address.port
        is_new_enough = version is ssl.TLSVersion.TLSv1_3
        assert await asyncio.to_thread(client.is_served, port) == is_new_enough
        before = value_of(security.certificates)
        replaced(authority.certificate, Authority(tmp_path / "other").certificate.read_bytes())
        await until(lambda: value_of(security.certificates) is not before)
        assert not await asyncio.to_thread(client.is_served, port)

    play()


@pytest.mark.usefixtures("often")
def test_changed_users_file_applies_to_new_authentications(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ann:secret\n")
    security = ListenerSecurity(SecuritySettings(users=users))

    @played(security=security)
    async def play(world: GatewayFixture) -> None:
        async def error(name: str, password: str) -> int:
            settings = by_password("PLAIN", name, password)
            return int((await authenticate(await world.client(), settings)).error_code)

        assert (await error("ann", "secret"), await error("bob", "secret")) == (0, 58)
        before = value_of(security.users)
        replaced(users, b"bob:secret\n")
        await until(lambda: value_of(security.users) is not before)
        assert (await error("ann", "secret"), await error("bob", "secret")) == (58, 0)
        with capture_logs() as logs:
            replaced(users, b"bob:n3w\nann\n")
            await until(lambda: len(logs) == 1)
        assert logs[0]["error"].endswith("users cannot be used: line 2: it is not NAME:PASSWORD")
        assert "n3w" not in logs[0]["error"]
        assert await error("bob", "secret") == 0

    play()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END"])
def test_unusable_certificate_changes_nothing(authority: Authority, server: Issued, content: bytes) -> None:
    security = secured(authority, server, ClientAuth.NONE)

    @played(security=security)
    async def play(world: GatewayFixture) -> None:
        replaced(server.both, content)
        with capture_logs() as logs:
            security.refresh()
            security.refresh()
        assert [line["log_level"] for line in logs] == ["error"]
        assert await principal_of(world, context_of(authority)) == "User:ANONYMOUS"

    play()
