"""Mutual TLS: the principal is the certificate's name, and files that change are read again."""

import asyncio
import os
import re
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gateway.security import authentication
from gateway.security.authentication import ClientAuth, ListenerSecurity, SecuritySettings
from gateway.security.certificate_names import NoMatchingRule, PrincipalMapper, name_text
from gateway.watched_files import WatchedFiles
from gateway.wire import codec
from gateway.wire.framing import framed
from tests.harness.certificates import Authority, Issued
from tests.harness.gateway import BEAT, HEARTBEAT, GatewayFixture, played
from tests.harness.principals import CASES, NAMES, Attributes, request_of
from tests.harness.sasl import authenticate, by_password
from tests.harness.waiting import asynchronous, until

GONE = (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)
PATIENCE_S = 60.0
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


@pytest.fixture
def auth() -> ClientAuth:
    return ClientAuth.REQUIRED


@pytest.fixture
def security(authority: Authority, server: Issued, auth: ClientAuth) -> ListenerSecurity:
    return secured(authority, server, auth)


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
@played(security=lambda security: security)
async def test_a_certificates_name_is_the_principal(
    world: GatewayFixture,
    authority: Authority,
    security: ListenerSecurity,
    tmp_path: Path,
    without: str | None,
) -> None:
    ann = authority.issue("ann", organization="Example, Inc.")
    assert await principal_of(world, context_of(authority, ann)) == "User:CN=ann,O=Example\\, Inc."
    assert await principal_of(world, context_of(authority)) == without
    stranger = Authority(tmp_path / "other").issue("ann")
    assert await principal_of(world, context_of(authority, stranger)) is None


@played(
    security=lambda authority, server: secured(
        authority, server, ClientAuth.REQUIRED, mapper=PrincipalMapper("RULE:^CN=([a-z]+),O=Example$/$1/U")
    )
)
async def test_mapping_rules_translate_or_refuse_certificate_names(
    world: GatewayFixture, authority: Authority, server: Issued
) -> None:
    ann, bob = authority.issue("ann", organization="Example"), authority.issue("bob")
    assert await principal_of(world, context_of(authority, ann)) == "User:ANN"
    with capture_logs() as logs:
        assert await principal_of(world, context_of(authority, bob)) is None
    assert logs[0]["why"].startswith("no rule of ssl.principal.mapping.rules applies")


@played(
    security=lambda authority, server, users: secured(authority, server, ClientAuth.REQUIRED, users=users)
)
async def test_with_sasl_the_user_is_the_principal(
    world: GatewayFixture, authority: Authority, server: Issued, users: Path
) -> None:
    """As on a broker's SASL_SSL listener: the certificate lets the client in, SASL says who it is."""
    assert await principal_of(world, context_of(authority, authority.issue("ann"))) is None
    client = await world.client(tls=context_of(authority, authority.issue("ann")))
    assert (await authenticate(client, by_password("PLAIN", "ann", "secret"))).error_code == 0
    await client.ask(HEARTBEAT, 4, **BEAT)
    assert world.core.asked[-1].principal == "User:ann"


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
@played(security=lambda security: security)
async def test_changed_certificate_files_apply_to_new_connections(
    world: GatewayFixture, authority: Authority, server: Issued, security: ListenerSecurity, tmp_path: Path
) -> None:
    other, first = Authority(tmp_path / "other"), tmp_path / "first.pem"
    first.write_bytes(authority.certificate.read_bytes())
    ann, bob = authority.issue("ann"), other.issue("bob")
    old = await world.client(tls=context_of(authority, ann))
    before = value_of(security.certificates)
    replaced(authority.certificate, other.certificate.read_bytes())
    await until(lambda: value_of(security.certificates) is not before)
    # The gateway's own certificate is still of the first authority.
    for client, principal in ((bob, "User:CN=bob"), (ann, None)):
        trusting = ssl.create_default_context(cafile=first)
        trusting.load_cert_chain(client.chain, client.key)
        assert await principal_of(world, trusting) == principal
    before = value_of(security.certificates)
    replaced(server.both, other.issue("gateway").both.read_bytes())
    await until(lambda: value_of(security.certificates) is not before)
    assert await principal_of(world, context_of(other, bob)) == "User:CN=bob"
    assert (await old.ask(HEARTBEAT, 4, **BEAT)).error_code == 25


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
@played(security=lambda security: security)
async def test_client_of_a_removed_ca_cannot_resume_a_tls_session(
    world: GatewayFixture,
    authority: Authority,
    security: ListenerSecurity,
    tmp_path: Path,
    version: ssl.TLSVersion,
) -> None:
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


@pytest.fixture
def by_users(users: Path) -> ListenerSecurity:
    return ListenerSecurity(SecuritySettings(users=users))


