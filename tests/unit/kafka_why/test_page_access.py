"""Access to the page, and its limits for browsers, by real requests to a real server."""

import http.client
import json
import re
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest

from kafka_why.connections.address import is_loopback
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.credentials import Users
from kafka_why.groups.gather import BrokerGroup
from kafka_why.page import app as page_app
from kafka_why.page.app import app
from kafka_why.page.commands import CoordinatorLog
from kafka_why.page.fleet import Fleet
from kafka_why.page.histories import Analyses, Histories
from kafka_why.page.members import EMPTY
from kafka_why.page.security import HEADERS, MAX_CREDENTIAL_CHARS, Access
from kafka_why.page.sources import PageSources
from kafka_why.page.topics_followers import ServiceTopics
from kafka_why.web import MAX_CONNECTIONS, WebServer, listening_at, names_of
from kafka_why.why.history import History, read_history

LAYOUT = TopicLayout.named("page")
NOBODY = ClientConfig("127.0.0.1:1")  # no test here reads from a broker
PASSWORD = "geheim: ä"
LINES_VERSION = 7


@contextmanager
def serving(
    access: Access | None = None,
    *,
    fleet: Fleet | None = None,
    read: Callable[[str, int], History] | None = None,
    max_connections: int = MAX_CONNECTIONS,
    **others: Any,
) -> Iterator[socket.socket]:
    """Yield a page of this fleet; `others` are other sources than those that know nothing."""
    fleet = fleet or Fleet(LAYOUT)
    fleet.mark_complete()
    histories = Histories(read or partial(read_history, NOBODY, LAYOUT), fleet)
    idle = PageSources(
        fleet=fleet,
        lines=list,
        members=lambda: EMPTY,
        lines_version=lambda: LINES_VERSION,
        histories=histories,
        analyses=Analyses(histories, fleet),
        read_age_s=lambda: 0.0,
        service_topics=ServiceTopics(),
        service_state=None,
        connect_to="127.0.0.1:9092",
    )
    sources = replace(idle, **others)
    with listening_at("127.0.0.1", 0) as listening:
        served = app(sources, access or Access(names_of(listening)))
        web = WebServer(served, listening, max_connections=max_connections)
        web.start()
        try:
            yield listening
        finally:
            web.stop()


@pytest.fixture(scope="module")
def on_loopback() -> Iterator[socket.socket]:
    with serving() as listening:
        yield listening


@pytest.fixture(scope="module")
def asking() -> Iterator[socket.socket]:
    with serving(Access(has_password=Users([f"olga:{PASSWORD}"]).has_password, token="t0ken")) as listening:
        yield listening


