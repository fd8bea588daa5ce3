"""The relay of one direction of a connection, without IO. The bytes of frames that pass are written on as
they arrive.
"""

from collections.abc import Callable
from enum import Enum
from struct import Struct as Layout

from kafka_why.remoting.frames import Header, decode_header, header_length
from kafka_why.remoting.strict_json import MalformedFrame

_PREFIX = Layout(">ii")  # the length of the rest of the frame; the header's serialization and length
_LENGTH_BYTES = 4


class FrameHandling(Enum):
    """The handling of a frame."""

    FORWARD = "its bytes are written on as they arrive"
    HOLD = "it is buffered until it is complete, and not written on"
    DROP = "its bytes are discarded"


FORWARD, HOLD, DROP = FrameHandling

DecideFrame = Callable[[Header, int], FrameHandling]
"""Decides about a frame from its header and the bytes of the whole frame. May raise MalformedFrame."""

HandleFrame = Callable[[Header, bytes, int], None]
"""Handles a held frame: its header, the whole frame, and the position of its body."""


class FrameRelay:
    """The relay of one direction. `write` gets the bytes that pass, and `handle` the held frames.

    With `is_trusted` a frame whose header cannot be read passes. Otherwise it causes a MalformedFrame.
    """

    __slots__ = (
        "_body_at",
        "_decide",
        "_handle",
        "_handling",
        "_header",
        "_held",
        "_inserted",
        "_is_trusted",
        "_max_bytes",
        "_missing_bytes",
        "_unread",
        "_write",
        "held_bytes",
        "is_suspended",
    )  # fmt: skip

    def __init__(
        self,
        frame_max_bytes: int,
        decide: DecideFrame,
        handle: HandleFrame,
        write: Callable[[bytes], None],
        *,
        is_trusted: bool = False,
    ) -> None:
        self._max_bytes = frame_max_bytes
        self._decide = decide
        self._handle = handle
        self._write = write
        self._is_trusted = is_trusted
        self._unread = b""
        """The beginning of a frame whose header is incomplete, or all that arrived while suspended."""
        self._missing_bytes = 0
        """The number of bytes of the current frame that have not arrived."""
        self._handling = FORWARD  # of the current frame
        # The header, the position of the body, and the parts of the current frame if it is held.
        self._header: Header | None = None
        self._body_at = 0
        self._held: list[bytes] = []
        self.held_bytes = 0
        """The number of bytes of the incomplete held frame."""
        self._inserted: list[bytes] = []
        """The gateway's own frames that wait for the end of a passing frame."""
        self.is_suspended = False
        """While True, no further frame begins, and bytes that arrive are buffered. `handle` may set it."""

    @property
    def is_incomplete(self) -> bool:
        """True if a part of a held frame, or of a header, is missing."""
        return bool(self._held or self._unread) and not self.is_suspended

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes that have arrived and are buffered."""
        return self.held_bytes + len(self._unread)

    @property
    def inserted_bytes(self) -> int:
        """The bytes of the gateway's own frames that wait for the end of a passing frame."""
        return sum(map(len, self._inserted))

    def insert(self, frame: bytes) -> None:
        """Write a frame of the gateway's own in this direction, between two frames that pass."""
        if self._missing_bytes and self._handling is FORWARD:
            self._inserted.append(frame)
        else:
            self._write(frame)

    def resume(self) -> None:
        """Continue after a suspension. Raises MalformedFrame."""
        self.is_suspended = False
        self.feed(b"")

    def feed(self, data: bytes) -> None:
        """Relay bytes that have arrived. Raises MalformedFrame."""
        if self._unread:
            data = self._unread + data
            self._unread = b""
        at = unwritten_at = 0  # the bytes from `unwritten_at` to `at` pass, and are not written yet
        end = len(data)
        while at < end and not self.is_suspended:
            if not self._missing_bytes and not self._begin(data, at):
                break
            arrived_bytes = min(self._missing_bytes, end - at)
            self._missing_bytes -= arrived_bytes
            if self._handling is FORWARD:
                at += arrived_bytes
                if self._inserted and not self._missing_bytes:
                    self._write(data[unwritten_at:at])
                    unwritten_at = at
                    self._write_inserted()
            else:
                if unwritten_at < at:
                    self._write(data[unwritten_at:at])
                at = unwritten_at = at + arrived_bytes
                if self._handling is HOLD:
                    self._hold(data[at - arrived_bytes : at])
        if unwritten_at < at:
            self._write(data[unwritten_at:at])
        self._unread = data[at:]

    def _begin(self, data: bytes, at: int) -> bool:
        """Begin the frame at this position. Return False if its header is incomplete."""
        if len(data) - at < _PREFIX.size:
            return False
        length, header_word = _PREFIX.unpack_from(data, at)
        header_at = at + _PREFIX.size
        body_at = header_at + header_length(length, header_word, self._max_bytes)
        if len(data) < body_at:
            return False
        try:
            header = decode_header(header_word, data[header_at:body_at])
        except MalformedFrame:
            if not self._is_trusted:
                raise
            self._handling = FORWARD
        else:
            self._handling = self._decide(header, _LENGTH_BYTES + length)
            if self._handling is HOLD:
                self._header, self._body_at = header, body_at - at
        self._missing_bytes = _LENGTH_BYTES + length
        return True

    def _hold(self, part: bytes) -> None:
        """Buffer a part of a held frame. Handle the frame when it is complete."""
        self._held.append(part)
        self.held_bytes += len(part)
        if not self._missing_bytes:
            frame, header = b"".join(self._held), self._header
            self._held, self.held_bytes, self._header = [], 0, None
            assert header is not None, "`_begin` has set it"
            self._handle(header, frame, self._body_at)

    def _write_inserted(self) -> None:
        inserted, self._inserted = self._inserted, []
        for frame in inserted:
            self._write(frame)
