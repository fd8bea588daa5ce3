"""Samples of the fuzz campaigns: the gateways read what Kafka and RocketMQ read. The campaigns also have to
find planted bugs.
"""

import struct
from collections.abc import Callable, Iterator
from enum import StrEnum
from random import Random

import pytest

from gateway.wire import codec, framing
from gateway.wire.framing import ProtocolError, RequestHeader
from kafka_why.remoting import bodies, frames
from kafka_why.wire import primitives, schema_reader
from kafka_why.wire.schema_reader import ELEMENTS_MAX, EntryBudget, Pause, SchemaReader
from tests.fuzz.__main__ import campaign
from tests.fuzz.frames import APIS, Frames
from tests.fuzz.judge import Judge
from tests.fuzz.remoting_frames import INTACT, RemotingFrames
from tests.fuzz.remoting_judge import ALIKE, RemotingJudge
from tests.harness.examples import scaled
from tests.harness.kafkas_reader import KafkasReader, RocketmqsReader, kafkas_reader, rocketmqs_reader

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

SEED, FRAMES, FRAMES_FOR_A_BUG = 1, 30_000, 10_000
REMOTING_FRAMES, INTACT_FRAMES = 10_000, 2_000
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkasReader]:
    with kafkas_reader() as reader:
        yield reader


@pytest.mark.examples
def test_gateway_and_kafka_read_frames_alike(kafka: KafkasReader) -> None:
    judge = Judge(kafka)
    assert [*campaign(judge, Frames(Random(SEED)), scaled(FRAMES))] == []
    assert len(judge.passed) == len(APIS)


def old_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number as the gateway once did: 35 bits, of any length."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise ProtocolError("a message that ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ProtocolError("a number of more than 32 bits")


def plant_varint(patch: pytest.MonkeyPatch) -> None:
    for module in (framing, primitives, schema_reader):
        patch.setattr(module, "read_varint", old_varint)


def plant_passing_tags(patch: pytest.MonkeyPatch) -> None:
    """Plant the gateway's old reader, which also accepts unknown tags."""
    plant_varint(patch)
    patch.setattr(codec, "decode_passed", codec.decode_request)


def plant_long_strings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schema_reader, "STRING_MAX_BYTES", 2**31)


def plant_unordered_tags(patch: pytest.MonkeyPatch) -> None:
    def next_tag(data: bytes, at: int, last: int) -> tuple[int, int, int]:
        return primitives.next_tag(data, at, -1)

    patch.setattr(schema_reader, "next_tag", next_tag)


def plant_rest(patch: pytest.MonkeyPatch) -> None:
    """Plant a reader that ignores bytes after the end."""

    class Reader(SchemaReader):
        def read(
            self, message: bytes, at: int, pause: Pause | None = None, elements_max: int = ELEMENTS_MAX
        ) -> object:
            try:
                return self._read(message, at, EntryBudget(elements_max, pause))[0]
            except (ValueError, IndexError, struct.error) as why:
                raise ProtocolError(str(why)) from why

    codec._reader.cache_clear()
    patch.setattr(codec, "SchemaReader", Reader)


def plant_headers(patch: pytest.MonkeyPatch) -> None:
    """Plant a reader for which the body begins after the client id, as if no header had tags."""

    def body_at(header: RequestHeader, message: bytes) -> int:
        flexible = codec.REQUESTS[header.api_key].flexible_version_q(header.api_version)
        return header.client_id_end + int(flexible)

    patch.setattr(codec, "_body_at", body_at)


PLANTS: list[Plant] = [
    plant_varint,
    plant_passing_tags,
    plant_long_strings,
    plant_unordered_tags,
    plant_rest,
    plant_headers,
]


@pytest.mark.parametrize("plant", PLANTS)
def test_fuzz_campaign_finds_the_planted_bug(
    kafka: KafkasReader, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    try:
        assert any(campaign(Judge(kafka), Frames(Random(SEED)), FRAMES_FOR_A_BUG))
    finally:
        codec._reader.cache_clear()


@pytest.fixture(scope="module")
def rocketmqs() -> Iterator[RocketmqsReader]:
    with rocketmqs_reader() as reader:
        yield reader


@pytest.mark.examples
def test_gateway_and_rocketmq_read_frames_alike(rocketmqs: RocketmqsReader) -> None:
    judge = RemotingJudge(rocketmqs)
    assert [*campaign(judge, RemotingFrames(Random(SEED)), scaled(REMOTING_FRAMES))] == []


def test_intact_frame_is_read_by_gateway_and_rocketmq(rocketmqs: RocketmqsReader) -> None:
    judge = RemotingJudge(rocketmqs)
    assert [*campaign(judge, RemotingFrames(Random(SEED), INTACT), INTACT_FRAMES)] == []
    assert judge.counts[ALIKE] == INTACT_FRAMES, judge.counts


def plant_references(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(frames, "_SPECIAL_NAMES", frozenset[str]())


def plant_lost_bytes(patch: pytest.MonkeyPatch) -> None:
    """Plant a reader that replaces invalid UTF-8 in another way than RocketMQ does."""

    def read_text(data: bytes, at: int, length: struct.Struct) -> tuple[str, int]:
        (size,) = length.unpack_from(data, at)
        begin = at + length.size
        return data[begin : begin + size].decode(errors="ignore"), begin + size

    patch.setattr(frames, "_read_text", read_text)


def plant_defaults(patch: pytest.MonkeyPatch) -> None:
    """Plant a reader that turns an unknown enumeration value into the first one, not into null."""

    def enumeration(kind: type[StrEnum], sent: str | int) -> StrEnum:
        values = list(kind)
        return (
            values[sent % len(values)]
            if isinstance(sent, int)
            else kind.__members__.get(sent.upper(), values[0])
        )

    patch.setattr(bodies, "_parse_enumeration", enumeration)


@pytest.mark.parametrize("plant", [plant_references, plant_lost_bytes, plant_defaults])
def test_remoting_fuzz_campaign_finds_the_planted_bug(
    rocketmqs: RocketmqsReader, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(campaign(RemotingJudge(rocketmqs), RemotingFrames(Random(SEED)), FRAMES_FOR_A_BUG))