def answer(
    listening: socket.socket, path: str = "/", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    host, port = listening.getsockname()
    connection = http.client.HTTPConnection(host, port, timeout=30)
    with closing(connection):
        connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()


def status(listening: socket.socket, path: str = "/", method: str = "GET", **headers: str) -> int:
    return answer(listening, path, method, **headers)[0]


@pytest.mark.parametrize("path", ["/", "/api/groups", "/static/page.css", "/nowhere", "/group?id=g&since=x"])
def test_every_response_has_the_security_headers(on_loopback: socket.socket, path: str) -> None:
    """Also those that say no. Nothing but the page's own files runs or is loaded."""
    _, headers, _ = answer(on_loopback, path)
    assert {name: headers[name.lower()] for name in HEADERS} == HEADERS
    assert "unsafe" not in headers["content-security-policy"]


def test_page_refuses_requests_for_other_host_names(on_loopback: socket.socket) -> None:
    """A name that a stranger's DNS has turned to this address is not one of them."""
    port = on_loopback.getsockname()[1]
    assert [status(on_loopback, Host=f"{name}:{port}") for name in ("127.0.0.1", "LOCALHOST", "[::1]")] == [
        200
    ] * 3
    for host in (
        f"evil.example:{port}",
        "localhost",
        f"localhost:{port + 1}",
        f"localhost:{port}.evil.example",
        "",
    ):
        assert status(on_loopback, Host=host) == 421


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("path", ["/api/groups", "/live", "/", "/static/page.js"])
def test_cross_site_requests_are_refused(on_loopback: socket.socket, path: str, site: str) -> None:
    """It may link to the page, which the reader then follows."""
    assert status(on_loopback, path, Sec_Fetch_Site=site, Sec_Fetch_Mode="cors") == 403
    assert status(on_loopback, path, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors") == 403
    assert status(on_loopback, "/", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate") == 200
    assert status(on_loopback, "/api/groups", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors") == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_page_accepts_only_http_methods_that_read(on_loopback: socket.socket, method: str) -> None:
    assert status(on_loopback, "/", method) == 405


def basic(text: str) -> str:
    return f"Basic {b64encode(text.encode()).decode()}"


@pytest.mark.parametrize("path", ["/", "/api/groups", "/live", "/static/page.js", "/group?id=g"])
def test_unauthenticated_requests_get_no_data(asking: socket.socket, path: str) -> None:
    """Neither data nor files; the answer says how to authenticate."""
    code, headers, body = answer(asking, path)
    assert (code, headers["www-authenticate"][:5]) == (401, "Basic")
    assert b"html" not in body


@pytest.mark.parametrize(
    "authorization",
    [
        basic("olga:wrong"),
        basic("nobody:" + PASSWORD),
        basic("olga"),
        basic(""),
        "Basic ****",
        "Basic " + b64encode(b"\xff\xfe:x").decode(),
        "Bearer t0ken2",
        "Bearer",
        "Digest t0ken",
        "Bearer " + "t" * MAX_CREDENTIAL_CHARS,
        "",
    ],
)
def test_page_refuses_wrong_credentials(asking: socket.socket, authorization: str) -> None:
    assert status(asking, Authorization=authorization) == 401


def test_user_or_token_is_accepted_under_any_host_name(asking: socket.socket) -> None:
    """Another site's name gives it nothing: a browser sends the credentials to this name only."""
    for authorization in (basic(f"olga:{PASSWORD}"), "Bearer t0ken", "bearer  t0ken"):
        assert status(asking, Authorization=authorization, Host="coordinator.example") == 200


@pytest.mark.parametrize("path", ["/", "/members"])
def test_groups_page_carries_the_version_of_its_lines(on_loopback: socket.socket, path: str) -> None:
    """Not that of the topics, which are ahead of the lines: else it would not ask for the newest ones."""
    assert f'data-version="{LINES_VERSION}"'.encode() in answer(on_loopback, path)[2]


def test_empty_groups_page_explains_what_to_do(on_loopback: socket.socket) -> None:
    html = answer(on_loopback)[2].decode()
    assert "No group yet." in html and "127.0.0.1:9092" in html and "own coordinator" not in html
    nothing = {"groups": [], "unwell": [], "total": 0, "broker_groups": [], "remarks": []}
    assert json.loads(answer(on_loopback, "/api/groups")[2]) == nothing


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/group", 400),
        ("/group?id=", 400),
        (f"/group?id={'g' * 40_000}", 400),
        ("/group?id=g&since=yesterday", 400),
        ("/group?id=g&from=5&to=4", 400),
        ("/group?id=g&from=-1", 400),
        ("/group?id=g&from=9" + "9" * 30, 400),
        ("/group?id=g&to=1e9", 400),
        ("/group?id=g&to=1_000", 400),
        ("/group?id=g&from=%D9%A3", 400),
        ("/group?id=g&since=%D9%A3h", 400),
        ("/rebalance?group=g", 400),
        ("/rebalance?group=g&at=now", 400),
        ("/?page=-1", 200),
        ("/?page=%EF%BC%91&sort=%00&state=%22", 200),
    ],
)
def test_invalid_page_urls_get_an_html_error(on_loopback: socket.socket, path: str, code: int) -> None:
    found, headers, body = answer(on_loopback, path)
    assert found == code
    assert headers["content-type"].startswith("text/html")
    assert b"Traceback" not in body


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
    ],
)
def test_only_loopback_addresses_need_no_credentials(host: str, expected: Any) -> None:
    assert is_loopback(host) is expected


