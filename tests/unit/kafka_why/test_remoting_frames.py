"""Frames of RocketMQ's remoting protocol. What its own classes read is compared in tests/e2e/test_fuzz.py."""

from struct import pack, unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kafka_why.remoting.frames import (
    EXT_FIELDS_MAX,
    HEADER_MAX_BYTES,
    LANGUAGES,
    Header,
    SerializeType,
    decode_header,
    encode_frame,
    header_length,
    response_to,
)
from kafka_why.remoting.strict_json import MalformedFrame

_INT16, _INT32 = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
_HEADERS = st.builds(
    Header,
    code=_INT16,
    opaque=_INT32,
    flag=_INT32,
    language=st.sampled_from(LANGUAGES),
    version=_INT16,
    remark=_TEXTS | st.none(),
    ext_fields=st.dictionaries(_TEXTS, _TEXTS, max_size=5),
    serialize_type=st.sampled_from(SerializeType),
)


def _read(frame: bytes) -> tuple[Header, bytes]:
    length, word = unpack(">ii", frame[:8])
    assert length == len(frame) - 4
    end = 8 + header_length(length, word)
    return decode_header(word, frame[8:end]), frame[end:]


def _json(text: str | bytes) -> Header:
    header = text.encode() if isinstance(text, str) else text
    return decode_header(len(header), header)


@given(_HEADERS, st.binary(max_size=20))
def test_encoded_remoting_frame_is_read_back(header: Header, body: bytes) -> None:
    assert _read(encode_frame(header, body)) == (header, body)


@given(_HEADERS)
def test_response_has_the_requests_opaque_and_serialization(request: Header) -> None:
    header, _ = _read(encode_frame(response_to(request, 1, "no", {"a": "b"})))
    assert header.is_response
    assert not header.is_one_way
    assert (header.code, header.remark, header.ext_fields) == (1, "no", {"a": "b"})
    assert (header.opaque, header.serialize_type) == (request.opaque, request.serialize_type)


def test_code_of_32_bits_is_cut_as_by_rocketmq() -> None:
    header = Header(200_050, 1, serialize_type=SerializeType.ROCKETMQ)
    assert _read(encode_frame(header))[0] == structs.replace(header, code=3_442)


def test_ext_fields_become_text_and_unknown_names_are_ignored() -> None:
    header = _json('{"later":1,"code":1,"opaque":2,"extFields":{"a":12,"b":true,"c":null,"d":"","e":-3}}')
    assert header.ext_fields == {"a": "12", "b": "true", "d": "", "e": "-3"}


@pytest.mark.parametrize(
    "text",
    [
        '{"code":1,"opaque":2,"code":3}',
        '{"code" :1,"opaque" :2,"code" :3}',
        '{"code":1,"opaque":2,"extFields":{"a":"1","a":"\\u003a"}}',
        '{"code":1,"opaque":2,"extFields":{"a":"1","\\u0061":"2"}}',
        '{"code":1,"opaque":2,/**/"flag":0}',
        "{'code':1,\"opaque\":2}",
        '{code:1,"opaque":2}',
        '{"code":1,"opaque":2,}',
        '{"code":1,"opaque":2}{}',
        '{"code":1,"opaque":2,"@type":"x"}',
        '{"code":1,"opaque":2,"Flag":2}',
        '{"code":"1","opaque":2}',
        '{"code":1.0,"opaque":2}',
        '{"code":1,"opaque":2147483648}',
        '{"code":1}',
        '{"code":1,"opaque":2,"language":"COBOL"}',
        '{"code":1,"opaque":2,"extFields":{"a":{}}}',
        '{"code":1,"opaque":2,"extFields":{"$ref":"$"}}',
        '{"code":1,"opaque":2,"remark":"\\x41"}',
        '{"code":1,"opaque":2,"remark":"\\ud800"}',
        b'{"code":1,"opaque":2,"remark":"\xff"}',
        '\ufeff{"code":1,"opaque":2}',
        "[" * HEADER_MAX_BYTES,
        "null",
        "",
    ],
)
def test_ambiguous_json_header_is_refused(text: str | bytes) -> None:
    with pytest.raises(MalformedFrame):
        _json(text)


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        (pack(">h", 1) + b"a" + pack(">i", 1) + b"b", 7),  # RocketMQ would read on in the body
        (pack(">h", 1) + b"a" + pack(">i", 1) + b"b", 9),
        (pack(">h", 1) + b"a" + pack(">i", 1) + b"b", -1),
        ((pack(">h", 1) + b"a" + pack(">i", 1) + b"b") * 2, None),
        (pack(">h", 1) + b"a" + pack(">i", 2) + b"b", None),
        (pack(">h", 1) + b"a" + pack(">i", -1) + b"b", None),
        (pack(">h", -1) + b"a", None),
        (pack(">h", 0) + pack(">i", 1) + b"b", None),
        (pack(">h", 1) + b"\xff" + pack(">i", 1) + b"b", None),
        (b"\0", None),
    ],
)
def test_rocketmq_fields_that_do_not_fill_their_bytes_are_refused(fields: bytes, size: int | None) -> None:
    header = pack(">hbhiiii", 34, 0, 513, 7, 0, 0, len(fields) if size is None else size) + fields
    with pytest.raises(MalformedFrame):
        decode_header(1 << 24 | len(header), header)


def test_frame_or_header_beyond_its_bound_is_refused() -> None:
    assert header_length(4, 0) == 0
    for length, word in ((3, 0), (-1, 0), (16_777_217, 0), (10, 7), (100_000, HEADER_MAX_BYTES + 1)):
        with pytest.raises(MalformedFrame):
            header_length(length, word)
    for serialization in (2, 255):
        with pytest.raises(MalformedFrame):
            decode_header(int.from_bytes(bytes([serialization, 0, 0, 0]), signed=True), b"")
    many = {str(number): "x" for number in range(EXT_FIELDS_MAX + 1)}
    for kind in SerializeType:
        with pytest.raises(MalformedFrame):
            _read(encode_frame(Header(1, 2, ext_fields=many, serialize_type=kind)))
