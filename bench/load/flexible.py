"""The primitives of Kafka's flexible versions (KIP-482) as bytes, for requests that no real client sends."""


def varint(number: int, size: int = 0) -> bytes:
    """Return an unsigned varint, padded to `size` bytes if it is shorter."""
    out = bytearray()
    while number >= 0x80 or len(out) + 1 < size:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def compact(text: bytes) -> bytes:
    """Return a string."""
    return varint(len(text) + 1) + text


def array(*items: bytes) -> bytes:
    """Return an array."""
    return varint(len(items) + 1) + b"".join(items)
