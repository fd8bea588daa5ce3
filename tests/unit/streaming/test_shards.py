"""Groups that share a keyed state: everything that is promised is promised for each group."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Epoch, Identity
from kafka_why.contract.codec import unpack
from state.config import Configs, CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.protocol import Received
from streaming.query.admission import MAX_SHARDS
from streaming.query.operator import ConfigEpoch, take_unfinished_notes
from streaming.service.starts import config_epochs, unhandled_records
from tests.harness.checkpoints import spark_of
from tests.harness.examples import examples
from tests.harness.operator_call import CONFIG as BASE_CONFIG
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


def test_killed_worker_leaves_the_id_of_its_request(tmp_path: Path) -> None:
    """As by SIGKILL: nothing of the call runs any more."""
    prefix = str(tmp_path / "under-way")

    class Killed(BaseException):
        pass

    def deadly(
        group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        if group_id == "deadly":
            raise Killed
        return step(group, group_id, event, now_ms, config)

    log = Log()
    records, _ = log.stable_member(T0, "g")
    traced = replace(OPERATOR, step=deadly, notes_prefix=prefix)
    call(records, spark_state(), operator=traced)
    assert take_unfinished_notes(prefix) == [], "a call that comes to its end leaves nothing"
    deadly_record = log.request(T0 + 1, heartbeat("deadly", "m"))
    with pytest.raises(Killed):
        call([*records, deadly_record], spark_state(), operator=traced)
    record = f"{LAYOUT.requests_topic}-{deadly_record.partition}-{deadly_record.offset}"
    assert take_unfinished_notes(prefix) == [f"record {record}"]
    assert take_unfinished_notes(prefix) == [], "the notes are removed"


IDENTITY = Identity("cluster", "eu-requests", "topic", 2, "00000000-0000-0000-0000-000000000001", 64)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Batch 1 is planned and not committed. Record 7 of partition 0 was skipped by an earlier start."""
    checkpoint = Checkpoint.at(tmp_path)
    checkpoint.own(1)
    for log in ("offsets", "commits"):
        (spark_of(checkpoint) / log).mkdir(parents=True)
    for batch, end in ((0, 10), (1, 20)):
        plan = f'v1\n{{}}\n{{"eu-requests":{{"0":{end},"1":0}}}}'
        (spark_of(checkpoint) / "offsets" / str(batch)).write_text(plan)
    checkpoint.store_epoch({}, ["eu-requests-0-7"], "1", after_ms=0)
    (spark_of(checkpoint) / "commits" / "0").write_text("v1\n{}")
    return checkpoint


@pytest.mark.parametrize(
    ("record", "is_skipped"),
    [
        ("eu-requests-0-9", False),
        ("eu-requests-0-9#3", False),
        ("eu-requests-0-10", True),
        ("eu-requests-0-19#1", True),
        ("eu-requests-1-0", True),
        ("eu-requests-0-7", True),
    ],
)
def test_record_handled_by_a_committed_batch_is_not_skipped(
    checkpoint: Checkpoint, record: str, is_skipped: bool
) -> None:
    """A replay knows no batches. It skips what any configuration skips."""
    assert unhandled_records(checkpoint, "eu-requests", [record]) == [record] * is_skipped


def test_operator_receives_every_field_of_a_configuration() -> None:
    (epoch,) = config_epochs([Epoch(3, {"group.max.size": 5}, ["eu-requests-0-7"], "1", 900)], IDENTITY)
    expected = CoordinatorConfig(member_id_namespace=IDENTITY.member_id_namespace, group_max_size=5)
    assert (epoch.from_batch, epoch.after_ms, epoch.config) == (3, 900, expected)
    assert epoch.skip == {"eu-requests-0-7"}


STRICTER = replace(BASE_CONFIG, group_min_session_timeout_ms=20_000)


def test_rerun_batch_uses_the_configurations_of_its_first_run() -> None:
    epochs = (
        ConfigEpoch(0, BASE_CONFIG),
        ConfigEpoch(7, STRICTER, frozenset("x"), T0),
        ConfigEpoch(7, BASE_CONFIG, after_ms=T0 + 5),
    )
    operator = replace(OPERATOR, epochs=epochs)
    strict = {
        batch: [operator.configs(batch).at(T0 + n) is STRICTER for n in (0, 1, 6)] for batch in (6, 7, None)
    }
    assert strict == {6: [False] * 3, 7: [False, True, False], None: [False, True, False]}
    operator = replace(OPERATOR, epochs=epochs[:2])
    assert [operator.skip(batch) for batch in (6, 7, None)] == [frozenset(), frozenset("x"), frozenset("x")]
