"""A log of requests and clock records as a broker keeps it. Tests feed it to the query."""

from collections import Counter
from typing import NamedTuple

from kafka_why.contract.codec import AnyRequest, clock_record, encode, request_id
from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    Protocol,
    SyncGroup,
    TransactionMarker,
    TxnOffsetCommit,
)
from kafka_why.contract.layout import TopicLayout
from kafka_why.partitioner import partition_of
from state.kafka.context import new_member_id
from tests.harness.common import Common

T0 = 1_700_000_000_000
LAYOUT = TopicLayout(
    requests_topic="requests",
    responses_topic="responses",
    groups_topic="groups",
    offsets_topic="offsets",
    events_topic="events",
    dead_letters_topic="dead-letters",
    owner_topic="owner",
    txn_markers_topic="txn-markers",
    transactions_topic="transactions",
    sightings_topic="sightings",
    request_partitions=2,
    reply_partitions=4,
    telemetry_topic="telemetry",
)
NAMESPACE = "00000000-0000-0000-0000-000000000000"


class Record(NamedTuple):
    """A record of the requests topic."""

    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def id(self) -> str:
        return request_id(LAYOUT.requests_topic, self.partition, self.offset)


class Log:
    """Appends records. Each partition has its own offsets."""

    def __init__(self) -> None:
        self._ends: Counter[int] = Counter()

    def append(self, at_ms: int, key: bytes | None, value: bytes | None, partition: int) -> Record:
        """Append any record."""
        record = Record(partition, self._ends[partition], at_ms, key, value)
        self._ends[partition] += 1
        return record

    def request(self, at_ms: int, request: AnyRequest) -> Record:
        """Append a request to its group's partition."""
        partition = partition_of(request.group_id, LAYOUT.request_partitions)
        return self.append(at_ms, request.group_id.encode(), encode(request), partition)

    def clock(self, at_ms: int, attested_ms: int, owner_epoch: int | None = None) -> list[Record]:
        """Append a clock record to every partition."""
        partitions = range(LAYOUT.request_partitions)
        return [self.append(at_ms, None, clock_record(attested_ms, owner_epoch), p) for p in partitions]

    def stable_member(
        self, at_ms: int, group_id: str, client: str = "c", session_ms: int = 10_000
    ) -> tuple[list[Record], str]:
        """Return the requests that make a group of one member, and the member's id. Needs a zero initial
        delay.
        """
        joined = self.request(at_ms, join(group_id, client, session_ms=session_ms))
        member_id = new_member_id(client, joined.id, NAMESPACE)
        synced = self.request(at_ms, sync(group_id, member_id, 1, {member_id: b"all of it"}))
        return [joined, synced], member_id


def _common(group_id: str, client: str, api_version: int) -> Common:
    return {
        "group_id": group_id,
        "correlation_id": f"asked by {client}",
        "reply_partition": 1,
        "api_version": api_version,
        "client_id": client,
    }


def join(
    group_id: str,
    client: str = "c",
    *,
    member_id: str = "",
    instance_id: str | None = None,
    session_ms: int = 10_000,
    rebalance_ms: int = 60_000,
    metadata: bytes = b"m",
) -> JoinGroup:
    """Return a JoinGroup of version 3, which needs no second request for the member id."""
    return JoinGroup(
        **_common(group_id, client, 3),
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[Protocol("range", metadata)],
    )


def sync(
    group_id: str, member_id: str, generation: int, assignments: dict[str, bytes] | None = None
) -> SyncGroup:
    return SyncGroup(
        **_common(group_id, "c", 5),
        generation_id=generation,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[MemberAssignment(*pair) for pair in (assignments or {}).items()],
    )


def heartbeat(group_id: str, member_id: str, generation: int = 1, client: str = "c") -> Heartbeat:
    return Heartbeat(**_common(group_id, client, 4), generation_id=generation, member_id=member_id)


def leave(group_id: str, member_id: str) -> LeaveGroup:
    return LeaveGroup(**_common(group_id, "c", 5), members=[LeavingMember(member_id)])


def txn_commit(group_id: str, offset: int, position: int = 40) -> TxnOffsetCommit:
    """Offsets of partitions 0 and 1 of topic t in a transaction, by no member. Producer 4001 has epoch 7."""
    return TxnOffsetCommit(
        **_common(group_id, "c", 5),
        transactional_id="t-1",
        producer_id=4001,
        producer_epoch=7,
        txn_version=2,
        txn_partition=0,
        txn_position=position,
        topics=[CommittedTopic("t", [CommittedPartition(p, offset) for p in (0, 1)])],
    )


def marker(group_id: str, position: int = 40, *, committed: bool = True) -> TransactionMarker:
    return TransactionMarker(
        **_common(group_id, "follower", 0),
        producer_id=4001,
        producer_epoch=8,
        txn_partition=0,
        txn_position=position,
        first_position=position,
        committed=committed,
    )
