"""The queries of docs/history.md, unchanged, over a recorded history read as Spark's table."""

import re
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import Row, SparkSession

from kafka_why.contract.codec import encode
from kafka_why.contract.history_reader import CoordinatorStarted
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry
from streaming.events_table import events_table
from tests.harness.histories import Recorder
from tests.unit.kafka_why.why_story import STORY
from tests.unit.state.rocketmq_story import BEGIN_MS, night

DOCS = Path(__file__).parents[2] / "docs" / "history.md"
PER_HOUR_AND_CAUSE, SLOWEST, STUCK, DUPLICATES = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)


def stuck_group() -> list[HistoryEntry]:
    """Return a group whose rebalances supersede each other for a minute, because no leader brings an
    assignment.
    """
    commands = [
        "at 2000s",
        "config group.initial.rebalance.delay.ms=0",
        "join a api=3 group=stuck session=5m",
    ]
    for number in range(1, 4):
        commands += [
            f"at {2000 + 20 * number}s",
            f"join b{number} api=3 group=stuck session=5m",
            "join a id=@a group=stuck",
        ]
    return Recorder().play(*commands)


def slow_group() -> list[HistoryEntry]:
    """Return a group that completes without d, which heartbeats and does not rejoin."""
    return Recorder().play(
        "at 3000s",
        "config group.initial.rebalance.delay.ms=0",
        "join c api=3 group=slow session=30s rebalance=20s",
        "join d api=3 group=slow session=30s rebalance=20s",
        "join c id=@c",
        "sync c assign=@c:p0,@d:p1",
        "at 3001s",
        "join c id=@c",
        "at 3015s",
        "heartbeat d",
        "at 3021s",
        "sync c assign=@c:p0+p1",
    )


@pytest.fixture(scope="module")
def history() -> list[HistoryEntry]:
    return [*Recorder().play(*STORY), *stuck_group(), *slow_group()]


@pytest.fixture(scope="module", autouse=True)
def events(spark: SparkSession, history: list[HistoryEntry]) -> None:
    """The events topic as Kafka's source reads it: some records twice, and one record without a group."""
    rocketmq = night("shop")
    values = [encode(event) for event in [*history, *history[5:15], *rocketmq, *rocketmq[3:8]]]
    values.append(encode({"type": "CoordinatorStarted"} | msgspec.to_builtins(started())))
    records = spark.createDataFrame([(bytearray(value),) for value in values], "value binary")
    events_table(records).createOrReplaceTempView("events")


def started() -> CoordinatorStarted:
    return CoordinatorStarted(at_ms=1_000, from_batch=0, settings={})


def rows(spark: SparkSession, query: str, **values: float) -> list[Row]:
    return spark.sql(query, args=values).collect()


def test_every_field_of_an_entry_is_a_column(spark: SparkSession) -> None:
    fields = {*HistoryEntry.__struct_fields__, *RocketMqHistoryEntry.__struct_fields__}
    assert set(spark.table("events").columns) == fields | {"protocol", "at"}


def test_sql_counts_rebalances_per_hour_and_cause(spark: SparkSession) -> None:
    found = rows(spark, PER_HOUR_AND_CAUSE)
    assert {(r.group_id, r.cause, r.rebalances) for r in found} == {
        ("g", "member joined", 2),
        ("g", "session timeout", 1),
        ("g", "member left", 1),
        ("stuck", "member joined", 3),
        ("slow", "member joined", 2),
        ("slow", "leader joined again", 1),
    }
    assert all(r.hour.minute == r.hour.second == 0 for r in found)


def test_sql_finds_the_slowest_members_to_rejoin(spark: SparkSession) -> None:
    slowest, second, *_ = found = rows(spark, SLOWEST)
    assert (slowest.group_id, slowest.client, slowest.slowest_s, slowest.given_up) == ("slow", "d", 20.0, 1)
    assert (second.group_id, second.client, second.slowest_s, second.given_up) == ("g", "worker-2", 6.5, 0)
    worker_1 = next(r for r in found if r.client == "worker-1")
    assert (worker_1.slowest_s, worker_1.median_s, worker_1.rebalances) == (6.0, 2.0, 3)


def test_sql_finds_stuck_groups(spark: SparkSession) -> None:
    found = rows(spark, STUCK, seconds=7)
    spells = {(r.group_id, r.rebalances, r.still, None if r.still else r.stuck_s) for r in found}
    assert spells == {
        ("g", 1, False, 7.2),
        ("g", 1, True, None),
        ("stuck", 3, True, None),
        ("slow", 1, False, 20.0),
    }
    assert next(r for r in found if r.stuck_s == 7.2).reason.startswith("member worker-3-")
    # The history begins in 1970 and lasts until the present.
    assert next(r for r in found if r.group_id == "stuck").stuck_s > 1_000_000
    assert not rows(spark, STUCK, seconds=10**10)


def test_sql_finds_duplicate_rocketmq_client_ids(spark: SparkSession) -> None:
    entries = [event for event in night("shop") if event.topics or event.connection]
    first, second = rows(spark, DUPLICATES)
    assert (first.group_id, first.client_id, first.connections) == ("shop", "worker-1", ["c1", "c4"])
    assert (first.message_model, second.connections, second.ended) == ("CLUSTERING", ["c1", "c5"], None)
    assert first.began.timestamp() * 1000 == BEGIN_MS + 180_000
    assert (first.ended - first.began).total_seconds() == 30
    found = rows(spark, "SELECT connection, topics FROM events WHERE protocol = 'RocketMQ' ORDER BY seq")
    assert [(r.connection, r.topics) for r in found if r.topics or r.connection] == [
        (event.connection, event.topics) for event in entries
    ]
