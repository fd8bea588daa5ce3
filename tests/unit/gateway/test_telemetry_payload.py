"""What is read of a push: every compression of Kafka's clients, and nothing beyond the bounds."""

import base64
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.otlp import (
    ACCEPTED,
    FIELDS_MAX,
    CompressionType,
    Decompressor,
    PayloadError,
    ResourceMetrics,
    read_metrics,
)
from gateway.telemetry.service import MAX_BYTES, PREFIX, Pusher, record_of
from kafka_why.contract.codec import encode
from kafka_why.contract.telemetry import LAST_POLL, POLL_IDLE_RATIO, MemberTelemetry, decode_telemetry
from tests.harness.otlp import metric, part, pushed, resource_metrics, tag, text

# What kafka-clients 4.4.0 (ClientTelemetryUtils.compress) makes of one MetricsData, in base64.
KAFKAS = json.loads(Path(__file__).parents[2].joinpath("data/telemetry_kafka_4_4.json").read_text())
ME = {"group_id": "orders", "group_instance_id": "worker-2", "group_member_id": "worker-2-1"}
BOMB_BYTES = 64 * 1024 * 1024
POOL_MAX_BYTES = 2 * 1024 * 1024  # pyarrow reads 1 MiB at a time
PUSHER = Pusher(
    client_instance_id="i",
    client_id="c",
    client_host="/h",
    principal="User:ANONYMOUS",
    push_interval_ms=1,
    terminating=False,
)


@pytest.fixture(scope="module")
def decompressor() -> Decompressor:
    return Decompressor(MAX_BYTES)


@pytest.mark.parametrize("kind", CompressionType)
def test_payloads_of_kafkas_clients_are_read(decompressor: Decompressor, kind: CompressionType) -> None:
    payload = base64.b64decode(KAFKAS[kind.name.lower()])
    found = read_metrics(decompressor.decompress(payload, kind))
    assert [resource.attributes for resource in found] == [ME] * 3
    values = {name: value for resource in found for name, value in resource.values.items()}
    assert values.keys() == {
        PREFIX + LAST_POLL,
        PREFIX + POLL_IDLE_RATIO,
        f"{PREFIX}consumer.time.between.poll.max",
    }
    record = record_of(found, PUSHER)
    assert record is not None
    assert record.metrics == {LAST_POLL: 302.0, POLL_IDLE_RATIO: 0.25}, "NaN is an average of nothing"


def test_raw_snappy_of_librdkafka_is_read(decompressor: Decompressor) -> None:
    plain = pushed({"group_id": "g", "member_id": "m"}, {POLL_IDLE_RATIO: 0.5})
    block = pyarrow.Codec("snappy").compress(plain).to_pybytes()
    record = record_of(read_metrics(decompressor.decompress(block, CompressionType.SNAPPY)), PUSHER)
    assert record is not None
    assert (record.group_id, record.member_id) == ("g", "m")


def compressed(kind: CompressionType, plain: bytes) -> bytes:
    if kind is CompressionType.SNAPPY:
        return bytes(pyarrow.Codec("snappy").compress(plain).to_pybytes())
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, kind.name.lower()) as stream:
        stream.write(plain)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("kind", ACCEPTED)
def test_decompression_bomb_stays_within_the_limit(decompressor: Decompressor, kind: CompressionType) -> None:
    bomb = compressed(kind, bytes(BOMB_BYTES))
    default = pyarrow.default_memory_pool()
    counting = pyarrow.proxy_memory_pool(default)
    tracemalloc.start()
    pyarrow.set_memory_pool(counting)
    try:
        with pytest.raises(PayloadError):
            decompressor.decompress(bomb, kind)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        pyarrow.set_memory_pool(default)
        tracemalloc.stop()
    assert peak < 4 * MAX_BYTES
    assert (counting.max_memory() or 0) < POOL_MAX_BYTES


@pytest.mark.parametrize("kind", CompressionType)
def test_payload_at_the_size_limit_is_read_and_one_byte_more_is_refused(
    decompressor: Decompressor, kind: CompressionType
) -> None:
    def make(plain: bytes) -> bytes:
        return plain if kind is CompressionType.NONE else compressed(kind, plain)

    assert decompressor.decompress(make(bytes(MAX_BYTES)), kind) == bytes(MAX_BYTES)
    with pytest.raises(PayloadError):
        decompressor.decompress(make(bytes(MAX_BYTES + 1)), kind)


def in_blocks(*blocks: bytes) -> bytes:
    """Return a stream of snappy-java."""
    return b"\x82SNAPPY\0" + bytes(8) + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


