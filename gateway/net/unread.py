"""A bound on what all clients together have not read of their responses."""

from collections.abc import Callable

from gateway.net.ends import SlowReader

End = Callable[[Exception], None]


class Unread:
    """The bytes of responses that clients have not read, at most `total_bytes`. Where there are more, the
    client with the most is disconnected.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._by_client: dict[End, int] = {}
        self.bytes = 0

    def add(self, end: End, number: int) -> None:
        """Count bytes that are for a client. `end` disconnects it."""
        self._by_client[end] = self._by_client.get(end, 0) + number
        self.bytes += number
        while self.bytes > self._total_bytes:
            most = max(self._by_client, key=self._by_client.__getitem__)
            left = self.forget(most)
            most(SlowReader(f"it had not read {left} bytes, the most of all clients"))

    def remove(self, end: End, number: int) -> None:
        """A client has read bytes that were counted."""
        left = self._by_client.get(end, 0)
        if left > number:
            self._by_client[end] = left - number
            self.bytes -= number
        else:  # all are read, or what was counted before it was disconnected
            self.forget(end)

    def forget(self, end: End) -> int:
        """A client is gone. Returns the bytes that were counted for it."""
        left = self._by_client.pop(end, 0)
        self.bytes -= left
        return left
