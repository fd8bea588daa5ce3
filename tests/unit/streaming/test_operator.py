"""The operator's call as Spark makes it, but without Spark: PySpark's real GroupState, handmade frames."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pandas as pd
import pytest
from msgspec import structs
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from checkpoints.metadata import KnownOutage
from records.codec import encode
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, AnyRequest, step
from state.inputs import Failed, Outage, Received
from state.kafka.classic_group import ClassicGroup
from state.kafka.member_id import new_member_id
from state.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit, TopicMetadata, Unanswered
from state.kafka.topic_images import TopicImage
from state.rocketmq.requests import ConnectionClosed
from streaming.query import output_rows as output_module
from streaming.query.handling import OperatorError
from streaming.query.operator import ConfigEpoch
from tests.harness.operator_call import CONFIG, OPERATOR, call, contents, spark_state
from tests.harness.planted_version import ADDED, planted, row_of
from tests.spark.log import LAYOUT, NAMESPACE, T0, Log, heartbeat, join, release, sync


def group_in(state: SparkGroupState, group_id: str = "g") -> ClassicGroup:
    group = codec.decode_group(group_id, codec.read_row("shard 0", *state.get)[group_id])
    assert isinstance(group, ClassicGroup)
    return group


def stable_state(log: Log) -> tuple[tuple[int, bytes], str]:
    """The state row of group g with one member at T0, and the member's id."""
    records, member_id = log.stable_member(T0, "g")
    state = spark_state()
    call(records, state)
    return tuple(state.get), member_id


def test_rows_are_applied_in_the_logs_order_however_they_come() -> None:
    log = Log()
    records, member_id = log.stable_member(T0, "g")
    records += [log.request(T0 + n, heartbeat("g", member_id)) for n in range(1, 30)]
    in_order = spark_state()
    expected = call(records, in_order)
    for chunks in (1, 3, 31):
        state = spark_state()
        found = call(records[::-1], state, chunks=chunks)
        assert [frame.to_dict() for frame in found] == [frame.to_dict() for frame in expected]
        assert state.get == in_order.get


def test_the_timeout_is_the_next_deadline() -> None:
    state = spark_state(watermark_ms=T0 - 5_000)
    call(Log().stable_member(T0, "g")[0], state)
    assert state._timeout_timestamp == T0 + 10_000


def test_what_the_watermark_allows_is_fired_after_the_rows() -> None:
    log = Log()
    row, member_id = stable_state(log)
    state = spark_state(row, watermark_ms=T0 + 9_999)
    frames = call([log.request(T0 + 500, heartbeat("g", member_id))], state)
    assert not contents(frames, LAYOUT.events_topic)
    assert state._timeout_timestamp == T0 + 10_500
    state = spark_state(row, watermark_ms=T0 + 10_000)
    removed, *_ = contents(call([], state), LAYOUT.events_topic)
    assert (removed["type"], removed["at_ms"]) == ("MemberRemoved", T0 + 10_000)


def test_a_timeout_is_never_set_behind_the_watermark() -> None:
    """Spark refuses such a timeout. Deadlines of a group whose clock is far behind fire, so none remains
    there.
    """
    row, _ = stable_state(Log())
    for ahead_ms in (9_998, 9_999):
        state = spark_state(row, watermark_ms=T0 + ahead_ms, timed_out=True)
        call([], state)
        assert state._timeout_timestamp == T0 + 10_000