@pytest.mark.usefixtures("often")
@played(security=lambda by_users: by_users)
async def test_changed_users_file_applies_to_new_authentications(
    world: GatewayFixture, users: Path, by_users: ListenerSecurity
) -> None:
    async def error(name: str, password: str) -> int:
        settings = by_password("PLAIN", name, password)
        return int((await authenticate(await world.client(), settings)).error_code)

    assert (await error("ann", "secret"), await error("bob", "secret")) == (0, 58)
    before = value_of(by_users.users)
    replaced(users, b"bob:secret\n")
    await until(lambda: value_of(by_users.users) is not before)
    assert (await error("ann", "secret"), await error("bob", "secret")) == (58, 0)
    with capture_logs() as logs:
        replaced(users, b"bob:n3w\nann\n")
        await until(lambda: len(logs) == 1)
    assert logs[0]["error"].endswith("users cannot be used: line 2: it is not NAME:PASSWORD")
    assert "n3w" not in logs[0]["error"]
    assert await error("bob", "secret") == 0


@pytest.mark.parametrize("content", [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END"])
@pytest.mark.parametrize("auth", [ClientAuth.NONE])
@played(security=lambda security: security)
async def test_unusable_new_certificate_leaves_the_old_one_in_use(
    world: GatewayFixture, authority: Authority, server: Issued, security: ListenerSecurity, content: bytes
) -> None:
    replaced(server.both, content)
    with capture_logs() as logs:
        security.refresh()
        security.refresh()
    assert [line["log_level"] for line in logs] == ["error"]
    assert await principal_of(world, context_of(authority)) == "User:ANONYMOUS"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


def watched(path: Path) -> WatchedFiles[int]:
    """Return a file with a number. Anything else raises ValueError."""
    return WatchedFiles([path], lambda: int(path.read_text()))


def test_changed_file_is_reloaded_and_a_broken_one_keeps_the_old_value(path: Path, tmp_path: Path) -> None:
    files = watched(path)
    assert (files.refresh(), files.value) == (False, 1)
    path.write_text("22")
    assert (files.refresh(), files.value) == (True, 22)
    times = path.stat()
    path.write_text("23")  # in its place, with the same size and times
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (files.refresh(), files.value) == (True, 23)
    with capture_logs() as logs:
        path.write_text("none")
        assert not files.refresh()
        assert not files.refresh()
        path.unlink()
        assert not files.refresh()
    assert files.value == 23
    assert [entry["log_level"] for entry in logs] == ["error", "error"], "each file is logged once"
    assert [entry["error"] for entry in logs][1] == "FileNotFoundError"
    other = tmp_path / "other"
    other.write_text("3")
    other.replace(path)  # as Kubernetes replaces a mounted file
    assert (files.refresh(), files.value) == (True, 3)


def test_unreadable_file_is_retried_although_it_has_not_changed(path: Path) -> None:
    """As on a file system that is away for a while."""
    is_away = False

    def read() -> str:
        if is_away:
            raise OSError
        return path.read_text()

    files = WatchedFiles([path], read)
    is_away = True
    path.write_text("22")
    assert (files.refresh(), files.value) == (False, "1")
    with pytest.raises(OSError, match=r"^$"):
        files.reload_if_changed()
    is_away = False
    assert (files.refresh(), files.value) == (True, "22")


@asynchronous
async def test_file_reloader_runs_until_cancelled(path: Path) -> None:
    used = list[int]()
    following = asyncio.create_task(watched(path).follow(used.append, interval_s=0.001))
    for text in ("22", "none", "3"):
        path.write_text(text)
        if text != "none":
            await until(partial(used.__contains__, int(text)))
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert used == [22, 3]


@pytest.mark.parametrize(("rules", "name", "principal"), CASES)
def test_mapping_rule_translates_a_certificate_name(rules: str, name: str, principal: str | None) -> None:
    if principal is not None:
        assert PrincipalMapper(rules).name_of(name) == principal
        return
    with pytest.raises(NoMatchingRule):
        PrincipalMapper(rules).name_of(name)


REFUSAL = (
    r".* is neither DEFAULT nor RULE:pattern/replacement/\[L\|U\]"
    r"|the pattern .* cannot be used: |the replacement .* has a \$ without a group"
)

RULES = st.builds("RULE:({})/${}/".format, st.text(max_size=20), st.text(max_size=20))


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAULT/L",
        "RULE:^CN=(.*?),.*$/$1",
        "rule:^CN=(.*?),.*$/$1/",
        "RULE:^CN=(.*?),.*$/$1/L/U",
        "RULE:^CN=(.*?),.*$/L",
        "RULE:^CN=(.*?),.*$/$1/X",
        "RULE:(/x/",
        "RULE:x/$1/",
        "RULE:(x)/$/",
        "DEFAULT,nonsense",
    ],
)
def test_unusable_mapping_rule_is_named_in_the_error(rules: str) -> None:
    with pytest.raises(ValueError, match=REFUSAL):
        PrincipalMapper(rules)


@given(st.text(max_size=40) | RULES, st.text(max_size=40))
def test_mapping_rule_of_any_text_parses_or_is_refused(rules: str, name: str) -> None:
    try:
        PrincipalMapper(rules).name_of(name)
    except NoMatchingRule:
        pass
    except ValueError as error:
        assert re.match(REFUSAL, str(error))


@pytest.mark.parametrize(("attributes", "text"), NAMES)
def test_certificate_name_is_formatted_as_by_java(attributes: Attributes, text: str) -> None:
    assert name_text(x509.load_der_x509_csr(request_of(attributes)).subject) == text