def test_snappy_blocks_count_together_towards_the_limit(decompressor: Decompressor) -> None:
    block = compressed(CompressionType.SNAPPY, bytes(MAX_BYTES // 2))
    both = in_blocks(block, block)
    assert decompressor.decompress(both, CompressionType.SNAPPY) == bytes(MAX_BYTES)
    framed = len(block).to_bytes(4, "big") + block
    for more in (framed, framed[:-1], b"\xff\xff\xff\xff", b"\0"):
        with pytest.raises(PayloadError):
            decompressor.decompress(both + more, CompressionType.SNAPPY)


@pytest.mark.parametrize("block_bytes", [1_024, 32 * 1_024])
def test_smallest_blocks_of_snappy_java_are_read(decompressor: Decompressor, block_bytes: int) -> None:
    block = compressed(CompressionType.SNAPPY, bytes(block_bytes))
    blocks = in_blocks(*[block] * (MAX_BYTES // block_bytes))
    assert decompressor.decompress(blocks, CompressionType.SNAPPY) == bytes(MAX_BYTES)


@pytest.mark.parametrize("plain", [b"", b"\0"])
def test_more_blocks_than_snappy_java_writes_are_refused(decompressor: Decompressor, plain: bytes) -> None:
    """13,000 empty ones are as large as one honest payload, and took 17 ms."""
    block = compressed(CompressionType.SNAPPY, plain)
    most = MAX_BYTES // 1_024
    assert decompressor.decompress(in_blocks(*[block] * most), CompressionType.SNAPPY) == plain * most
    with pytest.raises(PayloadError, match="more than 64 blocks"):
        decompressor.decompress(in_blocks(*[block] * 9_000), CompressionType.SNAPPY)


def test_unknown_fields_are_skipped_and_a_sum_is_read() -> None:
    unknown = tag(99, 0) + b"\x7f" + tag(98, 1) + bytes(8) + tag(97, 5) + bytes(4) + part(96, b"\xff")
    scope = part(2, metric("a", 3, kind=7) + unknown) + unknown
    payload = unknown + part(
        1, part(2, scope) + unknown + part(1, part(1, text(1, "k") + part(2, b"\x18\1")))
    )
    assert read_metrics(payload) == [ResourceMetrics({}, {"a": 3.0})], "a number is no text attribute"


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (tag(1, 0) + b"\1", "wire type 0"),  # a message that is a number
        (tag(1, 3), "wire type 3"),  # a group
        (tag(0, 2) + b"\0", "number 0"),
        (tag(1, 2) + b"\5\0", "longer than its message"),
        (part(1, tag(2, 2) + b"\5\0"), "longer than its message"),
        (b"\x80" * 11, "more than 10 bytes"),
        (tag(1, 2), "ends too early"),
        (resource_metrics({}, [text(1, "a") + part(5, part(1, tag(4, 0) + b"\1"))]), "wire type 0"),
        (part(1, part(1, part(1, part(1, b"\xff")))), "UTF-8"),
        ((tag(9, 0) + b"\1") * (FIELDS_MAX + 1), "fields"),
        (part(1, b"") * (FIELDS_MAX + 1), "fields"),
        (part(1, (tag(9, 0) + b"\1") * FIELDS_MAX), "fields"),
    ],
)
def test_malformed_metrics_data_is_refused(payload: bytes, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        read_metrics(payload)


@given(st.binary(max_size=200))
def test_random_bytes_do_not_break_the_metrics_reader(payload: bytes) -> None:
    _read(lambda: read_metrics(payload))


@given(st.data())
def test_damaged_payload_does_not_break_the_metrics_reader(data: st.DataObject) -> None:
    payload = bytearray(pushed(ME, {LAST_POLL: 1.0, POLL_IDLE_RATIO: 0.5}))
    for at in data.draw(st.lists(st.integers(0, len(payload) - 1), min_size=1, max_size=4)):
        payload[at] = data.draw(st.integers(0, 255))
    whole = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    record = _read(lambda: record_of(read_metrics(whole), PUSHER))
    if record is not None:
        assert decode_telemetry(encode(record)) == record, "every record can be written and read"


@given(st.sampled_from(ACCEPTED), st.binary(max_size=100), st.data())
def test_random_stream_does_not_break_the_decompressor(
    decompressor: Decompressor, kind: CompressionType, noise: bytes, data: st.DataObject
) -> None:
    stream = bytearray(base64.b64decode(KAFKAS[kind.name.lower()]))
    at = data.draw(st.integers(0, len(stream)))
    stream[at : at + data.draw(st.integers(0, 20))] = noise
    plain = _read(lambda: decompressor.decompress(bytes(stream), kind))
    assert plain is None or len(plain) <= MAX_BYTES


def _read(read: Callable[[], Any]) -> Any:
    """Return what is read, None if it is refused. Every other error is a fault."""
    try:
        return read()
    except PayloadError:
        return None


def test_telemetry_record_of_a_later_version_is_refused() -> None:
    record = record_of(read_metrics(pushed(ME, {LAST_POLL: 1.0})), PUSHER)
    assert record is not None
    assert decode_telemetry(encode(record)) == record
    later = encode(record).replace(b'"version":1', b'"version":2')
    assert decode_telemetry(later) is None
    assert decode_telemetry(b"{}") is None
    assert isinstance(record, MemberTelemetry)


@given(st.floats(), st.floats())
def test_only_numeric_metrics_are_read(last_poll: float, idle: float) -> None:
    record = record_of(read_metrics(pushed(ME, {LAST_POLL: last_poll, POLL_IDLE_RATIO: idle})), PUSHER)
    said = {LAST_POLL: last_poll, POLL_IDLE_RATIO: idle}
    kept = {name: value for name, value in said.items() if 0 <= value < float("inf")}
    assert (None if record is None else record.metrics) == (kept or None)