def test_a_call_for_a_timeout_reads_no_rows_and_clears_what_fired() -> None:
    row, _ = stable_state(Log())
    state = spark_state(row, watermark_ms=T0 + 20_000, timed_out=True)
    frames = list(OPERATOR((0,), iter([pd.DataFrame()]), state))
    assert [e["type"] for e in contents(frames, LAYOUT.events_topic)][-1] == "Empty"
    next_pass_ms = (T0 // 600_000 + 1) * 600_000
    assert (state._updated, state._timeout_timestamp) == (True, next_pass_ms)
    assert group_in(state).members == {}


def test_a_group_that_never_was_leaves_no_state() -> None:
    state = spark_state()
    (frame,) = call([Log().request(T0, heartbeat("g", "nobody"))], state)
    assert len(frame) == 1
    assert (state.exists, state._updated, state._removed) == (False, False, False)


def test_a_view_is_written_once_a_call_and_only_if_history_grew() -> None:
    log = Log()
    state = spark_state()
    records, member_id = log.stable_member(T0, "g")
    (view,) = contents(call(records, state), LAYOUT.groups_topic)
    assert view["seq"] == group_in(state).seq
    state = spark_state(tuple(state.get))
    assert not contents(call([log.request(T0 + 1, heartbeat("g", member_id))], state), LAYOUT.groups_topic)


def test_a_call_that_is_made_again_says_the_same_bytes() -> None:
    log = Log()
    row, member_id = stable_state(log)
    records = [log.request(T0 + 1, join("g", "d")), log.request(T0 + 2, heartbeat("g", member_id))]
    first, second = spark_state(row), spark_state(row)
    assert [f.to_dict() for f in call(records, first)] == [f.to_dict() for f in call(records, second)]
    assert first.get == second.get


def test_a_large_backlog_is_handed_over_frame_by_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "FRAME_MAX_RECORDS", 10)
    log = Log()
    row, member_id = stable_state(log)
    beats = [log.request(T0 + n, heartbeat("g", member_id)) for n in range(35)]
    assert [len(frame) for frame in call(beats, spark_state(row))] == [10, 10, 10, 5]


OUTAGES = (KnownOutage(5, Outage(T0 + 1, T0 + 400_000)), KnownOutage(9, Outage(T0 + 500_000, T0 + 900_000)))


def test_while_no_coordinator_ran_nobody_expires() -> None:
    """The watermark is far after the session timeout of the member's last heartbeat."""
    log = Log()
    row, member_id = stable_state(log)
    operator = replace(OPERATOR, outages=OUTAGES)
    state = spark_state(row, watermark_ms=T0 + 400_100)
    said = call([log.request(T0 + 300_000, heartbeat("g", member_id))], state, operator=operator)
    assert [answer["error_code"] for answer in contents(said, LAYOUT.responses_topic)] == [0]
    assert [entry["type"] for entry in contents(said, LAYOUT.events_topic)] == ["TakenOver"]
    assert group_in(state).clock_ms == T0 + 400_000
    assert state._timeout_timestamp == T0 + 410_000


def test_a_batch_knows_of_the_outages_that_ended_before_it_was_planned() -> None:
    operator = replace(OPERATOR, outages=OUTAGES)
    known = {batch_id: len(operator.known_outages(batch_id)) for batch_id in (4, 5, 8, 9, None)}
    assert known == {4: 0, 5: 1, 8: 1, 9: 2, None: 2}


def commit(topic_id: UUID | None) -> OffsetCommit:
    """A commit of offset 5 for partition 0 of topic t, without a member."""
    return OffsetCommit(
        group_id="g",
        correlation_id="c",
        reply_partition=1,
        api_version=9,
        topics=[CommittedTopic("t", [CommittedPartition(0, 5)], topic_id)],
    )


def test_the_first_call_of_a_group_that_moved_to_new_topics_writes_its_view_and_its_offsets() -> None:
    log, state = Log(), spark_state()
    call([log.request(T0, commit(None))], state)
    entry = codec.read_row("shard 0", *state.get)["g"]
    moved = structs.replace(entry, next_deadline_ms=codec.UNPUBLISHED_DEADLINE_MS)
    state = spark_state(codec.write_row({"g": moved}), watermark_ms=T0 + 1, timed_out=True)
    first = call([], state)
    assert [view["group_id"] for view in contents(first, LAYOUT.groups_topic)] == ["g"]
    assert [(o["offset"], o["request"]) for o in contents(first, LAYOUT.offsets_topic)] == [(5, "")]
    assert contents(first, LAYOUT.events_topic) == []
    assert codec.read_row("shard 0", *state.get) == {"g": entry}
    assert call([], spark_state(tuple(state.get), watermark_ms=T0 + 2, timed_out=True)) == []


def topic_t(image: TopicImage | None) -> TopicMetadata:
    return TopicMetadata(group_id="g", topics={"t": image})


