"""The state of a checkpoint is read while its query runs, and the queries of docs/state.md run over it."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.codec import StoredGroup, decode_group
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from kafka_why.contract.rocketmq.requests import MessageModel, RegisterConsumer
from operations.stored.frames import answer_json, answer_text, create_views, schema_of
from operations.stored.rows import GroupRows, StateTable, rows_of
from state.kafka.context import new_member_id
from streaming.service.stored_state.moving import StateNotRead, StoredState, read_stored, retained_batches
from tests.harness.checkpoints import spark_of
from tests.spark.harness import Bench
from tests.spark.log import NAMESPACE, T0, Log, join, sync
from tests.spark.moved_story import GROUPS, LEAVING, SESSION_MS, Story
from tests.spark.test_moving import as_of_kafka

DOCS = Path(__file__).parents[2] / "docs" / "state.md"
HOLDERS, SHARED_CLIENT_IDS, OLD_OFFSETS = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)


def rows_in(state: StoredState) -> list[GroupRows]:
    found = sorted(state.groups, key=lambda group: group.group_id)
    return [
        rows_of(decode_group(it.group_id, StoredGroup(it.version, None, it.group)), it.version, state.config)
        for it in found
    ]


def listing(folder: Path) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.fixture
def running(bench: Bench, tmp_path: Path) -> Checkpoint:
    """Return the checkpoint of a running query that has run the story's batches 0 and 1."""
    story = Story()
    bench.run(story.first, story.cut_off)
    checkpoint = as_of_kafka(bench.folder / "spark", tmp_path / "coordinator")
    assert bench.query is not None
    assert bench.query.isActive
    return checkpoint


def test_reading_the_state_of_a_batch_writes_nothing(bench: Bench, running: Checkpoint) -> None:
    before = listing(spark_of(running))
    newest, first = read_stored(running, bench.spark), read_stored(running, bench.spark, 0)
    assert listing(spark_of(running)) == before
    assert (newest.batch, newest.watermark_ms) == (1, T0 + 2_000)
    offsets = {row.group.group_id: [o.offset for o in row.offsets] for row in rows_in(newest)}
    assert offsets == {g: [41 if g == "d" else 42] if g != "d" else [] for g in GROUPS}
    now, then = ({row.group.group_id: row for row in rows_in(state)} for state in (newest, first))
    assert (then[LEAVING].group.state, now[LEAVING].group.state) == ("Stable", "Empty")
    assert [m.deadline_ms for m in now["d"].members] == [T0 + 1 + SESSION_MS]
    assert [(t.kind, t.deadline_ms) for t in now["d"].timers] == [("heartbeat", T0 + 1 + SESSION_MS)]
    assert retained_batches(running) == range(2)
    with pytest.raises(StateNotRead, match=r"after batch 7 is not kept: batches 0 to 1 are kept"):
        read_stored(running, bench.spark, 7)


@pytest.fixture
def views(bench: Bench, tmp_path: Path) -> SparkSession:
    """Return the views of a state with a Kafka group of two members with one client id, and a RocketMQ
    group.
    """
    log = Log()
    joins = [log.request(T0, join("orders", "shop")) for _ in range(1)]
    leader = new_member_id("shop", joins[0].id, NAMESPACE)
    second = log.request(T0 + 1, join("orders", "shop"))
    other = new_member_id("shop", second.id, NAMESPACE)
    again = log.request(T0 + 2, join("orders", "shop", member_id=leader))
    held = {leader: [0, 2], other: [1]}
    assignments = {
        member_id: encode_assignment(Assignment(tuple(TopicPartition("t", p) for p in partitions), b""))
        for member_id, partitions in held.items()
    }
    synced = [
        log.request(T0 + 3, sync("orders", member_id, 2, assignments if member_id == leader else {}))
        for member_id in (leader, other)
    ]
    beat = RegisterConsumer(
        group_id="g",
        connection="c1",
        client_id="A",
        correlation_id="c1",
        reply_partition=1,
        message_model=MessageModel.CLUSTERING,
    )
    bench.run([*joins, second, again, *synced, log.request(T0 + 4, beat)], Story().first)
    checkpoint = as_of_kafka(bench.folder / "spark", tmp_path / "coordinator")
    state = read_stored(checkpoint, bench.spark)
    (tmp_path / "views").mkdir()
    create_views(bench.spark, tmp_path / "views", rows_in(state))
    for table in StateTable:
        assert pq.read_schema(tmp_path / "views" / f"{table}.parquet").equals(schema_of(table))
    return bench.spark


def test_queries_of_the_docs_return_the_stored_state(views: SparkSession) -> None:
    held = views.sql(HOLDERS).where("group_id = 'orders'").collect()
    assert [(r.topic, r.partition, r.client_id) for r in held] == [("t", p, "shop") for p in range(3)]
    assert held[0].member_id == held[2].member_id != held[1].member_id
    assert {int(r.since.timestamp() * 1000) for r in held} == {T0 + 3}
    (shared,) = views.sql(SHARED_CLIENT_IDS).collect()
    assert (shared.group_id, shared.client_id, shared.members) == ("orders", "shop", 2)
    old = views.sql(OLD_OFFSETS).collect()
    assert [(r.group_id, r.topic, r.partition, r.offset) for r in old] == [
        (g, "orders", 0, 41) for g in sorted(GROUPS) if g != "d"
    ]


def test_sql_query_writes_a_table_to_files(views: SparkSession, tmp_path: Path) -> None:
    """As docs/state.md shows it."""
    files = str(tmp_path / "offsets")
    done = views.sql(f"INSERT OVERWRITE DIRECTORY '{files}' USING parquet SELECT * FROM offsets")
    assert answer_text(done) == ""
    assert views.read.parquet(files).count() == views.table("offsets").count() > 0


def test_sql_results_are_printed_in_utc_with_empty_values(views: SparkSession) -> None:
    answer = views.sql("SELECT group_id, clock, generation, clock FROM groups WHERE protocol = 'RocketMQ'")
    assert answer_text(answer).splitlines()[1].split() == ["g", *AT, "-", *AT]
    one = views.sql("SELECT group_id, clock, generation FROM groups WHERE protocol = 'RocketMQ'")
    (text,) = answer_json(one)
    assert text == '{"group_id":"g","clock":"2023-11-14T22:13:20.004Z","generation":null}'


AT = ("2023-11-14", "22:13:20.004")
