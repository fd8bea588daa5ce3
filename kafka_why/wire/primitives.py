"""Numbers, lengths and tags of Kafka's binary messages, read strictly and without IO."""

_INT32_MAX = 2**31 - 1

STRING_MAX_BYTES = 2**15 - 1
"""The maximum size of a string, in all versions."""


class ProtocolError(ValueError):
    """The error of bytes that are not a Kafka message. The connection that sent them is unusable."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned varint at `at`, and the position after it. Raises ProtocolError.

    It must be encoded as by Kafka's ByteUtils.writeUnsignedVarint. A number of more than 31 bits is refused,
    because Kafka's reader takes the 32nd bit for a sign and drops further bits. A number in more bytes than
    needed is refused, too.
    """
    if at < len(data) and data[at] < 0x80:  # a single byte, as most numbers are
        return data[at], at + 1
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise ProtocolError("a message that ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0:  # it adds nothing to the value
                raise ProtocolError("a number that is longer than needed")
            if value > _INT32_MAX:
                break
            return value, at
    raise ProtocolError("a number of more than 31 bits")


def skip(data: bytes, at: int, size: int) -> int:
    """Return the position after `size` bytes. Raises ProtocolError if the message is shorter."""
    if at + size > len(data):
        raise ProtocolError(f"a message that ends {at + size - len(data)} bytes too early")
    return at + size


def next_tag(data: bytes, at: int, last: int) -> tuple[int, int, int]:
    """Return the tag at `at`, and the start and end of its field's value. Raises ProtocolError.

    `last` is the tag before it, or -1 for the first one.
    """
    tag, at = read_varint(data, at)
    # Tags ascend (KIP-482), although Kafka's reader does not check the order.
    if tag <= last:
        raise ProtocolError(f"tag {tag} after tag {last}")
    size, at = read_varint(data, at)
    return tag, at, skip(data, at, size)