def on_offsets_topic(frames: list[pd.DataFrame]) -> list[dict[str, Any] | None]:
    """The records of the offsets topic, None for a tombstone."""
    return [
        None if value is None else json.loads(value)
        for frame in frames
        for topic, value in zip(frame["topic"], frame["value"], strict=True)
        if topic == LAYOUT.offsets_topic
    ]


def test_topic_ids_are_kept_and_published_and_topic_metadata_has_no_answer() -> None:
    log, state = Log(), spark_state()
    old, new = TopicImage(UUID(int=1), 4), TopicImage(UUID(int=2), 4)
    (record,) = on_offsets_topic(call([log.request(T0, commit(old.id))], state))
    assert record is not None
    assert (record["offset"], record["topic_id"]) == (5, str(old.id))
    again = spark_state(tuple(state.get))
    assert call([log.request(T0 + 1, topic_t(old))], again) == []
    frames = call([log.request(T0 + 2, topic_t(new))], again)
    assert on_offsets_topic(frames) == [None]
    assert [entry["type"] for entry in contents(frames, LAYOUT.events_topic)] == ["OffsetsDeleted"]
    assert {topic for frame in frames for topic in frame["topic"]} == {
        LAYOUT.offsets_topic,
        LAYOUT.events_topic,
        LAYOUT.groups_topic,
    }


def test_a_group_of_an_earlier_version_is_written_as_of_this_one() -> None:
    log, state = Log(), spark_state()
    call([log.request(T0, commit(None))], state)
    with planted():
        earlier = spark_state(row_of(0, {"g": group_in(state)}))
        assert call([log.request(T0 + 1, commit(None))], earlier)
    assert earlier.get[0] == codec.STATE_VERSION
    assert group_in(earlier).wanted_topics == [ADDED]


def test_topic_metadata_in_the_wrong_place_is_a_dead_letter_alone() -> None:
    frames = call([Log().append(T0, b"h", encode(topic_t(None)), 0)], spark_state())
    (letter,) = contents(frames, LAYOUT.dead_letters_topic)
    assert (letter["reason"], letter["answered"]) == ("KEY_MISMATCH", False)
    assert contents(frames, LAYOUT.responses_topic) == []


