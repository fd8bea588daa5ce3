"""The records in which early answers are appended, and which answers are left to the query."""

import msgspec
import pytest

from clients.coordinator_client import decode_response
from kafka_why.contract.codec import PACK_MAX_REQUESTS, is_pack
from kafka_why.contract.messages import ErrorCode, ErrorResponse
from kafka_why.contract.rocketmq.requests import (
    CloseConnection,
    ConsumerListResponse,
    NotifyConsumerIdsChanged,
)
from state.kafka.context import Reply
from state.rocketmq.context import Effects, Push
from state.rocketmq.context import Reply as RocketMqReply
from streaming.query.output_values import ANSWERS_MAX_BYTES
from streaming.replica.answers import Answers
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


LARGE = "x" * (ANSWERS_MAX_BYTES // 3)


@pytest.mark.parametrize(
    ("replies", "records"),
    [
        ([reply("t-0-1"), reply("t-0-2")], [(0, ["t-0-1"]), (0, ["t-0-2"])]),
        (
            [reply(f"t-0-1#{n}", n % 2) for n in range(4)],
            [(0, ["t-0-1#0", "t-0-1#2"]), (1, ["t-0-1#1", "t-0-1#3"])],
        ),
        (
            [reply("t-0-1#0"), reply("t-0-1#1"), reply("t-0-2"), reply("t-0-3#0")],
            [(0, ["t-0-1#0", "t-0-1#1"]), (0, ["t-0-2"]), (0, ["t-0-3#0"])],
        ),
        (
            [reply(f"t-0-1#{n}") for n in range(PACK_MAX_REQUESTS + 1)],
            [(0, [f"t-0-1#{n}" for n in range(PACK_MAX_REQUESTS)]), (0, [f"t-0-1#{PACK_MAX_REQUESTS}"])],
        ),
        (
            [reply(f"t-0-1#{n}", text=LARGE) for n in range(5)],
            [(0, ["t-0-1#0", "t-0-1#1"]), (0, ["t-0-1#2", "t-0-1#3"]), (0, ["t-0-1#4"])],
        ),
        (
            [reply("t-0-1#0"), reply("t-0-1#1", text=3 * LARGE), reply("t-0-1#2")],
            [(0, ["t-0-1#0"]), (0, ["t-0-1#1"]), (0, ["t-0-1#2"])],
        ),
    ],
    ids=[
        "single",
        "by reply partition",
        "a single one between packs",
        "many",
        "large",
        "as large as the topic",
    ],
)
def test_answers_to_packed_requests_are_packed_in_their_order(
    replies: list[Reply], records: list[tuple[int, list[str]]]
) -> None:
    sink = answers()
    for each in replies:
        sink.reply(each)
    assert sink.size_bytes > 0
    found = sink.drain()
    assert [(record.reply_partition, list(record.answers)) for record in found] == records
    assert answers_in(found)
    assert [is_pack(record.value) for record in found] == ["#" in names[0] for _, names in records]
    assert (sink.size_bytes, sink.drain()) == (0, [])


def test_replica_leaves_requests_that_wait_for_views_to_the_query() -> None:
    log = Log()
    records = [
        log.request(T0, heartbeat("a", "nobody")),
        log.request(T0, msgspec.structs.replace(heartbeat("a", "nobody"), waits_for_views=True)),
        log.request(T0, heartbeat("a", "nobody")),
    ]
    assert set(apply_all(machine(), owned(records))) == {records[0].id, records[2].id}


def test_replica_leaves_parked_requests_that_wait_for_views_to_the_query() -> None:
    """The second JoinGroup of a group waits for the first member, here until that one leaves."""
    log = Log()
    stable, member_id = log.stable_member(T0, "a")
    marked = log.request(T0 + 1, msgspec.structs.replace(join("a", "second"), waits_for_views=True))
    left = log.request(T0 + 2, leave("a", member_id))
    replica = machine()
    assert set(apply_all(replica, owned([*stable, marked]))) == {record.id for record in stable}
    assert set(apply_all(replica, list(owned([*stable, marked, left]))[-2:])) == {left.id}


def test_replica_notifies_rocketmq_clients_and_leaves_ends_of_connections_to_the_query() -> None:
    ended = CloseConnection(group_id="g", connection="c", client_id="i", request="t-0-1#0", reason="silent")
    changed = NotifyConsumerIdsChanged(group_id="g", connection="d", client_id="j", request="t-0-1#0")
    listed = ConsumerListResponse(group_id="g", correlation_id="1", request="t-0-1#0")
    sink = answers()
    pushes = [Push(1, ended), Push(1, changed)]
    sink.effects(Effects(None, [RocketMqReply(1, listed)], pushes=pushes), b"g", None)
    answer, notification = sink.drain()
    assert (answer.reply_partition, list(answer.answers)) == (1, ["t-0-1#0"])
    assert (notification.reply_partition, notification.answers) == (1, {}), "the audit compares answers"
    assert decode_response(notification.value) == changed
