"""The operator's output: the topic and partition of each record, and records that are too large."""

import json
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from msgspec import structs

from kafka_why.contract.codec import DEAD_LETTER_MAX_BYTES, MESSAGE_MAX_CHARS, Reason
from kafka_why.contract.kafka.history import EntryType, GroupState, HistoryEntry
from kafka_why.contract.kafka.requests import Protocol
from kafka_why.contract.kafka.responses import HeartbeatResponse, JoinGroupMember, JoinGroupResponse
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from records.truncation import SHORTENED_TEXT_CHARS
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember, PendingMember
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import Effects, Reply
from state.kafka.group import Topic
from streaming.query import output as output_module
from streaming.query.admission import LogMessage, LogRow
from streaming.query.output import Output
from streaming.query.output_values import dead_letter

LAYOUT = TopicLayout.named("t")
MAX_BYTES = 1_000
SMALL = replace(LAYOUT, response_max_bytes=MAX_BYTES)
ID = "t-requests-2-41"
VALUE = b"the request"
ROW = LogRow(2, 41, 1_700_000_000_000, b"\xff", VALUE)
MESSAGE = LogMessage(ROW, None, VALUE, ID)


def written(output: Output) -> list[tuple[str, int, bytes, dict[str, Any]]]:
    """Return all collected records: topic, partition, key, content."""
    rows = [row for frame in output.frame() for row in frame.itertuples(index=False)]
    return [(topic, p, key, json.loads(value)) for topic, p, key, value in rows if topic is not None]


def heartbeat_response(request: str = ID) -> HeartbeatResponse:
    return HeartbeatResponse(group_id="g", correlation_id="c", request=request, error_code=ErrorCode.NONE)


def join_response(request: str = ID) -> JoinGroupResponse:
    return JoinGroupResponse(
        group_id="g",
        correlation_id="c",
        request=request,
        error_code=ErrorCode.NONE,
        rule="C5",
        generation_id=1,
        members=[JoinGroupMember("m", None, b"x" * MAX_BYTES)],
    )


def event(**fields: Any) -> HistoryEntry:
    told = HistoryEntry(
        version=1,
        type=EntryType.STABLE,
        group_id="g",
        incarnation="t-requests-2-0",
        seq=3,
        at_ms=1,
        from_state="CompletingRebalance",
        to_state="Stable",
        generation=1,
        rule="S8",
        cause=ID,
        reason="leader m brought the assignment",
    )
    return structs.replace(told, **fields)


def group_of(*members: ClassicGroupMember) -> ClassicGroup:
    group = ClassicGroup("g", "t-requests-2-0", state=GroupState.STABLE, protocol_name="range", generation=1)
    for member in members:
        group.add(member, "consumer")
    return group


def member(member_id: str, size: int = 0) -> ClassicGroupMember:
    protocols = [Protocol("range", b"x" * size)]
    return ClassicGroupMember(member_id, None, "c", "/h", 10_000, 60_000, protocols, assignment=b"y" * size)


