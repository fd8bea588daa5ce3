"""Frames of RocketMQ's remoting protocol, with both serializations of the header. A frame that another parser
could read differently is refused.

    length: int32 | header word: int32 | header | body

`length` counts everything after it. The header word has the serialization in its top byte, and the length of
the header in the other three. Source: RemotingCommand, RocketMQSerializable, RemotingSerializable.
"""

import struct
from collections.abc import Mapping
from enum import IntEnum
from struct import Struct as Layout

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder
from msgspec.structs import astuple

from kafka_why.contract.messages import Int32
from kafka_why.remoting import strict_json
from kafka_why.remoting.strict_json import MalformedFrame

FRAME_MAX_BYTES = 16_777_216
"""The default maximum size of a frame at each side (com.rocketmq.remoting.frameMaxLength)."""

HEADER_MAX_BYTES = 262_144
"""Enough for a message whose properties have 32,767 bytes, the maximum, with their quotes escaped."""
EXT_FIELDS_MAX = 1_024
"""The maximum number of fields that a request or a response adds to its header."""
WORD_BYTES = 4
"""The size of a frame's length, and of its header word."""

CURRENT_VERSION = 513
"""The ordinal of V5_5_0. A Java client takes the version in a heartbeat's answer as the broker's version."""

LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY"),
    *("OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"),
)
"""LanguageCode, in the order of its numbers."""

_RESPONSE, _ONE_WAY = 1, 2  # bits of `flag`
_LENGTH = Layout(">i")
_LENGTH_AND_WORD = Layout(">ii")  # the beginning of a frame
_FIXED = Layout(">hbhii")  # code, language, version, opaque and flag in the serialization ROCKETMQ
_SHORT_LENGTH = Layout(">h")


class SerializeType(IntEnum):
    """The serialization of a header."""

    JSON = 0
    ROCKETMQ = 1


class Header(Struct, frozen=True):
    """The header of a request or a response."""

    code: int  # what is requested, or the outcome
    opaque: int  # id of the request, which its response repeats
    flag: int = 0  # bits: a response, or a request without one
    language: str = "JAVA"
    version: int = 0  # ordinal of MQVersion
    remark: str | None = None  # the reason of an error
    ext_fields: dict[str, str] = {}  # an empty value can only be sent as JSON
    serialize_type: SerializeType = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        """True for a response."""
        return bool(self.flag & _RESPONSE)

    @property
    def is_one_way(self) -> bool:
        """True for a request that gets no response."""
        return bool(self.flag & _ONE_WAY)


def header_length(length: int, word: int, frame_max_bytes: int = FRAME_MAX_BYTES) -> int:
    """Return the length of the header. `length` and `word` begin the frame. Raises MalformedFrame."""
    if not WORD_BYTES <= length <= frame_max_bytes:
        raise MalformedFrame(f"a frame of {length} bytes")
    header_bytes = word & 0xFFFFFF
    if header_bytes > min(length - WORD_BYTES, HEADER_MAX_BYTES):
        raise MalformedFrame(f"a header of {header_bytes} bytes in a frame of {length}")
    return header_bytes


def decode_header(word: int, header: bytes) -> Header:
    """Decode the header of a frame. `word` has its serialization and length. Raises MalformedFrame."""
    if len(header) != word & 0xFFFFFF or len(header) > HEADER_MAX_BYTES:
        raise MalformedFrame(f"a header of {len(header)} bytes")
    match word >> 24 & 0xFF:
        case SerializeType.JSON:
            return _decode_json(header)
        case SerializeType.ROCKETMQ:
            return _decode_rocketmq(header)
        case unknown:
            raise MalformedFrame(f"serialization {unknown}")


def encode_frame(header: Header, body: bytes = b"") -> bytes:
    """Encode a frame, in the serialization of its header."""
    encoded = (
        _encode_json(header) if header.serialize_type is SerializeType.JSON else _encode_rocketmq(header)
    )
    length = WORD_BYTES + len(encoded) + len(body)
    return _LENGTH_AND_WORD.pack(length, header.serialize_type << 24 | len(encoded)) + encoded + body


def response_to(
    request: Header, code: int, remark: str | None = None, ext_fields: Mapping[str, str] | None = None
) -> Header:
    """Return the header of the response to a request."""
    return Header(
        code,
        request.opaque,
        flag=_RESPONSE,
        version=CURRENT_VERSION,
        remark=remark,
        ext_fields=dict(ext_fields or {}),
        serialize_type=request.serialize_type,
    )


# fastjson reads an object with "$ref" as a reference to another object, and "@type" as a class name.
_SPECIAL_NAMES = frozenset({"$ref", "@type"})
_Scalar = str | int | bool | None


class _JsonHeader(Struct, rename="camel"):
    """A header in JSON. Fields that were not sent are UNSET."""

    code: Int32
    opaque: Int32
    flag: Int32 | UnsetType = UNSET
    language: str | UnsetType = UNSET
    version: Int32 | UnsetType = UNSET
    remark: str | UnsetType | None = UNSET
    ext_fields: dict[str, _Scalar] | UnsetType | None = UNSET
    # Ignored, because RocketMQ, too, takes the serialization from the header word.
    serialize_type: str | UnsetType | None = msgspec.field(default=UNSET, name="serializeTypeCurrentRPC")
    # No client sends these two fields, but RocketMQ reads them, and refuses other types.
    suspended: bool | UnsetType = UNSET
    body: UnsetType | None = UNSET


