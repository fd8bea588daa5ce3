"""Only clock records advance time, and requests are neither late nor early."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by

from kafka_why.contract.codec import CLOCK_PATTERN, clock_record, is_clock_record
from kafka_why.contract.messages import ErrorCode
from tests.spark.harness import Bench, answers, events
from tests.spark.log import T0, Log, heartbeat, join

HOUR_MS = 3_600_000
CLOCK = clock_record(T0, 1)
NO_CLOCK = [CLOCK + end.encode() for end in ("\n", "\r\n", "\r", " ", "\0", "\u2028", "\u0085")]


def test_spark_and_python_find_the_same_clock_records(spark: SparkSession) -> None:
    """The query and the replica must not differ about a record, whatever a writer appends."""
    values = [CLOCK, clock_record(T0), b"\n" + CLOCK, CLOCK.replace(b"1", "\u0661".encode()), *NO_CLOCK]
    rows = spark.createDataFrame([(bytearray(value),) for value in values], "value binary")
    found = [row[0] for row in rows.select(F.col("value").cast("string").rlike(CLOCK_PATTERN)).collect()]
    assert found == [is_clock_record(None, value) for value in values]
    assert found == [True, True, *[False] * (len(values) - 2)]


def test_a_session_ends_once_at_its_own_time_by_clock_records_alone(bench: Bench) -> None:
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


def test_a_request_older_than_the_watermark_is_answered_and_does_not_move_time(bench: Bench) -> None:
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


def test_a_forged_clock_record_cannot_push_time_past_its_own_append_time(bench: Bench) -> None:
    log = Log()
    records, _ = log.stable_member(T0, "g")
    bench.run(records)
    for claim in (T0 + HOUR_MS, 10**15 - 1):
        assert not events(bench.run_at(log, claim, appended_ms=T0 + 5_000), "g")
    assert events(bench.run_at(log, T0 + 11_000), "g", "MemberRemoved")[0]["at_ms"] == T0 + 10_000