def test_groups_of_the_brokers_coordinator_are_shown_with_instructions() -> None:
    lost = BrokerGroup("<lost>", "classic", "Stable", [f"c{n} at /10.0.0.1" for n in range(12)])
    with serving(broker_groups=lambda: [lost]) as listening:
        html = answer(listening)[2].decode()
        (shown,) = json.loads(answer(listening, "/api/groups")[2])["broker_groups"]
    for text in (
        "1 group uses the broker's own coordinator",
        "&lt;lost&gt;",
        "c9 at /10.0.0.1 and 2 more",
        "<code>127.0.0.1:9092</code>",
    ):
        assert text in html
    assert shown["group_id"] == "<lost>"


def silent(listening: socket.socket, sent: bytes = b"") -> socket.socket:
    """Return a connection that sends this, and no more."""
    connection = socket.create_connection(listening.getsockname(), timeout=30)
    connection.sendall(sent)
    return connection


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: half"], ids=["nothing", "half a request"])
def test_idle_page_connections_do_not_block_new_ones(sent: bytes) -> None:
    with serving(max_connections=4) as listening, ExitStack() as stack:
        idle = [stack.enter_context(closing(silent(listening, sent))) for _ in range(4)]
        assert [status(listening) for _ in range(3)] == [200] * 3
        assert idle[0].recv(1) == b"", "the oldest one was ended"
        idle[-1].settimeout(0)
        with pytest.raises(BlockingIOError):
            idle[-1].recv(1)


def test_live_page_connections_do_not_block_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_app, "MAX_LIVE", 1)
    with serving() as listening, ExitStack() as stack:
        request = f"GET /live HTTP/1.1\r\nHost: {names_of(listening)[0]}\r\n\r\n".encode()
        first = stack.enter_context(closing(silent(listening, request)))
        read_to(first, b"data: ")
        second = stack.enter_context(closing(silent(listening, request)))
        read_to(second, b"data: ")
        read_to(first, b"0\r\n\r\n")  # it ends in order, so a browser asks again


def read_to(connection: socket.socket, end: bytes) -> bytes:
    """Read until this was received."""
    received = b""
    while end not in received:
        part = connection.recv(4_096)
        assert part, received
        received += part
    return received


NO_CHECKPOINT = CoordinatorLog(
    checkpoint="/nowhere/coordinator", properties="bootstrap.servers=127.0.0.1:1\n"
)


def replay(group_id: str = "orders", **parameters: str) -> str:
    return f"/replay?{urlencode({'group': group_id, 'at': '1795230000000', **parameters})}"


def said(listening: socket.socket, path: str, **headers: str) -> str | None:
    """Return a command's output on a page, or None if it was not run."""
    found, _, page = answer(listening, path, **headers)
    assert found == 200
    shown = re.search('id="answer">(.*)</pre>', page.decode(), re.DOTALL)
    return None if shown is None else unescape(shown[1])


def test_button_runs_a_command_but_a_link_from_another_site_does_not() -> None:
    with serving(log=NO_CHECKPOINT) as listening:
        assert said(listening, replay()) is None
        for site in ("cross-site", "same-site"):
            headers = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate"}
            assert said(listening, replay(run="1"), **headers) is None
        for headers in ({"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "navigate"}, {}):
            shown = said(listening, replay(run="1"), **headers)
            assert shown is not None and "/nowhere/coordinator" in shown


def test_replay_and_whatif_without_a_checkpoint_point_to_the_coordinator(on_loopback: socket.socket) -> None:
    for kind in ("replay", "whatif"):
        found, _, page = answer(on_loopback, f"/{kind}?group=g&at=1&run=1")
        assert found == 404 and b"run the command on the coordinator" in page


@pytest.mark.parametrize(
    "path",
    [
        f"/whatif?group=g&at=1&{urlencode({'try': 'x' * 301})}",
        f"/whatif?group=g&at=1&{'try=x&' * 5}",
        *(f"/replay?group=g&at={at}" for at in ("x", "-1", "9" * 16, "")),
    ],
)
def test_oversized_experiment_or_invalid_time_is_refused(path: str) -> None:
    with serving(log=NO_CHECKPOINT) as listening:
        assert status(listening, path) == 400
