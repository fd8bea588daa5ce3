"""The records in which early answers are appended, and which answers are left to the query."""

from collections.abc import Iterable

import msgspec

from records.pack import PACK_MAX_REQUESTS, is_pack, unpack
from state.errors import ErrorCode
from state.kafka.effects import Reply
from state.kafka.responses import HeartbeatResponse, JoinGroupResponse
from state.messages import ErrorResponse
from state.rocketmq.effects import Effects, Push
from state.rocketmq.effects import Reply as RocketMqReply
from state.rocketmq.responses import CloseConnection, ConsumerListResponse
from streaming.query.output_values import ANSWERS_MAX_BYTES
from streaming.replica.answers import Answers, EarlyRecord
from tests.harness.replica_log import answers_in, apply_all, machine, owned
from tests.spark.log import T0, Log, heartbeat, join, leave

MAX_BYTES = 2 * ANSWERS_MAX_BYTES


def answers(*, max_bytes: int = MAX_BYTES) -> Answers:
    made = Answers(max_bytes, lambda _: None)
    made.is_silent = False
    return made


def reply(request: str, reply_partition: int = 0, text: str = "") -> Reply:
    error = ErrorResponse(
        group_id="g",
        correlation_id=f"of {request}",
        request=request,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=text,
    )
    return Reply(reply_partition, error)


def taken(replies: Iterable[Reply]) -> list[EarlyRecord]:
    sink = answers()
    for each in replies:
        sink.reply(each)
    return sink.drain()


def requests_in(records: Iterable[EarlyRecord]) -> list[list[str]]:
    assert answers_in(records) is not None
    return [list(record.answers) for record in records]


def test_the_answer_to_a_single_request_is_a_record() -> None:
    records = taken(map(reply, ("t-0-1", "t-0-2")))
    assert requests_in(records) == [["t-0-1"], ["t-0-2"]]
    assert not any(is_pack(record.value) for record in records)


def test_answers_to_packed_requests_are_packed_by_reply_partition() -> None:
    records = taken(reply(f"t-0-1#{n}", n % 2) for n in range(4))
    assert [(record.reply_partition, list(record.answers)) for record in records] == [
        (0, ["t-0-1#0", "t-0-1#2"]),
        (1, ["t-0-1#1", "t-0-1#3"]),
    ]
    assert all(is_pack(record.value) for record in records)


def test_a_single_answer_stands_behind_the_packed_ones_before_it() -> None:
    records = taken(map(reply, ("t-0-1#0", "t-0-1#1", "t-0-2", "t-0-3#0")))
    assert requests_in(records) == [["t-0-1#0", "t-0-1#1"], ["t-0-2"], ["t-0-3#0"]]


def test_a_pack_has_a_bound_in_answers() -> None:
    records = taken(reply(f"t-0-1#{n}") for n in range(PACK_MAX_REQUESTS + 1))
    assert [len(record.answers) for record in records] == [PACK_MAX_REQUESTS, 1]


def test_a_pack_has_a_bound_in_bytes() -> None:
    text = "x" * (ANSWERS_MAX_BYTES // 3)
    records = taken(reply(f"t-0-1#{n}", text=text) for n in range(5))
    assert [len(record.answers) for record in records] == [2, 2, 1]
    large = taken([reply("t-0-1#0"), reply("t-0-1#1", text="x" * ANSWERS_MAX_BYTES), reply("t-0-1#2")])
    assert [len(record.answers) for record in large] == [1, 1, 1], "it may be as large as the topic allows"


def test_what_was_taken_is_forgotten() -> None:
    sink = answers()
    sink.reply(reply("t-0-1#0"))
    assert sink.size_bytes > 0
    assert len(sink.drain()) == 1
    assert sink.size_bytes == 0
    assert sink.drain() == []


def test_a_silent_replica_keeps_nothing() -> None:
    sink = answers()
    sink.is_silent = True
    sink.reply(reply("t-0-1"))
    sink.is_silent = False
    sink.reply(reply("t-0-2"))
    assert requests_in(sink.drain()) == [["t-0-2"]]


def test_an_answer_that_is_too_large_becomes_an_error() -> None:
    sink = answers(max_bytes=500)
    sink.reply(reply("t-0-1", text="x" * 1_000))
    (value,) = answers_in(sink.drain()).values()
    assert len(value) <= 500
    assert msgspec.json.decode(value)["request"] == "t-0-1"


def test_what_waits_for_views_is_left_to_the_query() -> None:
    log = Log()
    records = [
        log.request(T0, heartbeat("a", "nobody")),
        log.request(T0, msgspec.structs.replace(heartbeat("a", "nobody"), waits_for_views=True)),
        log.request(T0, heartbeat("a", "nobody")),
    ]
    assert set(apply_all(machine(), owned(records))) == {records[0].id, records[2].id}


def test_a_marked_request_that_is_parked_is_left_to_the_query_when_it_is_answered() -> None:
    """The second JoinGroup of a group waits for the first member, here until that one leaves."""
    log = Log()
    stable, member_id = log.stable_member(T0, "a")
    marked = log.request(T0 + 1, msgspec.structs.replace(join("a", "second"), waits_for_views=True))
    left = log.request(T0 + 2, leave("a", member_id))
    replica = machine()
    assert set(apply_all(replica, owned([*stable, marked]))) == {record.id for record in stable}
    assert set(apply_all(replica, list(owned([*stable, marked, left]))[-2:])) == {left.id}


def test_the_same_request_without_the_mark_is_answered_early() -> None:
    log = Log()
    stable, member_id = log.stable_member(T0, "a")
    parked = log.request(T0 + 1, join("a", "second"))
    left = log.request(T0 + 2, leave("a", member_id))
    found = apply_all(machine(), owned([*stable, parked, left]))
    assert msgspec.json.decode(found[parked.id], type=JoinGroupResponse).generation_id == 2


def test_messages_to_connections_come_from_the_query() -> None:
    pushed = CloseConnection(group_id="g", connection="c", client_id="i", request="t-0-1", reason="silent")
    listed = ConsumerListResponse(group_id="g", correlation_id="1", request="t-0-1")
    sink = answers()
    sink.effects(Effects(None, [RocketMqReply(1, listed)], pushes=[Push(2, pushed)]), b"g", None)
    (record,) = sink.drain()
    assert (record.reply_partition, list(record.answers)) == (1, ["t-0-1"])


def test_packs_are_read_as_they_were_written() -> None:
    (record,) = taken(reply(f"t-0-1#{n}", text="a\nb") for n in range(3))
    assert [msgspec.json.decode(value)["request"] for value in unpack(record.value)] == list(record.answers)


def test_a_heartbeat_is_answered() -> None:
    """So that the tests above do not all speak of refusals."""
    log = Log()
    stable, member_id = log.stable_member(T0, "a")
    beat = log.request(T0 + 1, heartbeat("a", member_id))
    found = apply_all(machine(), owned([*stable, beat]))
    assert msgspec.json.decode(found[beat.id], type=HeartbeatResponse).error_code is ErrorCode.NONE
