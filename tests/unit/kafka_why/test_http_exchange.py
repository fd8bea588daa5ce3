"""One deadline for a whole HTTP exchange, and slots of connections, whatever the other side does."""

import socket
import threading
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Self

import pytest

from kafka_why.connections.http_exchange import exchange
from kafka_why.connections.pem import client_context
from kafka_why.web import ClientSlots, client_network
from tests.harness.ports import free_port
from tests.harness.webhook import HANG, Reply, Webhook

PAUSE_S = 0.05


class Dripping:
    """Listens on a loopback port during the `with` block. To each connection it sends `at_once`, and then for
    ever a byte of `drips` each PAUSE_S. With `drips` empty it sends nothing more. It reads nothing.
    """

    def __init__(self, at_once: bytes, drips: bytes) -> None:
        self._at_once = at_once
        self._drips = drips
        self._is_over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="dripping")
        self.port = self._listening.getsockname()[1]
        self.cut = threading.Event()
        """A client has ended its connection."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while True:
                connection, _ = self._listening.accept()
                with connection:
                    self._drip(connection)
        except OSError:
            if not self._is_over.is_set():
                raise

    def _drip(self, connection: socket.socket) -> None:
        try:
            connection.sendall(self._at_once)
            at = 0
            while not self._is_over.wait(PAUSE_S):
                if self._drips:
                    connection.sendall(self._drips[at % len(self._drips) :][:1])
                    at += 1
        except OSError:
            self.cut.set()


DEADLINE_S = 0.3
LATE_S = 5.0
"""On a busy machine. Each of the servers would go on for ever."""
OK = b"HTTP/1.1 200 OK\r\n"
DIRECT = urllib.request.ProxyHandler({})


def asked(url: str, body: bytes = b"{}") -> tuple[int, bytes]:
    with exchange(DEADLINE_S, client_context(None), (DIRECT,)) as opener:
        try:
            with opener.open(urllib.request.Request(url, body)) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read()


def is_cut(url: str, body: bytes = b"{}") -> bool:
    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no complete answer within 0\.3 s"):
        asked(url, body)
    return DEADLINE_S <= time.monotonic() - began_s < LATE_S


@pytest.mark.parametrize(
    ("at_once", "drips"),
    [
        (b"", b"HTTP/1.1 200 OK"),
        (OK, b"A: b\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (OK + b"Content-Length: 1000000\r\n\r\n", b"x"),
        (OK + b"Connection: close\r\n\r\n", b"x"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 500 Broken\r\nContent-Length: 1000000\r\n\r\n", b"x"),
    ],
)
def test_slow_trickling_response_is_cut_at_the_deadline(at_once: bytes, drips: bytes) -> None:
    with Dripping(at_once, drips) as server:
        assert is_cut(f"http://127.0.0.1:{server.port}/")
        assert server.cut.wait(LATE_S)


def test_slow_trickling_tls_handshake_hits_the_deadline() -> None:
    """A record of TLS of 16 kB, byte by byte."""
    with Dripping(b"\x16\x03\x03\x40\x00", b"\x02") as server:
        assert is_cut(f"https://127.0.0.1:{server.port}/")


def test_server_that_reads_nothing_hits_the_deadline() -> None:
    with Dripping(b"", b"") as server:
        assert is_cut(f"http://127.0.0.1:{server.port}/", body=bytes(32 * 1024 * 1024))


def test_the_addresses_of_a_name_share_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight addresses whose queues of connections are full, so that a connect waits."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        full = [socket.socket() for _ in range(4)]
        for one in full:
            one.setblocking(False)
            one.connect_ex(address)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: 8 * found)
        assert is_cut(f"http://receiver.example.org:{address[1]}/")
        for one in full:
            one.close()


def test_exchange_within_the_deadline_behaves_as_urllib() -> None:
    with Webhook(Reply(200, body=b"told"), Reply(503, body=b"later")) as webhook:
        assert [asked(webhook.url()) for _ in range(2)] == [(200, b"told"), (503, b"later")]
    with pytest.raises(urllib.error.URLError, match="refused"):
        asked(f"http://127.0.0.1:{free_port()}/")
    with Webhook(Reply(HANG)) as webhook:
        assert is_cut(webhook.url())


def slots(total: int, idle: str = "", *, ends_busy: bool = True) -> ClientSlots[str]:
    return ClientSlots(total, lambda holder: holder in idle, ends_busy=ends_busy)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("2001:db8:0:0:9::", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", "loopback"),
        ("127.8.8.8", "loopback"),
        ("::1", "loopback"),
        ("", ""),
    ],
)
def test_addresses_within_one_clients_prefix_count_as_one_network(host: str, network: str) -> None:
    assert client_network(host) == network


def test_new_client_evicts_the_oldest_connection_of_the_network_with_most() -> None:
    full = slots(4)
    for host, holder in (("192.0.2.1", "a"), ("192.0.2.2", "b"), ("192.0.2.2", "c"), ("192.0.2.2", "d")):
        full.add(host, holder)
    assert full.add("192.0.2.3", "e") == "b"
    assert full.add("192.0.2.1", "f") == "c"
    assert full.add("192.0.2.1", "g") == "a", "no other has as many as it has itself"


def test_idle_connection_is_evicted_before_a_busy_one() -> None:
    full = slots(3, idle="b")
    for holder in "abc":
        full.add("192.0.2.1", holder)
    assert full.add("192.0.2.1", "d") == "b"
    assert full.add("192.0.2.1", "e") == "a", "all are busy"


def test_new_connection_is_refused_where_busy_ones_are_not_evicted() -> None:
    full = slots(2, idle="d", ends_busy=False)
    for holder in "ab":
        full.add("192.0.2.1", holder)
    assert full.add("192.0.2.2", "c") == "c"
    full.remove("c")
    full.remove("a")
    assert full.add("192.0.2.2", "d") is None
    assert full.add("192.0.2.2", "c") == "d", "it is idle"
