"""Offsets through the real query: kept over restarts, on their own topic, expired by the log's time."""

import json
from collections.abc import Iterable
from uuid import UUID

from records.codec import offset_key
from records.partitioner import partition_of
from state.errors import ErrorCode
from state.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit, OffsetFetch, TopicMetadata
from state.kafka.topic_images import TopicImage
from tests.spark.harness import Bench, Written, answers, dead_letters, events
from tests.spark.log import LAYOUT, T0, Log

WEEK_MS = 7 * 24 * 3_600_000
PASS_MS = 600_000
KIB = 1_024


def commit(offsets: dict[int, int], group_id: str = "g") -> OffsetCommit:
    """A commit for topic t without a member."""
    partitions = [CommittedPartition(partition, offset) for partition, offset in offsets.items()]
    return OffsetCommit(
        group_id=group_id,
        correlation_id="c",
        reply_partition=1,
        api_version=9,
        topics=[CommittedTopic("t", partitions)],
    )


def fetch(group_id: str = "g") -> OffsetFetch:
    return OffsetFetch(group_id=group_id, correlation_id="f", reply_partition=1, api_version=9)


def on_offsets_topic(written: Iterable[Written]) -> dict[bytes | None, bytes | None]:
    """The last record of each key."""
    return {record.key: record.value for record in written if record.topic == LAYOUT.offsets_topic}


def fetched(written: Iterable[Written], request_id: str) -> dict[int, int]:
    (topic,) = answers(written)[request_id]["topics"]
    return {p["partition_index"]: p["committed_offset"] for p in topic["partitions"]}


def test_the_last_commit_is_fetched_also_after_a_restart(bench: Bench) -> None:
    log = Log()
    commits = [log.request(T0 + n, commit({0: n, 1: 100 + n})) for n in range(10)]
    written = bench.run(commits)
    assert {answer["error_code"] for answer in answers(written).values()} == {ErrorCode.NONE}
    bench.stop()
    later, asked = log.request(T0 + 20, commit({1: 7})), log.request(T0 + 21, fetch())
    assert fetched(bench.run([later, asked]), asked.id) == {0: 9, 1: 7}


def test_a_batch_puts_the_last_offset_of_each_partition_on_the_topic(bench: Bench) -> None:
    log = Log()
    written = bench.run([log.request(T0 + n, commit({0: n, n % 3: n})) for n in range(9)])
    records = [record for record in written if record.topic == LAYOUT.offsets_topic]
    assert [record.key for record in records] == [offset_key("g", "t", p) for p in (0, 1, 2)]
    assert [record.content["offset"] for record in records] == [8, 7, 8]
    assert {record.partition for record in records} == {partition_of("g", LAYOUT.request_partitions)}


def test_a_commit_to_a_large_group_puts_a_kibibyte_on_the_topics_at_most(bench: Bench) -> None:
    log = Log()
    bench.run([log.request(T0, commit(dict.fromkeys(range(10_000), 1)))])
    written = bench.run([log.request(T0 + 1, commit({5_000: 2}))])
    assert {record.topic for record in written} == {LAYOUT.responses_topic, LAYOUT.offsets_topic}
    assert sum(len(record.key or b"") + len(record.value or b"") for record in written) <= KIB


def test_a_topic_that_is_made_again_has_no_offsets_also_after_a_restart(bench: Bench) -> None:
    log = Log()
    old, new = TopicImage(UUID(int=1), 4), TopicImage(UUID(int=2), 4)
    metadata = [TopicMetadata(group_id="g", topics={"t": image}) for image in (old, old, new)]
    written = bench.run([log.request(T0, commit({0: 5})), log.request(T0 + 1, metadata[0])])
    ((key, value),) = on_offsets_topic(written).items()
    assert json.loads(value or b"")["topic_id"] == str(old.id)
    bench.stop()
    assert bench.run([log.request(T0 + 2, metadata[1])]) == []
    written = bench.run([log.request(T0 + 3, metadata[2])])
    assert on_offsets_topic(written) == {key: None}
    assert [(event["type"], event["rule"]) for event in events(written, "g")] == [("OffsetsDeleted", "D7")]
    assert answers(written) == dead_letters(written) == {}


def test_retention_is_a_matter_of_the_logs_time(bench: Bench) -> None:
    log = Log()
    bench.run([log.request(T0, commit({0: 5})), log.request(T0 + PASS_MS, commit({1: 6}))])
    expiry_ms = T0 + WEEK_MS
    first_pass_ms = -(-expiry_ms // PASS_MS) * PASS_MS
    assert not bench.run_at(log, first_pass_ms - 1)
    written = bench.run_at(log, first_pass_ms + 1)
    (expired,) = events(written, "g")
    assert (expired["type"], expired["at_ms"]) == ("OffsetsExpired", first_pass_ms)
    assert on_offsets_topic(written) == {offset_key("g", "t", 0): None}
    written = bench.run_at(log, first_pass_ms + PASS_MS + 1)
    assert [event["type"] for event in events(written, "g")] == ["OffsetsExpired", "GroupDeleted"]
    assert on_offsets_topic(written) == {offset_key("g", "t", 1): None}
    tombstones = [record for record in written if record.topic == LAYOUT.groups_topic]
    assert [(record.key, record.value) for record in tombstones] == [(b"g", None)]
    again = log.request(first_pass_ms + WEEK_MS, fetch())
    assert answers(bench.run([again]))[again.id]["topics"] == []


def test_a_group_that_rests_is_not_called_for_every_pass(bench: Bench) -> None:
    log = Log()
    bench.run([log.request(T0, commit({0: 5}))])
    batches = len(bench.groups_touched)
    for day in range(1, 4):
        bench.run_at(log, T0 + day * WEEK_MS // 7)
    assert bench.groups_touched[batches:] == [0] * 6
