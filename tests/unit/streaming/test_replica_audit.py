"""The audit of early answers, in whatever order they and the query's are read."""

from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgspec
import pytest

from clients.coordinator_client import decode_response
from kafka_why.contract.codec import PACK_MAX_REQUESTS, encode, is_pack
from kafka_why.contract.kafka import requests as kafka
from kafka_why.contract.messages import ErrorCode, ErrorResponse, ReleaseGroupResponse
from kafka_why.contract.rocketmq import requests as rocketmq
from kafka_why.contract.rocketmq.requests import (
    AnyToConnection,
    CloseConnection,
    ConsumerListResponse,
    NotifyConsumerIdsChanged,
)
from state.kafka.context import Reply
from state.rocketmq.context import Effects, Push
from state.rocketmq.context import Reply as RocketMqReply
from streaming.query.output_values import ANSWERS_MAX_BYTES
from streaming.replica import audit as audit_of_answers
from streaming.replica.answers import Answers
from streaming.replica.audit import (
    OVERDUE_AFTER_S,
    QUERY_ANSWERS_MAX,
    AnswerDifference,
    Audit,
    ReplicaPosition,
    request_of,
)
from tests.harness.coordinated_log import answers_in, apply_all, machine, with_clock_records
from tests.spark.log import T0, Log, heartbeat, join, leave
from tests.unit.clients.test_answers import required

HERE = ReplicaPosition({0: 5, 1: 5}, 1_000)


def answer(request: str, said: str = "x") -> bytes:
    error = ErrorCode.NONE
    return encode(ReleaseGroupResponse(group_id=said, correlation_id="c", request=request, error_code=error))


def early(
    audit: Audit, request: str, said: str = "x", place: ReplicaPosition = HERE
) -> AnswerDifference | None:
    return audit.add_early({request: answer(request, said)}, place)


def query(audit: Audit, request: str, said: str = "x") -> AnswerDifference | None:
    return audit.add_query([answer(request, said)])


@pytest.mark.parametrize("order", [(early, query), (query, early)], ids=["early first", "query first"])
def test_audit_finds_differing_answers_in_either_order(
    order: Sequence[Callable[[Audit, str, str], AnswerDifference | None]],
) -> None:
    """A batch that runs again adds no difference."""
    audit = Audit()
    assert [take(audit, "same", "x") for take in (*order, query, query)] == [None] * 4
    assert [take(audit, "r", "one" if take is early else "two") for take in order] == [
        None,
        AnswerDifference("r", answer("r", "one"), answer("r", "two")),
    ]
    assert (audit.compared, audit.size_bytes) == (2, 0)
    audit.add_early({f"r{n}": answer(f"r{n}") for n in range(5)}, HERE)
    assert audit.size_bytes == 5 * len(answer("r0"))
    found = audit.add_query([answer("r0"), answer("r1"), answer("r2", "other"), answer("r3"), answer("r4")])
    assert found is not None and found.request == "r2"


def test_unmatched_answers_of_the_query_are_bounded_in_number() -> None:
    audit = Audit()
    audit.add_query(answer(f"r{n}") for n in range(QUERY_ANSWERS_MAX + 1))
    assert early(audit, "r0", "other") is None, "forgotten"
    assert early(audit, "r1", "other") is not None


def test_unmatched_answers_of_the_query_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_of_answers, "QUERY_ANSWERS_MAX_BYTES", 2 * len(answer("r0")))
    audit = Audit()
    audit.add_query(answer(name) for name in ("r0", "r0", "r1", "r2"))
    assert early(audit, "r0", "other") is None, "forgotten"
    assert early(audit, "r1", "other") is not None
    audit.add_query([answer("r3")])
    assert early(audit, "r2", "other") is not None, "what was compared takes no room"