@pytest.mark.parametrize(
    ("limit", "value"), [("FRAME_MAX_RECORDS", 3), ("FRAME_MAX_BYTES", 3 * len(heartbeat_response().request))]
)
def test_frame_is_limited_in_rows_and_bytes(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(output_module, limit, value)
    output = Output(LAYOUT)
    assert not output.is_full
    for _ in range(3):
        output.add_reply(Reply(0, heartbeat_response()), MESSAGE)
    assert output.is_full
    assert [type(frame) for frame in output.frame()] == [pd.DataFrame]
    assert not output.is_full


def test_large_records_count_as_several_rows_of_a_frame() -> None:
    """PySpark counts only rows before it hands a batch over, so large records must count as many rows."""
    response = structs.replace(join_response(), members=[JoinGroupMember("m", None, b"x" * 700_000)])
    output = Output(LAYOUT)
    output.add_reply(Reply(0, response), MESSAGE)
    (frame,) = output.frame()
    assert len(frame) == len(frame["value"][0]) // output_module.BYTES_PER_ROW
    assert frame["topic"].count() == 1
    output.add_reply(Reply(0, heartbeat_response()), MESSAGE)
    (frame,) = output.frame(state_bytes=10 * output_module.BYTES_PER_ROW)
    assert (len(frame), frame["topic"].count()) == (10, 1)
    assert not list(output.frame(output_module.BYTES_PER_ROW - 1))
    (frame,) = output.frame(output_module.BYTES_PER_ROW)
    assert (len(frame), frame["topic"].count()) == (1, 0)


def test_oversized_answer_becomes_kafkas_error() -> None:
    output = Output(SMALL)
    output.add_reply(Reply(3, join_response()), MESSAGE)
    (letter_topic, _, _, letter), (topic, partition, _, response) = written(output)
    assert (topic, partition) == ("t-responses", 3)
    assert response["type"] == "JoinGroup"
    assert (response["error_code"], response["rule"]) == (ErrorCode.UNKNOWN_SERVER_ERROR, "X2")
    assert (response["group_id"], response["correlation_id"], response["request"]) == ("g", "c", ID)
    assert response["members"] == []
    assert letter_topic == "t-dead-letters"
    assert (letter["reason"], letter["request"]) == ("RESPONSE_TOO_LARGE", ID)
    assert (letter["answered"], letter["at_ms"], letter["value_bytes"]) == (True, ROW.at_ms, len(ROW.value))


IDS = [bytes([n]) * 16 for n in range(3)]
TOPICS: dict[str, Topic | None] = {f"topic-{n}": Topic(topic_id, 900) for n, topic_id in enumerate(IDS)}


def large_group() -> ClassicGroup:
    group = group_of(*(member(f"m{n}") for n in range(20)))
    group.pending_members = {f"p{n:0100}": PendingMember("c", "/h", 1) for n in range(20)}
    return group


def consumers(members: int, partitions: int, topics: int = 0) -> ConsumerGroup:
    assigned = {topic_id: dict.fromkeys(range(partitions), 1) for topic_id in IDS}
    made = {
        f"m{n}": ConsumerMember(f"m{n}", subscribed_topic_names=list(TOPICS), assigned=assigned)
        for n in range(members)
    }
    missing = dict.fromkeys((f"{n:0100}" for n in range(topics)), None)
    return ConsumerGroup("g", "t-requests-0-0", members=made, topics={**TOPICS, **missing})


@pytest.mark.parametrize(
    ("group", "is_truncated", "first_member", "rest"),
    [
        (group_of(member("m", 3)), False, {"metadata": "eHh4", "assignment": "eXl5"}, {"state": "Stable"}),
        (group_of(member("m", 2_000)), True, {"metadata": "", "assignment": ""}, {"state": "Stable"}),
        (large_group(), True, None, {"pending_members": [], "state": "Stable", "generation": 1}),
        (consumers(1, 2), False, {"assigned": {name: [0, 1] for name in TOPICS}}, {"topics": list(TOPICS)}),
        (consumers(1, 900), True, {"assigned": {}, "subscribed_topic_names": []}, {"topics": list(TOPICS)}),
        (consumers(20, 1), True, None, {"topics": list(TOPICS), "state": "Reconciling"}),
        (consumers(1, 1, topics=20), True, None, {"topics": [], "state": "Reconciling"}),
    ],
    ids=["fits", "metadata", "members", "consumers fit", "partitions", "consumers", "topics"],
)
def test_oversized_view_drops_its_largest_part_first(
    group: ClassicGroup | ConsumerGroup,
    is_truncated: bool,
    first_member: dict[str, Any] | None,
    rest: dict[str, Any],
) -> None:
    output = Output(replace(LAYOUT, response_max_bytes=2_000))
    output.add_view(group)
    ((_, _, _, view),) = written(output)
    members = [shown | (shown.get("consumer") or {}) for shown in view["members"]]
    view |= {"topics": list((view.get("consumer") or {}).get("topics", ()))}
    assert view["truncated"] == is_truncated
    assert {name: view[name] for name in rest} == rest
    assert [{name: shown[name] for name in first_member or ()} for shown in members[:1]] == (
        [] if first_member is None else [first_member]
    )


def test_oversized_history_entry_drops_assignments_then_member_lists() -> None:
    ids = [f"m{n:0100}" for n in range(20)]
    for too_large, left in (
        (event(assignments={"m": b"x" * MAX_BYTES}, members=["m"]), {"members": ["m"]}),
        (event(assignments={"m": b"x"}, members=ids, waiting_for=ids), {}),
        (event(reason="no SyncGroup from " + "m" * 50_000), {}),
    ):
        output = Output(SMALL)
        output.add_effects(Effects(None, [], [too_large], [], [], None), b"g", MESSAGE)
        ((_, _, _, entry),) = written(output)
        kept = {name: entry[name] for name in ("assignments", "members", "waiting_for") if name in entry}
        assert kept == left
        assert (entry["seq"], entry["type"]) == (3, "Stable")
        assert len(entry["reason"]) <= SHORTENED_TEXT_CHARS


def test_largest_possible_records_fit_the_size_limit() -> None:
    """Names of the maximum length, of characters that JSON encodes in six bytes, for many members."""
    worst = "\x01" * 32_767
    members = [f"{worst}{n}" for n in range(60)]
    output = Output(LAYOUT)
    listing = event(
        group_id=worst,
        reason=worst * 60,
        members=members,
        waiting_for=members,
        member_id=worst,
        group_instance_id=worst,
        client_id=worst,
        client_host=worst,
        client_reason=worst,
        principal=worst,
        leader_id=worst,
        protocol_name=worst,
        assignments=dict.fromkeys(members, b""),
    )
    output.add_effects(Effects(None, [], [listing], [], [], None), b"g", MESSAGE)
    group = group_of(*(member(name) for name in members))
    group.group_id = group.last_rebalance_reason = group.protocol_type = worst
    group.quarantined = worst * 60
    output.add_view(group)
    (frame,) = output.frame()
    assert max(len(value) for value in frame["value"].dropna()) <= LAYOUT.view_max_bytes


def test_a_dead_letter_shows_the_record() -> None:
    output = Output(LAYOUT)
    output.add_dead_letter(dead_letter(Reason.KEY_MISMATCH, "why", ROW.key, MESSAGE, answered=True))
    ((_, _, key, letter),) = written(output)
    assert key == b"\xff"
    assert letter == {
        "version": 1,
        "reason": "KEY_MISMATCH",
        "message": "why",
        "request": ID,
        "at_ms": ROW.at_ms,
        "answered": True,
        "key": "/w==",
        "value": "dGhlIHJlcXVlc3Q=",
        "value_bytes": 11,
    }


def test_long_dead_letter_is_truncated() -> None:
    value, record_key = b"v" * 1_000_000, b"\xff" * 2_000_000
    message = LogMessage(LogRow(2, 41, 1, record_key, value), None, value, ID)
    output = Output(LAYOUT)
    output.add_dead_letter(
        dead_letter(Reason.KEY_MISMATCH, "\x01" * 6_000_000, record_key, message, answered=True)
    )
    ((_, _, key, letter),) = written(output)
    assert len(key) == DEAD_LETTER_MAX_BYTES
    assert len(letter["message"]) == MESSAGE_MAX_CHARS
    assert len(letter["key"]) == len(letter["value"]) == -(-DEAD_LETTER_MAX_BYTES // 3) * 4
    assert letter["value_bytes"] == 1_000_000
