"""The decoding of telemetry pushes: every compression of Kafka's clients, within the limits."""

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
    PARTS_MAX,
    CompressionType,
    Decompressor,
    PayloadError,
    ResourceMetrics,
    read_metrics,
)
from gateway.telemetry.service import MAX_BYTES, PREFIX, record_of
from kafka_why.contract.codec import encode
from kafka_why.contract.messages import RECORD_VERSION
from kafka_why.contract.telemetry import LAST_POLL, POLL_IDLE_RATIO, MemberTelemetry, decode_telemetry
from tests.harness.otlp import metric, part, pushed, resource_metrics, tag, text

# What kafka-clients 4.4.0 (ClientTelemetryUtils.compress) makes of one MetricsData, in base64.
KAFKAS = json.loads(Path(__file__).parents[2].joinpath("data/telemetry_kafka_4_4.json").read_text())
ME = {"group_id": "orders", "group_instance_id": "worker-2", "group_member_id": "worker-2-1"}
BOMB_BYTES = 64 * 1024 * 1024
POOL_MAX_BYTES = 2 * 1024 * 1024  # pyarrow reads 1 MiB at a time
PUSH = MemberTelemetry(
    version=RECORD_VERSION,
    group_id="",
    member_id="",
    metrics={},
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
def test_telemetry_of_kafkas_clients_is_decoded(decompressor: Decompressor, kind: CompressionType) -> None:
    payload = base64.b64decode(KAFKAS[kind.name.lower()])
    found = read_metrics(decompressor.decompress(payload, kind))
    assert [resource.attributes for resource in found] == [ME] * 3
    values = {name: value for resource in found for name, value in resource.values.items()}
    assert values.keys() == {
        PREFIX + LAST_POLL,
        PREFIX + POLL_IDLE_RATIO,
        f"{PREFIX}consumer.time.between.poll.max",
    }
    record = record_of(found, PUSH)
    assert record is not None
    assert record.metrics == {LAST_POLL: 302.0, POLL_IDLE_RATIO: 0.25}, "NaN is an average of nothing"


def test_raw_snappy_of_librdkafka_is_read(decompressor: Decompressor) -> None:
    plain = pushed({"group_id": "g", "member_id": "m"}, {POLL_IDLE_RATIO: 0.5})
    block = pyarrow.Codec("snappy").compress(plain).to_pybytes()
    record = record_of(read_metrics(decompressor.decompress(block, CompressionType.SNAPPY)), PUSH)
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
def test_telemetry_payload_is_read_up_to_exactly_the_size_limit(
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


def test_unknown_fields_of_metrics_data_are_skipped() -> None:
    unknown = tag(99, 0) + b"\x7f" + tag(98, 1) + bytes(8) + tag(97, 5) + bytes(4) + part(96, b"\xff")
    scope = part(2, metric("a", 3, kind=7) + unknown) + unknown
    payload = unknown + part(
        1, part(2, scope) + unknown + part(1, part(1, text(1, "k") + part(2, b"\x18\1")))
    )
    assert read_metrics(payload) == [ResourceMetrics({}, {"a": 3.0})], "a number is no text attribute"


@pytest.mark.parametrize(
    "payload",
    [
        tag(0, 2) + b"\0",  # no field has this number
        tag(1, 2) + b"\5\0",  # a field that is longer than its message
        part(1, tag(2, 2) + b"\5\0"),
        b"\x80" * 11,
        tag(1, 2),
        part(1, part(1, part(1, part(1, b"\xff")))),  # a text that is not UTF-8
    ],
)
def test_malformed_metrics_data_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadError, match="not a MetricsData"):
        read_metrics(payload)


@pytest.mark.parametrize(
    "payload",
    [
        part(1, b"") * (PARTS_MAX + 1),
        part(1, part(2, b"") * PARTS_MAX),
        part(1, part(1, part(1, b"") * PARTS_MAX)),
        resource_metrics({}, [metric("a", 1.0)] * (PARTS_MAX - 1)),
    ],
    ids=["resources", "scopes", "attributes", "metrics"],
)
def test_metrics_data_with_too_many_parts_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadError, match="more than 1000 resources"):
        read_metrics(payload)


def test_metrics_data_with_the_maximum_number_of_parts_is_read() -> None:
    metrics = [metric(str(number), number) for number in range(PARTS_MAX - 2)]
    assert len(read_metrics(resource_metrics({}, metrics))[0].values) == PARTS_MAX - 2


@given(st.binary(max_size=200))
def test_random_bytes_do_not_break_the_metrics_reader(payload: bytes) -> None:
    _read(lambda: read_metrics(payload))


@given(st.data())
def test_damaged_payload_does_not_break_the_metrics_reader(data: st.DataObject) -> None:
    payload = bytearray(pushed(ME, {LAST_POLL: 1.0, POLL_IDLE_RATIO: 0.5}))
    for at in data.draw(st.lists(st.integers(0, len(payload) - 1), min_size=1, max_size=4)):
        payload[at] = data.draw(st.integers(0, 255))
    whole = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    record = _read(lambda: record_of(read_metrics(whole), PUSH))
    if record is not None:
        assert decode_telemetry(encode(record), MemberTelemetry) == record, (
            "every record can be written and read"
        )


@given(st.sampled_from(ACCEPTED), st.binary(max_size=100), st.data())
def test_random_compressed_data_does_not_break_the_decompressor(
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
    record = record_of(read_metrics(pushed(ME, {LAST_POLL: 1.0})), PUSH)
    assert record is not None
    assert decode_telemetry(encode(record), MemberTelemetry) == record
    later = encode(record).replace(b'"version":1', b'"version":2')
    assert decode_telemetry(later, MemberTelemetry) is None
    assert decode_telemetry(b"{}", MemberTelemetry) is None
    assert isinstance(record, MemberTelemetry)


@given(st.floats(), st.floats())
def test_only_numeric_client_metrics_are_read(last_poll: float, idle: float) -> None:
    record = record_of(read_metrics(pushed(ME, {LAST_POLL: last_poll, POLL_IDLE_RATIO: idle})), PUSH)
    said = {LAST_POLL: last_poll, POLL_IDLE_RATIO: idle}
    kept = {name: value for name, value in said.items() if 0 <= value < float("inf")}
    assert (None if record is None else record.metrics) == (kept or None)
