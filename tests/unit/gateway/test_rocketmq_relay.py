"""The relay of one direction: frames pass whole and unchanged, however their bytes are cut."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.rocketmq.frame_relay import FrameHandling, FrameRelay
from kafka_why.remoting.frames import FRAME_MAX_BYTES, Header, SerializeType, encode_frame
from kafka_why.remoting.strict_json import MalformedFrame
from tests.harness.examples import examples

FORWARD, HOLD, DROP = FrameHandling
HANDLING = {10: FORWARD, 34: HOLD, 40: DROP}


class Recorder:
    """A relay with what it has written and held."""

    def __init__(self, *, is_trusted: bool = False, suspends: bool = False) -> None:
        self.written, self.held, self._suspends = bytearray(), list[tuple[int, bytes]](), suspends
        self.relay = FrameRelay(
            FRAME_MAX_BYTES,
            lambda header, _: HANDLING[header.code],
            self._take,
            self.written.extend,
            is_trusted=is_trusted,
        )

    def _take(self, header: Header, frame: bytes, body_at: int) -> None:
        self.held.append((header.opaque, frame[body_at:]))
        self.relay.is_suspended = self._suspends


FRAMES = st.tuples(st.sampled_from(sorted(HANDLING)), st.sampled_from(SerializeType), st.binary(max_size=300))


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(1, 120), min_size=1), st.booleans())
@examples(100)
def test_frames_pass_in_order_whatever_pieces_arrive(
    frames: list[tuple[int, SerializeType, bytes]], cuts: list[int], suspends: bool
) -> None:
    recorder = Recorder(suspends=suspends)
    encoded = [
        (code, number, encode_frame(Header(code, number, serialize_type=kind), body), body)
        for number, (code, kind, body) in enumerate(frames)
    ]
    data, own, turn = b"".join(frame for _, _, frame, _ in encoded), list[bytes](), 0
    while data:
        size = cuts[turn % len(cuts)]
        recorder.relay.feed(data[:size])
        own.append(encode_frame(Header(10, 1_000 + turn)))
        recorder.relay.insert(own[-1])
        if recorder.relay.is_suspended:
            recorder.relay.resume()
        data, turn = data[size:], turn + 1
    while recorder.relay.is_suspended:
        recorder.relay.resume()
    left = bytes(recorder.written)
    for frame in own:
        assert left.count(frame) == 1
        left = left.replace(frame, b"")
    assert left == b"".join(frame for code, _, frame, _ in encoded if code == 10)
    assert recorder.held == [(number, body) for code, number, _, body in encoded if code == 34]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ("00000003 00000000", "a frame of 3 bytes"),
        ("ffffffff 00000000", "a frame of -1 bytes"),
        ("01000001 00000000", "a frame of 16777217 bytes"),
        (b"GET / HTTP/1.1\r\n".hex(), "a frame of 1195725856 bytes"),
        (b"PROXY TCP4 1.2.3.4".hex(), "a frame of 1347571544 bytes"),
        ("00000010 0000000d", "a header of 13 bytes in a frame of 16"),
        ("00ffffff 00040001", "a header of 262145 bytes in a frame of 16777215"),
        ("00000006 09000002 0000", "serialization 9"),
        ("00000006 00000002 7b7b", "malformed"),
    ],
)
def test_malformed_frame_is_refused_before_its_bytes_are_kept(sent: str, why: str) -> None:
    recorder = Recorder()
    with pytest.raises(MalformedFrame, match=re.escape(why)):
        recorder.relay.feed(bytes.fromhex(sent))
    assert not recorder.written
    assert recorder.relay.buffered_bytes == 0


def test_unreadable_frame_of_a_broker_passes() -> None:
    recorder, frame = Recorder(is_trusted=True), bytes.fromhex("00000008 00000002 7b7b 0102")
    recorder.relay.feed(frame)
    assert recorder.written == frame
