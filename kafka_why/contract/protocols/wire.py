"""The primitive types of Kafka's wire format in non-flexible versions: big-endian, length before content.

Every error names the field and the byte at which it starts.
"""

import struct
from typing import TypeVar

T = TypeVar("T")

_INT16_MAX = 2**15 - 1


class ProtocolError(ValueError):
    """The error when bytes cannot be decoded, or a value cannot be encoded."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(what, offset)
        self.what = what
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.what} (byte {self.offset})"


class Reader:
    """A reader of the fields in `data`, one after another. `field` is a field's name, for errors.

    All methods raise ProtocolError. Leftover bytes are ignored unless `end` is called.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def int16(self, field: str) -> int:
        return self._int(2, field)

    def int32(self, field: str) -> int:
        return self._int(4, field)

    def int64(self, field: str) -> int:
        return self._int(8, field)

    def int32s(self, count: int, field: str) -> tuple[int, ...]:
        """Return the next `count` numbers."""
        available = min(count, self._bytes_left() // 4)
        numbers = struct.unpack_from(f">{available}i", self._data, self._offset)
        self._offset += 4 * available
        if available < count:
            self._take(4, field)  # raises ProtocolError, because fewer than 4 bytes are left
        return numbers

    def count(self, field: str) -> int:
        """Return the number of elements of an array that cannot be null."""
        start = self._offset
        return _not_null(self.nullable_count(field), field, start)

    def nullable_count(self, field: str) -> int | None:
        """Return the number of elements of an array, or None for null."""
        start = self._offset
        count = self._length(4, field)
        # An element has at least one byte. A wrong count is refused here, before a caller loops that often.
        if count is not None and count > self._bytes_left():
            raise ProtocolError(
                f"{field} has {count} elements, but {self._bytes_left()} bytes are left", start
            )
        return count

    def string(self, field: str) -> str:
        start = self._offset
        return _not_null(self.nullable_string(field), field, start)

    def nullable_string(self, field: str) -> str | None:
        """Return a string or None. Bytes that are not UTF-8 become U+FFFD, as in Java."""
        size = self._length(2, field)
        return None if size is None else self._take(size, field).decode(errors="replace")

    def utf16(self, field: str) -> str:
        """Return a string that Java's `writeChars` wrote, after the number of its characters."""
        start = self._offset
        size = _not_null(self._length(4, field), field, start)
        return self._take(2 * size, field).decode("utf-16-be", errors="replace")

    def nullable_bytes(self, field: str) -> bytes | None:
        size = self._length(4, field)
        return None if size is None else self._take(size, field)

    def end(self) -> None:
        """Raise ProtocolError if bytes are left over."""
        if self._bytes_left():
            raise ProtocolError(f"{self._bytes_left()} bytes are left over", self._offset)

    def _length(self, size: int, field: str) -> int | None:
        """Return the next length, of `size` bytes. A negative one is None (null), as in Kafka."""
        length = self._int(size, field)
        return None if length < 0 else length

    def _int(self, size: int, field: str) -> int:
        """Return the next number, of `size` bytes."""
        return int.from_bytes(self._take(size, field), "big", signed=True)

    def _take(self, size: int, field: str) -> bytes:
        """Return the next `size` bytes. Raises ProtocolError if fewer are left."""
        start, end = self._offset, self._offset + size
        if end > len(self._data):
            raise ProtocolError(f"{field} needs {size} bytes, but {self._bytes_left()} are left", start)
        self._offset = end
        return self._data[start:end]

    def _bytes_left(self) -> int:
        return len(self._data) - self._offset


def _not_null(value: T | None, field: str, start: int) -> T:
    if value is None:
        raise ProtocolError(f"{field} is null", start)
    return value


class Writer:
    """A writer that appends fields to `data`. `field` is a field's name, for errors.

    All methods raise ProtocolError if the format cannot represent the value.
    """

    def __init__(self) -> None:
        self.data = bytearray()

    def int16(self, value: int, field: str) -> None:
        self._int(value, 2, field)

    def int32(self, value: int, field: str) -> None:
        self._int(value, 4, field)

    def string(self, text: str, field: str) -> None:
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise ProtocolError(f"{field} is no text: {error}", len(self.data)) from error
        if len(encoded) > _INT16_MAX:
            raise ProtocolError(f"{field} is {len(encoded)} bytes long, over {_INT16_MAX}", len(self.data))
        self.int16(len(encoded), field)
        self.data += encoded

    def nullable_string(self, text: str | None, field: str) -> None:
        if text is None:
            self.int16(-1, field)
        else:
            self.string(text, field)

    def nullable_bytes(self, data: bytes | None, field: str) -> None:
        self.int32(-1 if data is None else len(data), field)
        self.data += data or b""

    def _int(self, value: int, size: int, field: str) -> None:
        try:
            self.data += value.to_bytes(size, "big", signed=True)
        except OverflowError as error:
            raise ProtocolError(f"{field} {value} is no int{8 * size}", len(self.data)) from error
