"""Writing of responses to one client, in the order of its requests, until the kernel has them."""

import time
from asyncio import Future, Transport
from collections import deque
from typing import Any

from gateway.limits import TokenBucket
from gateway.metrics.numbers import GatewayCounts
from gateway.net.lifecycle import Lifecycle
from gateway.net.limits.buffers import WriteBufferLimit


class ResponseSlot:
    """The slot of one request in the order of responses.

    `response_bytes` of the response are counted as unread (`gateway.net.limits.buffers`). `sent_bytes` of the
    request are sent to the coordinator, 0 if the gateway refuses it.
    """

    __slots__ = (
        "api_key",
        "began_s",
        "frame",
        "has_capacity",
        "quota",
        "request_bytes",
        "response_bytes",
        "sent_bytes",
        "waits_for",
    )

    def __init__(self, request_bytes: int) -> None:
        self.request_bytes = self.sent_bytes = request_bytes
        self.api_key = -1
        self.began_s = time.monotonic()
        self.quota: TokenBucket | None = None  # the quota that the request exceeds
        # The response in one or several parts, None until it is ready. Without a part, no response is
        # expected.
        self.frame: tuple[bytes, ...] | None = None
        self.waits_for: Future[Any] | None = None  # cancelled if the connection ends first
        self.has_capacity = False  # holds capacity of the coordinator's limiter
        self.response_bytes = 0


# Smaller responses are not counted as unread, because a connection has few of them
# (`in_flight_per_connection`).
_SMALL_BYTES = 4096


class ResponseWriter:
    """The slots of the unanswered requests, in order. A slot is freed when the kernel has all of its
    response.

    With `is_due` a call of `flush` is scheduled.
    """

    __slots__ = (
        "_being_sent", "_counts", "_life", "_write_buffers", "is_due", "slots", "taken_bytes", "transport",
        "unsent",
    )  # fmt: skip

    transport: Transport  # set when the client is connected

    def __init__(self, life: Lifecycle, counts: GatewayCounts, write_buffers: WriteBufferLimit) -> None:
        self._life = life
        self._counts = counts
        self._write_buffers = write_buffers
        self.slots: deque[ResponseSlot] = deque()
        self.taken_bytes = 0  # the bytes of the requests that have slots
        self._being_sent = 0
        """The number of slots, from the first on, whose responses are written but not yet in the kernel."""
        self.is_due = False
        # Done when the kernel has all responses. None if it already has them.
        self.unsent: Future[None] | None = None

    def open_slot(self, request_bytes: int) -> ResponseSlot:
        """Append and return the slot of a request that is dispatched."""
        slot = ResponseSlot(request_bytes)
        self.taken_bytes += request_bytes
        self.slots.append(slot)
        return slot

    def put(self, slot: ResponseSlot, frame: tuple[bytes, ...]) -> None:
        """Put a response into its slot. `flush` writes it in its turn."""
        slot.frame, slot.waits_for = frame, None
        frame_bytes = sum(map(len, frame))
        if frame_bytes > _SMALL_BYTES and self._may_write():
            slot.response_bytes = frame_bytes
            self._write_buffers.add(self._life.end, frame_bytes)
        self._counts.answered[slot.api_key].add(time.monotonic() - slot.began_s)

    def flush(self) -> bool:
        """Write the responses that are ready, up to the first that is not. Return True if the kernel has
        them.
        """
        self.is_due = False
        if self._being_sent or not self._may_write():
            return False
        parts: list[bytes] = []
        for slot in self.slots:
            if slot.frame is None:
                break
            parts += slot.frame
            self._being_sent += 1
        if len(parts) == 1:
            self._counts.sent_bytes += len(parts[0])
            self.transport.write(parts[0])
        elif parts:
            self._counts.sent_bytes += sum(map(len, parts))
            self.transport.writelines(parts)
        if self.unsent is not None:
            return False
        self._free_sent()
        return True

    def write_part(self, slot: ResponseSlot, part: bytes) -> int:
        """Write a part of the first response. Return the number of bytes that the kernel does not have, for
        `part_is_sent`.
        """
        if not self._may_write():
            return 0
        assert self.slots[0] is slot
        self._counts.sent_bytes += len(part)
        self.transport.write(part)
        if self.unsent is None:
            return 0
        self._write_buffers.add(self._life.end, len(part))
        return len(part)

    def part_is_sent(self, number: int) -> None:
        """Stop counting the bytes of a part, because the kernel has them."""
        self._write_buffers.remove(self._life.end, number)

    def resume(self) -> None:
        """Free the slots of written responses, because the kernel has all written bytes."""
        if self.unsent is not None:
            self.unsent.set_result(None)
            self.unsent = None
        self._free_sent()

    def cancel(self) -> None:
        """Cancel the pending responses, because the client has gone."""
        for slot in self.slots:
            if slot.waits_for is not None:
                slot.waits_for.cancel()

    def forget(self) -> None:
        """Stop counting unread bytes, because the client has gone."""
        self._write_buffers.forget(self._life.end)

    def _may_write(self) -> bool:
        return self._life.state.writes and not self.transport.is_closing()

    def _free_sent(self) -> None:
        """Free the slots of the responses that were written, because the kernel has them."""
        for _ in range(self._being_sent):
            slot = self.slots.popleft()
            if slot.response_bytes:
                self._write_buffers.remove(self._life.end, slot.response_bytes)
            self.taken_bytes -= slot.request_bytes
        self._being_sent = 0
