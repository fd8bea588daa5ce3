"""The page of `run`: a separate process, because readers must not slow the service's threads."""

import subprocess
import sys
import threading
import time
from contextlib import suppress

import msgspec
import structlog

from cli.page_child import PageStart, PolledCluster
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.lifetimes import Closeable
from kafka_why.page.commands import CoordinatorLog
from kafka_why.web import listening_at, url_of
from streaming.query.session import LOOPBACK
from streaming.service.starts import backoff_s

_WORKS_S = 60.0
_END_GRACE_S = 3.0

log = structlog.get_logger()


class RunPage(Closeable):
    """The page's process on this machine, from `start` to `close`. If it ends, it is started again.

    The constructor opens the socket, so the address is known and never changes. Raises WebUnavailable.
    """

    def __init__(self, port: int) -> None:
        self._socket = listening_at(LOOPBACK, port)
        self.url = url_of(self._socket)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        connect_to: str,
        metrics_url: str,
        log: CoordinatorLog,
        *,
        watches_broker: bool = False,
        rocketmq: PolledCluster | None = None,
    ) -> None:
        """Begin to serve when the topics are there. `metrics_url` is that of the service.

        `watches_broker` and `rocketmq` are as in `kafka_why.page.server.Page`.
        """
        start = PageStart(
            client_config=client_config,
            layout=layout,
            listening=self._socket.fileno(),
            connect_to=connect_to,
            metrics_url=metrics_url,
            log=log,
            watches_broker=watches_broker,
            rocketmq=rocketmq,
        )
        self._thread = threading.Thread(
            target=self._supervise, args=(start,), name="page-keeper", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the process. This may be called again."""
        self._stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            _end(process)
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def _supervise(self, start: PageStart) -> None:
        restarts = 0
        while not self._stopping.wait(backoff_s(restarts)):
            began_s = time.monotonic()
            code = self._run(start)
            if self._stopping.is_set():
                return
            log.warning("the page has ended, it is started again", code=code)
            restarts = 1 if time.monotonic() - began_s > _WORKS_S else restarts + 1

    def _run(self, start: PageStart) -> int | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", "cli.page_child"],
                stdin=subprocess.PIPE,
                pass_fds=(start.listening,),
                # A terminal sends Ctrl-C to its whole process group. This process itself ends the page.
                process_group=0,
            )
        assert process.stdin is not None
        with suppress(OSError):  # it has ended, which is found below
            process.stdin.write(msgspec.json.encode(start) + b"\n")
            process.stdin.flush()
        code = process.wait()
        with suppress(OSError):
            process.stdin.close()
        return code


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_END_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