def test_topic_metadata_that_raises_is_a_dead_letter_alone() -> None:
    def raise_for_metadata(
        group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        if isinstance(event, Received) and isinstance(event.request, TopicMetadata):
            raise ValueError("told to")
        return step(group, group_id, event, now_ms, config)

    log, state = Log(), spark_state()
    call([log.request(T0, commit(None))], state)
    operator = replace(OPERATOR, step=raise_for_metadata)
    frames = call([log.request(T0 + 1, topic_t(None))], spark_state(tuple(state.get)), operator=operator)
    (letter,) = contents(frames, LAYOUT.dead_letters_topic)
    assert (letter["reason"], letter["answered"]) == ("HANDLER_FAILED", False)
    assert contents(frames, LAYOUT.responses_topic) == []


def test_a_state_that_cannot_be_read_is_named() -> None:
    with pytest.raises(codec.StateError, match="the state of 'shard 0 of partition 0' is of version 99"):
        call([], spark_state((99, b"")))


def test_a_record_that_cannot_be_refused_is_named() -> None:
    operator = replace(OPERATOR, step=raise_always)
    record = Log().request(T0, join("g"))
    with pytest.raises(OperatorError, match=f"^record {record.id} of group 'g': told to"):
        call([record], spark_state(), operator=operator)


def raise_always(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    raise ValueError("told to")


def raise_for_poison(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    effects = step(group, group_id, event, now_ms, config)
    if isinstance(event, Received) and _client_of(event) == "poison":
        raise ValueError("told to")
    assert not isinstance(event, Failed) or _client_of(event) == "poison"
    return effects


def _client_of(event: Received[AnyRequest] | Failed[AnyRequest]) -> str:
    return "" if isinstance(event.request, ConnectionClosed | Unanswered) else event.request.client_id


def test_a_deadline_at_fault_is_not_blamed_on_the_record_behind_it() -> None:
    """The group is quarantined by its deadline while a record is applied. The dead letter shows no record."""

    def raise_for_deadlines(
        group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        effects = step(group, group_id, event, now_ms, config)
        if not isinstance(event, Received) and "Deadline" in type(event).__name__:
            raise ValueError("told to")
        return effects

    log = Log()
    row, member_id = stable_state(log)
    late = log.request(T0 + 11_000, heartbeat("g", member_id))
    frames = call([late], spark_state(row), operator=replace(OPERATOR, step=raise_for_deadlines))
    (letter,) = contents(frames, LAYOUT.dead_letters_topic)
    assert (letter["reason"], letter["request"], letter["answered"]) == ("HANDLER_FAILED", "", False)
    assert letter["message"].startswith(f"heartbeat deadline of {member_id} at {T0 + 10_000}\n")
    assert contents(frames, LAYOUT.responses_topic)[0]["error_code"] == 15


def test_a_fault_is_told_once() -> None:
    log = Log()
    row, member_id = stable_state(log)
    records = [
        log.request(T0 + 1, heartbeat("g", member_id, client="poison")),
        log.request(T0 + 2, heartbeat("g", member_id)),
        log.request(T0 + 3, heartbeat("g", member_id, client="poison")),
    ]
    state = spark_state(row)
    frames = call(records, state, operator=replace(OPERATOR, step=raise_for_poison))
    assert [answer["error_code"] for answer in contents(frames, LAYOUT.responses_topic)] == [-1, 0, -1]
    letters = contents(frames, LAYOUT.dead_letters_topic)
    assert [letter["request"] for letter in letters] == [records[0].id, records[2].id]
    assert group_in(state).members[member_id].heartbeat_deadline_ms == T0 + 10_002


def test_skipped_records_are_not_even_read() -> None:
    log = Log()
    garbage = log.append(T0, b"g", b"\xff" * 10, 1)
    operator = replace(OPERATOR, epochs=(ConfigEpoch(0, CONFIG, frozenset({garbage.id})),))
    (frame,) = call([garbage], spark_state(), operator=operator)
    (letter,) = contents([frame], LAYOUT.dead_letters_topic)
    assert (letter["reason"], letter["message"], letter["answered"]) == (
        "SKIPPED",
        "skipped by configuration",
        False,
    )


def test_a_key_shared_by_records_without_one_holds_no_group() -> None:
    """Records without a key share the empty key. Only a group whose id is empty accepts requests there."""
    log = Log()
    keyless = log.request(T0, join("g"))._replace(key=None)
    records = [keyless, log.append(T0, None, b"garbage", 0), log.request(T0, release(""))]
    state = spark_state()
    frames = call(records, state)
    assert [answer["error_code"] for answer in contents(frames, LAYOUT.responses_topic)] == [42, 24]
    reasons = [letter["reason"] for letter in contents(frames, LAYOUT.dead_letters_topic)]
    assert sorted(reasons) == ["INVALID_REQUEST", "KEY_MISMATCH"]
    assert not state.exists


def test_a_value_with_line_feeds_is_whole() -> None:
    log = Log()
    request = sync("g", "m\nn", 1, {"a": b"\n"})
    record = log.request(T0, request)
    pretty = record._replace(value=json.dumps(json.loads(record.value or b""), indent=1).encode())
    (answer,) = contents(call([pretty], spark_state()), LAYOUT.responses_topic)
    assert (answer["type"], answer["error_code"]) == ("SyncGroup", 25)


def test_ids_of_members_follow_from_the_place_in_the_log_and_the_namespace() -> None:
    record = Log().request(T0, join("g", "app"))
    (answer,) = contents(call([record], spark_state()), LAYOUT.responses_topic)
    assert answer["member_id"] == new_member_id("app", record.id, NAMESPACE)
    secret = replace(CONFIG, member_id_namespace="00000000-0000-0000-0000-000000000001")
    operator = replace(OPERATOR, epochs=(ConfigEpoch(0, secret),))
    (other,) = contents(call([record], spark_state(), operator=operator), LAYOUT.responses_topic)
    assert other["member_id"] != answer["member_id"]
