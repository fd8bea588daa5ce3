"""Groups that share a keyed state: everything that is promised is promised for each group."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from kafka_why.contract.codec import unpack
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.inputs import Received
from streaming.query.admission import MAX_SHARDS, shard_of
from tests.harness.examples import examples
from tests.harness.operator_call import OPERATOR, call, contents, spark_state
from tests.spark import recorded_log
from tests.spark.harness import Written, make_operator
from tests.spark.log import LAYOUT, T0, Log, Record, heartbeat, join
from tests.spark.test_cuttings import said_once

CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=3_000)


def entries(state: SparkGroupState) -> dict[str, codec.StoredGroup]:
    return codec.read_row("shard 0", *state.get)


def test_fault_in_one_group_leaves_others_of_its_shard_unchanged() -> None:
    def faulty(
        group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        effects = step(group, group_id, event, now_ms, config)
        if group_id == "a" and not isinstance(event, Received) and "Deadline" in type(event).__name__:
            raise ValueError("a deadline of group a")
        return effects

    log, state = Log(), spark_state()
    call([*log.stable_member(T0, "a")[0], *log.stable_member(T0, "b")[0]], state)
    late = spark_state(tuple(state.get), watermark_ms=T0 + 10_000)
    frames = call([], late, operator=replace(OPERATOR, step=faulty))
    types = {(event["group_id"], event["type"]) for event in contents(frames, LAYOUT.events_topic)}
    assert ("a", "Quarantined") in types
    assert {kind for group_id, kind in types if group_id == "b"} >= {"MemberRemoved", "Empty"}
    assert entries(late)["a"].next_deadline_ms is None, "the deadlines of a quarantined group stand still"


def test_damaged_group_is_named_and_stops_reading_the_others() -> None:
    log, state = Log(), spark_state()
    call([*log.stable_member(T0, "a")[0], *log.stable_member(T0, "b")[0]], state)
    damaged = {**entries(state), "b": codec.StoredGroup(codec.STATE_VERSION, None, b"\xc1")}
    row = codec.write_row(damaged)
    frames = call([log.request(T0 + 1, heartbeat("a", "nobody"))], spark_state(row))
    assert contents(frames, LAYOUT.responses_topic)
    with pytest.raises(Exception, match="the state of group 'b'"):
        call([log.request(T0 + 1, join("b"))], spark_state(row))


class Shards:
    """The operator's calls of a query, batch by batch, as Spark makes them."""

    def __init__(self, shards: int) -> None:
        self._operator = replace(make_operator(group_initial_rebalance_delay_ms=3_000), shards=shards)
        self._rows: dict[int, tuple[int, bytes]] = {}
        self._timeouts: dict[int, int] = {}
        self._watermark_ms = 0
        self.written: list[Written] = []

    def run(self, batch: int, records: Sequence[Record]) -> None:
        by_shard: dict[int, list[Record]] = {}
        clock_ms = self._watermark_ms
        for record in records:
            if record.key is None:
                clock_ms = max(clock_ms, recorded_log.claim_of(record))
            else:
                by_shard.setdefault(self._shard_of(record), []).append(record)
        for shard, rows in by_shard.items():
            self._call(batch, shard, rows)
        for shard, timeout_ms in sorted(self._timeouts.items()):
            if timeout_ms < self._watermark_ms:
                self._call(batch, shard, [])
        self._watermark_ms = clock_ms

    def _shard_of(self, record: Record) -> int:
        assert record.value is not None
        assert record.key is not None
        request = recorded_log.first_request_of(record)
        return shard_of(request, record.partition, self._operator.shards)

    def _call(self, batch: int, shard: int, rows: Sequence[Record]) -> None:
        state = spark_state(self._rows.get(shard), watermark_ms=self._watermark_ms, timed_out=not rows)
        frames = call(rows, state, operator=self._operator, shard=shard)
        self._timeouts.pop(shard, None)
        self._rows.pop(shard, None)
        if state.exists:
            self._rows[shard] = tuple(state.get)
            if state._timeout_timestamp >= 0:
                self._timeouts[shard] = state._timeout_timestamp
        for frame in frames:
            for topic, partition, key, value in frame.itertuples(index=False):
                if topic is not None:
                    parts = [None] if value is None else unpack(value)
                    self.written += [Written(batch, topic, partition, key, part) for part in parts]


@examples(20)
@given(st.integers(0, 2**32), st.sampled_from([1, 64, MAX_SHARDS]))
def test_number_of_shards_and_batches_does_not_change_the_outcome(seed: int, shards: int) -> None:
    """Batching invariance with packs, for groups that share a state. One state for a group takes no packs."""
    rows = recorded_log.record(seed, 120, CONFIG, packs=shards < MAX_SHARDS)
    partitions, attested_ms = recorded_log.with_clock(rows, seed)
    query = Shards(shards)
    for batch, records in enumerate(recorded_log.cut(partitions, 6, seed)):
        query.run(batch, records)
    assert said_once(query.written) == recorded_log.expected(rows, attested_ms, CONFIG)
