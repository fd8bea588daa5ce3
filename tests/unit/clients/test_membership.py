"""A member's side of the protocol: its next action after each possible answer of the coordinator."""

from collections.abc import Mapping
from typing import Any

import pytest

from assignors.kafka.api import Assignment, Subscription, TopicPartition
from assignors.kafka.consumer_protocol import decode_assignment, encode_assignment, encode_subscription
from clients.membership import (
    FIRST_BACK_OFF_MS,
    LONGEST_BACK_OFF_MS,
    Consume,
    GoOn,
    Membership,
    Rejoin,
    Stop,
    Sync,
)
from state.errors import ErrorCode
from state.kafka.responses import (
    NO_GENERATION,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupResponse,
    SyncGroupResponse,
)
from state.messages import Response

PARTITIONS = {"orders": 4, "prices": 1}
RETRIABLE = [
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]
FATAL = [
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.INVALID_SESSION_TIMEOUT,
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_REQUEST,
]


def count(topics: frozenset[str]) -> Mapping[str, int]:
    return {topic: PARTITIONS[topic] for topic in topics if topic in PARTITIONS}


def new_member(instance_id: str | None = None) -> Membership:
    return Membership(("orders",), ("range", "roundrobin"), count, instance_id)


def answer(kind: type[Response], error: ErrorCode = ErrorCode.NONE, **fields: Any) -> Any:
    return kind(group_id="g", correlation_id="c", request="requests-0-1", error_code=error, **fields)


def join_answer(**fields: Any) -> JoinGroupResponse:
    given: dict[str, Any] = {
        "generation_id": 3,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": "other",
        "member_id": "me",
    }
    response: JoinGroupResponse = answer(JoinGroupResponse, **given | fields)
    return response


def joined(member: Membership, **fields: Any) -> Membership:
    assert isinstance(member.joined(join_answer(**fields)), Sync)
    return member


def subscriber(member_id: str, *topics: str, instance_id: str | None = None) -> JoinGroupMember:
    return JoinGroupMember(member_id, instance_id, encode_subscription(Subscription(topics)))


def test_it_offers_its_assignors_best_first_with_its_topics() -> None:
    metadata = encode_subscription(Subscription(("orders",)))
    assert [(p.name, p.metadata) for p in new_member().protocols] == [
        ("range", metadata),
        ("roundrobin", metadata),
    ]


