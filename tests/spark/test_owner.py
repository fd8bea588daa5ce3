"""Through the real query: a later owner's clock record ends it, earlier owners' advance time."""

from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by

from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.claims import Claim
from kafka_why.contract.codec import CLOCK_PATTERN, clock_record, is_clock_record
from kafka_why.contract.messages import ErrorCode
from streaming.query.executors import WorkerFunction
from streaming.query.owner_guard import LATER_CLAIM, OwnerGuard
from streaming.query.pipeline import LATER_OWNER
from tests.e2e.harness import create_topic
from tests.spark.harness import Bench, answers, events, make_operator
from tests.spark.log import LAYOUT, T0, Log, heartbeat, join

HOUR_MS = 3_600_000


def test_clock_records_of_earlier_owners_advance_time_up_to_their_append_time(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(owner_epoch=2)
    log = Log()
    records, _ = log.stable_member(T0, "g")
    bench.run(records)
    for forged_ms in (T0 + HOUR_MS, 10**15 - 1):
        assert not events(bench.run(*2 * [log.clock(T0 + 5_000, forged_ms, owner_epoch=1)]), "g")
    written = bench.run(*2 * [log.clock(T0 + 11_001, T0 + 11_000, owner_epoch=1)])
    assert events(written, "g", "MemberRemoved")[0]["at_ms"] == T0 + 10_000


def test_no_partition_writes_after_another_claim(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    """The tasks of a batch write to Kafka one by one, as here into files, and not all at its end. The clock
    record of the later owner is the last record of one partition of requests.
    """

    def write(output: DataFrame, _: int) -> None:
        output.foreachPartition(write_partition)

    def write_partition(rows: Iterable[Row]) -> None:
        if written := [row.topic for row in rows]:
            (tmp_path / str(uuid4())).write_text("\n".join(written))

    bench = make_bench(owner_epoch=2, state_partitions=2, write=write)
    log = Log()
    members = {group_id: log.stable_member(T0, group_id) for group_id in "abcdefgh"}
    bench.run([record for records, _ in members.values() for record in records])
    assert len(list(tmp_path.glob("*-*-*"))) == 2, "each task has written"
    for path in tmp_path.glob("*-*-*"):
        path.unlink()
    asked = [log.request(T0 + 3, heartbeat(group_id, member)) for group_id, (_, member) in members.items()]
    assert {record.partition for record in asked} == set(range(LAYOUT.request_partitions))
    with pytest.raises(StreamingQueryException, match=f"{LATER_OWNER}3"):
        bench.run([*asked, log.clock(T0 + 4, T0 + 2, owner_epoch=3)[-1]])
    assert list(tmp_path.glob("*-*-*")) == []
    bench.query = None
    bench.owner_epoch = 3
    bench.run([])
    assert len(list(tmp_path.glob("*-*-*"))) == 2


@pytest.fixture
def owner_topic(broker: EmbeddedBroker) -> str:
    topic = f"owner-{uuid4()}"
    create_topic(broker.client_config, topic, 1, {"cleanup.policy": "compact"})
    return topic


def claim(broker: EmbeddedBroker, topic: str, epoch: int) -> None:
    """Append a claim."""
    claimed = Claim(
        epoch=epoch,
        claim_id=str(uuid4()),
        owner_id="one",
        requests_topic_id="topic-id",
        host="here",
        pid=epoch,
        folder="/data",
        since_ms=0,
        tick_interval_ms=100,
    )
    producer = kafka_clients.producer(broker.client_config)
    value = msgspec.json.encode(claimed)
    producer.send(topic, key=claimed.claim_id.encode(), value=value, partition=0).get(timeout=30)
    producer.close()


@pytest.mark.e2e
@pytest.mark.parametrize("has_rows", [True, False])
def test_no_spark_task_works_after_a_later_owners_claim(
    make_bench: Callable[..., Bench], broker: EmbeddedBroker, owner_topic: str, *, has_rows: bool
) -> None:
    """A batch of clock records alone calls the operator for no shard, but would commit a state: of the number
    that the new owner's batch has, and another one. So the guard fails such a task too.
    """
    claim(broker, owner_topic, 1)
    guard = OwnerGuard(broker.client_config, owner_topic, epoch=1)
    bench = make_bench(operator=WorkerFunction(make_operator(), (guard.check,)))
    log = Log()
    records, member_id = log.stable_member(T0, "g")
    bench.run([*records, *log.clock(T0 + 1, T0)])
    asked = log.request(T0 + 2, heartbeat("g", member_id))
    assert answers(bench.run([asked]))[asked.id]["error_code"] == ErrorCode.NONE
    written, files = len(bench.written), state_files(bench)

    claim(broker, owner_topic, 2)
    more = [log.request(T0 + 3, heartbeat("g", member_id))] if has_rows else []
    with pytest.raises(StreamingQueryException, match=f"{LATER_CLAIM}2: process 2 on here"):
        bench.run([*more, *log.clock(T0 + 4, T0 + 2)])
    assert len(bench.written) == written
    assert state_files(bench) == files
    bench.query = None


def state_files(bench: Bench) -> set[Path]:
    return set((bench.folder / "spark" / "state" / "0" / "0").glob("*.changelog"))


CLOCK = clock_record(T0, 1)
NO_CLOCK = [CLOCK + end.encode() for end in ("\n", "\r\n", "\r", " ", "\0", "\u2028", "\u0085")]


def test_spark_and_python_find_the_same_clock_records(spark: SparkSession) -> None:
    """The query and the replica must not differ about a record, whatever a writer appends."""
    values = [CLOCK, clock_record(T0), b"\n" + CLOCK, CLOCK.replace(b"1", "\u0661".encode()), *NO_CLOCK]
    rows = spark.createDataFrame([(bytearray(value),) for value in values], "value binary")
    found = [row[0] for row in rows.select(F.col("value").cast("string").rlike(CLOCK_PATTERN)).collect()]
    assert found == [is_clock_record(None, value) for value in values]
    assert found == [True, True, *[False] * (len(values) - 2)]


def test_clock_records_alone_end_a_session_once_at_its_deadline(bench: Bench) -> None:
    """Spark calls a group whose timeout is before the watermark, not at it. Its Python timeouts are sticky:
    it repeats a call that neither sets nor clears its timeout.
    """
    log = Log()
    records, member_id = log.stable_member(T0, "g")
    bench.run(records)
    assert not events(bench.run_at(log, T0 + 10_000), "g")
    removed, preparing, empty = events(bench.run_at(log, T0 + 14_321), "g")
    assert (removed["type"], removed["member_id"]) == ("MemberRemoved", member_id)
    assert {event["at_ms"] for event in (removed, preparing, empty)} == {T0 + 10_000}
    batches = len(bench.groups_touched)
    for seconds in (30, 40, 50):
        assert not bench.run_at(log, T0 + seconds * 1_000)
    assert bench.groups_touched[batches:] == [0] * 6


def test_request_older_than_the_watermark_is_answered_without_moving_time(bench: Bench) -> None:
    log = Log()
    records, member_id = log.stable_member(T0, "g", session_ms=60_000)
    bench.run(records)
    bench.run_at(log, T0 + 1_000)
    watermark = bench.watermark
    old = log.request(T0 - HOUR_MS, heartbeat("g", member_id))
    unknown = log.request(T0 - HOUR_MS, heartbeat("other", "nobody"))
    joined = log.request(T0 - HOUR_MS, join("third"))
    found = answers(bench.run([old, unknown, joined], []))
    assert found[old.id]["error_code"] == ErrorCode.NONE
    assert found[unknown.id]["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    assert found[joined.id]["error_code"] == ErrorCode.NONE
    bench.run(log.clock(T0 + 500, T0 + 400))
    assert bench.watermark == watermark