@pytest.mark.parametrize(
    ("read", "said", "is_missing"),
    [
        (ReplicaPosition({0: 5, 1: 6}, 1_000), (early,), True),
        (ReplicaPosition({0: 9, 1: 9}, 9_000), (early, query), False),
        (ReplicaPosition({0: 4, 1: 9}, 9_000), (early,), False),
        (ReplicaPosition({0: 9}, 9_000), (early,), False),
        (ReplicaPosition({0: 9, 1: 9}, 999), (early,), False),
        (None, (early,), False),
    ],
    ids=["never", "it came", "a record before", "a partition unread", "no deadline has fired", "no batch"],
)
def test_audit_reports_an_answer_the_query_lacks_after_its_batch(
    read: ReplicaPosition | None, said: Sequence[Callable[[Audit, str], object]], is_missing: bool
) -> None:
    audit = Audit()
    for take in said:
        take(audit, "r")
    if read is not None:
        audit.committed(read, 100.0)
    assert audit.overdue(100.0 + OVERDUE_AFTER_S - 0.1) is None, "the answers may be on their way"
    expected = AnswerDifference("r", answer("r"), None) if is_missing else None
    assert audit.overdue(100.0 + OVERDUE_AFTER_S) == expected


HOSTILE = (
    '","request":"other","x":"',
    '"correlation_id":"',
    '","correlation_id":"x","request":"y',
    '\\","correlation_id":"x","request":"y',
    "\\",
    "\n\u2028é\0",
)
RESPONSES = (*kafka.ANSWERS, *rocketmq.ANSWERS, ErrorResponse)


def filled(kind: type[msgspec.Struct], text: str) -> Any:
    """Return a message with the text in each string that it cannot be without."""
    texts: dict[str, Any] = dict.fromkeys(required(kind), text)
    return kind(**{name: ErrorCode.NONE if name == "error_code" else text for name, text in texts.items()})


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
@pytest.mark.parametrize(
    "kind", dict.fromkeys(RESPONSES), ids=lambda kind: f"{kind.__module__}.{kind.__name__}"
)
def test_request_id_is_found_in_every_encoded_response(kind: type[msgspec.Struct], text: str) -> None:
    """It is found however hostile its strings are, because JSON escapes quotes and most strings follow it."""
    assert kind.__struct_encode_fields__[:3] == ("group_id", "correlation_id", "request")
    response = msgspec.structs.replace(filled(kind, text), request="eu-requests-0-17#4")
    assert text in msgspec.json.decode(encode(response)).values()
    assert request_of(encode(response)) == "eu-requests-0-17#4"


@pytest.mark.parametrize(
    "answer",
    [
        *(encode(filled(kind, text)) for kind in get_args(AnyToConnection) for text in HOSTILE),
        *(b"", b"{}", b'{"type":"Clock"}', b'{"request":"r"}'),
    ],
    ids=repr,
)
def test_notifications_and_foreign_records_answer_no_request(answer: bytes) -> None:
    assert request_of(answer) is None


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
        sink.add_reply(each)
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
    assert set(apply_all(machine(), with_clock_records(records))) == {records[0].id, records[2].id}


def test_replica_leaves_parked_requests_that_wait_for_views_to_the_query() -> None:
    """The second JoinGroup of a group waits for the first member, here until that one leaves."""
    log = Log()
    stable, member_id = log.stable_member(T0, "a")
    marked = log.request(T0 + 1, msgspec.structs.replace(join("a", "second"), waits_for_views=True))
    left = log.request(T0 + 2, leave("a", member_id))
    replica = machine()
    assert set(apply_all(replica, with_clock_records([*stable, marked]))) == {record.id for record in stable}
    assert set(apply_all(replica, list(with_clock_records([*stable, marked, left]))[-2:])) == {left.id}


def test_replica_notifies_rocketmq_clients_and_leaves_ends_of_connections_to_the_query() -> None:
    ended = CloseConnection(group_id="g", connection="c", client_id="i", request="t-0-1#0", reason="silent")
    changed = NotifyConsumerIdsChanged(group_id="g", connection="d", client_id="j", request="t-0-1#0")
    listed = ConsumerListResponse(group_id="g", correlation_id="1", request="t-0-1#0")
    sink = answers()
    pushes = [Push(1, ended), Push(1, changed)]
    sink.add_effects(Effects(None, [RocketMqReply(1, listed)], pushes=pushes), b"g", None)
    answer, notification = sink.drain()
    assert (answer.reply_partition, list(answer.answers)) == (1, ["t-0-1#0"])
    assert (notification.reply_partition, notification.answers) == (1, {}), "the audit compares answers"
    assert decode_response(notification.value) == changed
