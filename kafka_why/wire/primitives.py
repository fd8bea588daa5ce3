"""Numbers, lengths and tags of Kafka's binary messages, read strictly and without IO."""

import re
from collections.abc import Mapping
from typing import Any

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
            if byte == 0:
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
    """Return the next tag, and the start and end of its field. Raises ProtocolError."""
    tag, at = read_varint(data, at)
    # KIP-482. Kafka's reader does not check it.
    if tag <= last:
        raise ProtocolError(f"tag {tag} after tag {last}")
    size, at = read_varint(data, at)
    return tag, at, skip(data, at, size)


# The notation of Kafka's JSON definitions of messages (clients/src/main/resources/common/message).


Schema = Mapping[str, Any]

_WORD = re.compile(r"(?<!^)(?=[A-Z])")


FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "bitfield": "i",  # kafka-python's, for sets of operations
}
"""The types of fixed size except ids, with their formats in `struct`."""


def field_runs(schema: Schema, version: int) -> list[list[Schema]]:
    """Return the untagged fields of a version of a structure, as runs.

    Successive fields of fixed size are one run. Any other field is a run by itself.
    """
    runs: list[list[Schema]] = []
    for field in schema["fields"]:
        if in_versions(field["versions"], version) and not is_tagged(field, version):
            if runs and field["type"] in FORMATS and runs[-1][0]["type"] in FORMATS:
                runs[-1].append(field)
            else:
                runs.append([field])
    return runs


def in_versions(versions: str, version: int) -> bool:
    """Return True if `version` is in a range of Kafka's notation, such as `2+`, `0-3`, `1` or `none`."""
    if versions == "none":
        return False
    first, _, last = versions.partition("-")
    if first.endswith("+"):
        return version >= int(first[:-1])
    return int(first) <= version <= int(last or first)


def attribute_of(field: Schema) -> str:
    """Return the name of a field in snake_case, as decoded messages have it."""
    return _WORD.sub("_", field["name"]).lower()


def is_tagged(field: Schema, version: int) -> bool:
    """Return True if this version has the field in its tag section."""
    return in_versions(field.get("taggedVersions", "none"), version)


def is_nullable(field: Schema, version: int) -> bool:
    """Return True if the field may be null in this version."""
    return in_versions(field.get("nullableVersions", "none"), version)