_JSON_DECODER = Decoder(_JsonHeader)
_JSON_NAMES = strict_json.names_of(_JsonHeader)


def _decode_json(data: bytes) -> Header:
    header = strict_json.decode(data, _JSON_DECODER)
    ext_fields, values = header.ext_fields or {}, astuple(header)
    # The number of names that were decoded: the fields that are not UNSET, and the names in extFields.
    name_count = len(values) - values.count(UNSET) + len(ext_fields)
    strict_json.check_names(data, name_count, _JSON_NAMES, any_names="extFields")
    language = "JAVA" if header.language is UNSET else header.language
    if language not in LANGUAGES:
        raise MalformedFrame(f"language {language!r}")
    return Header(
        header.code,
        header.opaque,
        header.flag or 0,
        language,
        header.version or 0,
        header.remark or None,
        _texts(ext_fields),
    )


def _texts(fields: dict[str, _Scalar]) -> dict[str, str]:
    """Return the extFields, with all values as texts and without null values. Raises MalformedFrame."""
    if len(fields) > EXT_FIELDS_MAX:
        raise MalformedFrame(f"{len(fields)} extFields")
    if not _SPECIAL_NAMES.isdisjoint(fields):
        raise MalformedFrame("an extField with a name that is special to fastjson")
    if set(map(type, fields.values())) <= {str}:
        return fields  # type: ignore[return-value]
    # Clients in other languages than Java send numbers and booleans.
    return {name: _text(value) for name, value in fields.items() if value is not None}


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _decode_rocketmq(data: bytes) -> Header:
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(data)
        remark, at = _read_text(data, _FIXED.size, _LENGTH)
        (fields_bytes,) = _LENGTH.unpack_from(data, at)
    except struct.error:
        raise MalformedFrame("a header that ends too early") from None
    at += _LENGTH.size
    if fields_bytes != len(data) - at:
        raise MalformedFrame(f"extFields of {fields_bytes} bytes in the last {len(data) - at} of a header")
    if not 0 <= language < len(LANGUAGES):
        raise MalformedFrame(f"language {language}")
    return Header(
        code,
        opaque,
        flag,
        LANGUAGES[language],
        version,
        remark or None,
        _read_fields(data, at),
        SerializeType.ROCKETMQ,
    )


def _read_fields(data: bytes, at: int) -> dict[str, str]:
    """Return the extFields from `at` to the end. Raises MalformedFrame."""
    fields: dict[str, str] = {}
    while at < len(data):
        try:
            name, at = _read_text(data, at, _SHORT_LENGTH)
            value, at = _read_text(data, at, _LENGTH)
        except struct.error:
            raise MalformedFrame("an extField that ends too early") from None
        if not name or name in fields:
            raise MalformedFrame(f"extField {name!r} twice" if name else "an extField without a name")
        fields[name] = value
        if len(fields) > EXT_FIELDS_MAX:
            raise MalformedFrame(f"more than {EXT_FIELDS_MAX} extFields")
    # RocketMQ reads empty values as null.
    return {name: value for name, value in fields.items() if value}


def _read_text(data: bytes, at: int, length_layout: Layout) -> tuple[str, int]:
    """Read a length and a text from `at` on. Return the text and the position after it.

    Raises MalformedFrame, or struct.error if the length is incomplete.
    """
    (size,) = length_layout.unpack_from(data, at)
    begin = at + length_layout.size
    if not 0 <= size <= len(data) - begin:
        raise MalformedFrame(f"a text of {size} bytes in the last {len(data) - begin} of a header")
    try:
        return data[begin : begin + size].decode(), begin + size
    except UnicodeDecodeError as error:
        raise MalformedFrame(str(error)) from None


def _encode_json(header: Header) -> bytes:
    return msgspec.json.encode(
        {
            "code": header.code,
            "extFields": header.ext_fields,
            "flag": header.flag,
            "language": header.language,
            "opaque": header.opaque,
            **({} if header.remark is None else {"remark": header.remark}),
            "serializeTypeCurrentRPC": header.serialize_type.name,
            "version": header.version,
        }
    )


def _encode_rocketmq(header: Header) -> bytes:
    remark = (header.remark or "").encode()
    ext_fields = b"".join(
        _encode_with_length(_SHORT_LENGTH, name) + _encode_with_length(_LENGTH, value)
        for name, value in header.ext_fields.items()
    )
    # As in RocketMQ, a code or version is truncated to 16 bits.
    fixed = _FIXED.pack(
        _int16(header.code),
        LANGUAGES.index(header.language),
        _int16(header.version),
        header.opaque,
        header.flag,
    )
    return b"".join((fixed, _LENGTH.pack(len(remark)), remark, _LENGTH.pack(len(ext_fields)), ext_fields))


def _encode_with_length(length_layout: Layout, text: str) -> bytes:
    encoded = text.encode()
    return length_layout.pack(len(encoded)) + encoded


def _int16(number: int) -> int:
    """Return the number of the lowest 16 bits, as Java's cast to short."""
    return (number + 0x8000) % 0x10000 - 0x8000
