"""Frames, headers and schema validation for any bytes, cut in any way."""

import tracemalloc
from random import Random
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.framing import FrameBuffer, ProtocolError, framed, request_header

MAX_BYTES = 64
messages = st.lists(st.binary(max_size=MAX_BYTES), max_size=8)


@given(messages, st.data())
def test_frames_are_reassembled_from_any_fragmentation(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, sent))
    buffer, received, at = FrameBuffer(MAX_BYTES), [], 0
    while at < len(stream):
        end = data.draw(st.integers(at + 1, len(stream)))
        received += buffer.feed(stream[at:end])
        at = end
    assert received == sent
    assert not buffer.has_partial


@pytest.mark.parametrize("piece_bytes", [1, 100, 16_384, 20_000, 70_000, 400_000])
def test_large_frames_are_reassembled_from_pieces(piece_bytes: int) -> None:
    sent = [Random(number).randbytes(size) for number, size in enumerate((150_000, 3, 0, 65_532, 90_000))]
    stream = b"".join(map(framed, sent))
    buffer, received = FrameBuffer(2**20), []
    for at in range(0, len(stream), piece_bytes):
        received += buffer.feed(stream[at : at + piece_bytes])
    assert received == sent
    assert all(type(frame) is bytes for frame in received)


def test_frame_received_byte_by_byte_takes_little_more_memory_than_its_size() -> None:
    size = 2**18
    buffer, byte = FrameBuffer(size), b"x"
    buffer.feed(framed(bytes(size))[:4])
    tracemalloc.start()
    for _ in range(size - 1):
        buffer.feed(byte)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used_bytes < 1.5 * size


@given(st.integers(-(2**31), -1) | st.integers(MAX_BYTES + 1, 2**31 - 1))
def test_invalid_frame_size_is_refused_before_the_frame_is_received(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"a frame of {size} bytes"):
        FrameBuffer(MAX_BYTES).feed(pack(">i", size))


@given(st.binary(max_size=40))
def test_any_bytes_parse_as_a_header_or_raise_protocol_error(message: bytes) -> None:
    try:
        header = request_header(message)
    except ProtocolError:
        return
    length = -1 if header.client_id is None else len(header.client_id.encode())
    begin = pack(">hhih", header.api_key, header.api_version, header.correlation_id, length)
    assert message[: header.client_id_end] == begin + (header.client_id or "").encode()
