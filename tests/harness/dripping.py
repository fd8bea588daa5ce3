"""A server that is slow on purpose: it sends its answer byte by byte, for as long as it is let."""

import socket
import threading
from types import TracebackType
from typing import Self

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
