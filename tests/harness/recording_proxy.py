"""A proxy in front of a broker's plain listener, which records the API of each request."""

import socket
import threading
from contextlib import closing, suppress
from struct import unpack
from types import TracebackType
from typing import Self

from kafka.protocol.api_key import ApiKey

from embedded.java import HOST


class RecordingProxy:
    """Accepts connections on `port`, and forwards them to `broker_port`. `apis` are the names of the APIs
    that clients have called so far.
    """

    def __init__(self, broker_port: int) -> None:
        self.apis: set[str] = set()
        self._broker_port = broker_port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection((HOST, self._broker_port))
                for forward in (self._forward_requests, self._forward_responses):
                    threading.Thread(target=forward, args=(client, broker), daemon=True).start()

    def _forward_requests(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError), closing(broker), client.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                request = stream.read(unpack(">i", size)[0])
                self.apis.add(ApiKey(unpack(">h", request[:2])[0]).name)
                broker.sendall(size + request)

    def _forward_responses(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError), closing(client):
            while data := broker.recv(65_536):
                client.sendall(data)
