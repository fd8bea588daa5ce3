"""Groups that share a keyed state: everything that is promised is promised for each group."""

from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from kafka_why.contract.codec import unpack
from state.config import Configs, CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.protocol import Received
from streaming.query.admission import MAX_SHARDS
from tests.harness.examples import examples
from tests.harness.operator_call import OPERATOR, call, contents, spark_state
from tests.harness.simulated_broker import StoredRecord
from tests.harness.simulated_query import Batch, Store, run_batch
from tests.spark import recorded_log
from tests.spark.harness import Written
from tests.spark.log import LAYOUT, T0, Log, heartbeat, join
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


@examples(20)
@given(st.integers(0, 2**32), st.sampled_from([1, 64, MAX_SHARDS]))
def test_number_of_shards_and_batches_does_not_change_the_outcome(seed: int, shards: int) -> None:
    """Batching invariance with packs, for groups that share a state. One state for a group takes no packs."""
    rows = recorded_log.record(seed, 120, CONFIG, packs=shards < MAX_SHARDS)
    partitions, attested_ms = recorded_log.with_clock(rows, seed)
    store, written = Store(), list[Written]()
    for number, records in enumerate(recorded_log.cut(partitions, 6, seed)):
        stored = [StoredRecord(LAYOUT.requests_topic, *record, ()) for record in records]
        batch = Batch(stored, store.next_watermark_ms, Configs(CONFIG), frozenset(), ())
        for out in chain.from_iterable(run_batch(LAYOUT, shards, step, store, batch)):
            parts = [None] if out.value is None else unpack(out.value)
            written += [Written(number, out.topic, out.partition, out.key, part) for part in parts]
    assert said_once(written) == recorded_log.expected(rows, attested_ms, CONFIG)