def test_an_id_it_was_given_is_used_at_once() -> None:
    member = new_member()
    next_ = member.joined(answer(JoinGroupResponse, ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    assert isinstance(next_, Rejoin) and next_.back_off_ms == 0
    assert member.member_id == "me"
    assert member.generation == NO_GENERATION


def test_a_follower_syncs_with_nothing() -> None:
    member = new_member()
    assert member.joined(join_answer()) == Sync([])
    assert (member.member_id, member.generation, member.protocol_name) == ("me", 3, "range")
    assert not member.is_leader


def test_a_leader_deals_by_the_protocol_that_was_selected() -> None:
    member = new_member()
    members = [subscriber("me", "orders"), subscriber("other", "orders", "prices", "unknown")]
    sync = member.joined(join_answer(leader="me", members=members))
    assert isinstance(sync, Sync) and member.is_leader
    dealt = {a.member_id: decode_assignment(a.assignment).partitions for a in sync.assignments}
    assert dealt == {
        "me": (TopicPartition("orders", 0), TopicPartition("orders", 1)),
        "other": (TopicPartition("orders", 2), TopicPartition("orders", 3), TopicPartition("prices", 0)),
    }


def test_a_returning_static_leader_does_not_assign() -> None:
    member = new_member("one")
    answered = join_answer(leader="me", skip_assignment=True, members=[subscriber("me", "orders")])
    assert member.joined(answered) == Sync([])


def test_a_leader_that_cannot_read_a_subscription_stops() -> None:
    members = [JoinGroupMember("other", None, b"\x00")]
    next_ = new_member().joined(join_answer(leader="me", members=members))
    assert isinstance(next_, Stop) and "cannot read" in next_.reason


@pytest.mark.parametrize("partitions", [(), (TopicPartition("orders", 2),)])
def test_an_assignment_is_consumed(partitions: tuple[TopicPartition, ...]) -> None:
    data = encode_assignment(Assignment(partitions))
    assert joined(new_member()).synced(answer(SyncGroupResponse, assignment=data)) == Consume(partitions)


def test_no_bytes_are_no_partitions() -> None:
    assert joined(new_member()).synced(answer(SyncGroupResponse)) == Consume(())


def test_an_assignment_that_cannot_be_read_stops_it() -> None:
    next_ = joined(new_member()).synced(answer(SyncGroupResponse, assignment=b"\x00"))
    assert isinstance(next_, Stop)


def test_a_heartbeat_that_is_welcome_changes_nothing() -> None:
    assert joined(new_member()).beaten(answer(HeartbeatResponse), "me", 3) == GoOn()


@pytest.mark.parametrize(("member_id", "generation"), [("me", 2), ("i-was", 3)])
def test_a_late_answer_to_an_earlier_self_is_ignored(member_id: str, generation: int) -> None:
    member = joined(new_member())
    late = answer(HeartbeatResponse, ErrorCode.UNKNOWN_MEMBER_ID)
    assert member.beaten(late, member_id, generation) == GoOn()
    assert member.member_id == "me"


@pytest.mark.parametrize("by", ["heartbeat", "sync"])
def test_a_rebalance_is_joined_at_once_under_the_same_id(by: str) -> None:
    member = joined(new_member())
    next_ = refuse(member, by, ErrorCode.REBALANCE_IN_PROGRESS)
    assert isinstance(next_, Rejoin) and next_.back_off_ms == 0
    assert (member.member_id, member.generation) == ("me", NO_GENERATION)


@pytest.mark.parametrize("by", ["heartbeat", "sync", "join"])
@pytest.mark.parametrize("error", RETRIABLE)
def test_errors_that_pass_are_followed_by_another_join_after_a_while(by: str, error: ErrorCode) -> None:
    member = joined(new_member())
    next_ = refuse(member, by, error)
    assert isinstance(next_, Rejoin) and next_.back_off_ms == FIRST_BACK_OFF_MS
    assert error.name in next_.reason
    assert member.member_id == ("" if error is ErrorCode.UNKNOWN_MEMBER_ID else "me")
    assert member.generation == NO_GENERATION


@pytest.mark.parametrize("by", ["heartbeat", "sync", "join"])
@pytest.mark.parametrize("error", FATAL)
def test_errors_that_do_not_pass_stop_it_with_the_reason(by: str, error: ErrorCode) -> None:
    next_ = refuse(joined(new_member("one")), by, error)
    assert isinstance(next_, Stop) and next_.reason.startswith(error.name)


def test_the_back_off_grows_to_a_bound_and_restarts_after_a_success() -> None:
    member = new_member()
    waits = [wait(member.failed(TimeoutError("no answer"))) for _ in range(6)]
    assert waits == [100, 200, 400, 800, LONGEST_BACK_OFF_MS, LONGEST_BACK_OFF_MS]
    joined(member)
    assert wait(member.failed(TimeoutError("no answer"))) == FIRST_BACK_OFF_MS


def refuse(member: Membership, by: str, error: ErrorCode) -> object:
    match by:
        case "heartbeat":
            return member.beaten(answer(HeartbeatResponse, error), member.member_id, member.generation)
        case "sync":
            return member.synced(answer(SyncGroupResponse, error))
        case _:
            return member.joined(answer(JoinGroupResponse, error, member_id=member.member_id))


def wait(next_: object) -> int:
    assert isinstance(next_, Rejoin)
    return next_.back_off_ms
