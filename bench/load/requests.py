"""The requests of the load: groups of members that join, send heartbeats and commit offsets.

Of eight requests five are heartbeats and three are commits, as a consumer with Kafka's defaults sends
(heartbeat.interval.ms is 3 s, auto.commit.interval.ms is 5 s).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kafka_why.contract.kafka.requests import (
    AnyAnsweredRequest,
    CommittedPartition,
    CommittedTopic,
    DeleteGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    OffsetCommit,
    Protocol,
    SyncGroup,
)

TOPIC = "bench-orders"
"""The topic of the commits. It must exist, because brokers refuse commits to a topic that does not."""

PARTITIONS = 16
SESSION_TIMEOUT_MS = 1_800_000  # group.max.session.timeout.ms
REBALANCE_TIMEOUT_MS = 60_000
REPLY_PARTITION = 0
ASSIGNMENT = b"an assignment of some forty-eight bytes, as usual"

_COMMITS_OF_EIGHT = (1, 4, 6)  # places of the commits among eight requests


class Membership(NamedTuple):
    """A member in a generation of its group."""

    group_id: str
    member_id: str
    generation_id: int


def is_commit(number: int, groups: int) -> bool:
    """Return True if request `number` of a load over `groups` groups is a commit.

    Requests go to the groups in turn. Both the requests of one group and those of one turn are mixed.
    """
    return (number % groups + number // groups) % 8 in _COMMITS_OF_EIGHT


def members_for(members: Sequence[Membership], number: int) -> Iterator[tuple[int, Membership]]:
    """Yield the number and the member of each of `number` requests of a load. The members take turns."""
    for n in range(number):
        yield n, members[n % len(members)]


def join_request(
    group_id: str,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
) -> JoinGroup:
    """Return the JoinGroup of a new member. Version 3 needs no second request for the member id."""
    return JoinGroup(
        group_id=group_id,
        correlation_id="",
        reply_partition=REPLY_PARTITION,
        api_version=3,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type="consumer",
        protocols=[Protocol("range")],
    )


def sync_request(member: Membership, others: Sequence[Membership] = ()) -> SyncGroup:
    """Return the SyncGroup of a member. For the leader, `others` are all members, itself too."""
    return SyncGroup(
        group_id=member.group_id,
        correlation_id="",
        reply_partition=REPLY_PARTITION,
        api_version=3,
        generation_id=member.generation_id,
        member_id=member.member_id,
        assignments=[MemberAssignment(other.member_id, ASSIGNMENT) for other in others],
    )


def heartbeat_request(member: Membership) -> Heartbeat:
    return Heartbeat(
        group_id=member.group_id,
        correlation_id="",
        reply_partition=REPLY_PARTITION,
        api_version=4,
        generation_id=member.generation_id,
        member_id=member.member_id,
    )


def commit_request(member: Membership, offset: int, partitions: Sequence[int] = (0,)) -> OffsetCommit:
    committed = [CommittedPartition(partition, offset) for partition in partitions]
    return OffsetCommit(
        group_id=member.group_id,
        correlation_id="",
        reply_partition=REPLY_PARTITION,
        api_version=8,
        generation_id=member.generation_id,
        member_id=member.member_id,
        topics=[CommittedTopic(TOPIC, committed)],
    )


def leave_request(members: Sequence[Membership]) -> LeaveGroup:
    """Return the LeaveGroup for all members of one group."""
    return LeaveGroup(
        group_id=members[0].group_id,
        correlation_id="",
        reply_partition=REPLY_PARTITION,
        api_version=5,
        members=[LeavingMember(member.member_id) for member in members],
    )


def delete_request(group_id: str) -> DeleteGroup:
    return DeleteGroup(group_id=group_id, correlation_id="", reply_partition=REPLY_PARTITION, api_version=2)


def mixed_requests(members: Sequence[Membership], number: int) -> list[AnyAnsweredRequest]:
    """Return this many heartbeats and commits of these groups of one member each."""
    return [
        commit_request(member, n) if is_commit(n, len(members)) else heartbeat_request(member)
        for n, member in members_for(members, number)
    ]
