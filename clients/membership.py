"""The member's side of the protocol, without IO: the next action of a consumer after each answer.

This is the eager protocol of Kafka's consumer: give up all partitions, JoinGroup, SyncGroup, then heartbeats
until the answer to one announces a rebalance. Source: AbstractCoordinator and ConsumerCoordinator of Kafka's
Java client.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from assignors.kafka import ASSIGNORS
from assignors.kafka.api import Assignment, MemberSubscription, Subscription, TopicPartition
from assignors.kafka.consumer_protocol import (
    ProtocolError,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from state.errors import ErrorCode
from state.kafka.requests import MemberAssignment, Protocol
from state.kafka.responses import (
    NO_GENERATION,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupResponse,
    SyncGroupResponse,
)

FIRST_BACK_OFF_MS = 100  # retry.backoff.ms of Kafka's clients
LONGEST_BACK_OFF_MS = 1_000  # retry.backoff.max.ms

PartitionCounts = Callable[[frozenset[str]], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Give up all partitions now, and send a JoinGroup after `back_off_ms`."""

    reason: str
    back_off_ms: int = 0


@dataclass(frozen=True, slots=True)
class Sync:
    """Send a SyncGroup. `assignments` has all members' assignments if this member leads, else it is empty."""

    assignments: list[MemberAssignment]


@dataclass(frozen=True, slots=True)
class Consume:
    """Consume these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """This member cannot go on. `reason` is a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Nothing changes."""


Next = Rejoin | Sync | Consume | Stop | GoOn

# Errors after which a retry would not help: the member's own mistake, or another process took its place. As
# in Kafka's consumer.
_FATAL = {
    ErrorCode.FENCED_INSTANCE_ID: "another process has joined under the same group.instance.id",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "this member has no assignor that all other members have too",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the coordinator does not allow this session timeout",
    ErrorCode.INVALID_GROUP_ID: "the coordinator does not allow this group id",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full",
    ErrorCode.UNSUPPORTED_VERSION: "the coordinator does not know this version of the request",
    ErrorCode.INVALID_REQUEST: "the coordinator finds the request malformed",
}


class Membership:
    """One member of one group: its id, its generation, and its next action.

    The member subscribes to `topics` and offers `assignors`, best first. `partition_counts` returns the
    partition counts of topics when this member leads; no member gets partitions of a topic that it leaves
    out. `member_id` is empty before the coordinator gives one.
    """

    def __init__(
        self,
        topics: Sequence[str],
        assignors: Sequence[str],
        partition_counts: PartitionCounts,
        group_instance_id: str | None = None,
    ) -> None:
        self.group_instance_id = group_instance_id
        self.member_id = ""
        self.generation = NO_GENERATION
        self.protocol_name = ""
        self.is_leader = False
        # An eager member holds nothing when it joins, so it sends no owned partitions (KIP-429).
        metadata = encode_subscription(Subscription(tuple(topics)))
        self.protocols = [Protocol(name, metadata) for name in assignors]
        self._partition_counts = partition_counts
        self._failures = 0

    def joined(self, response: JoinGroupResponse) -> Next:
        """Take the answer to JoinGroup and return the next action."""
        if response.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return Rejoin("the coordinator gave this member its id")
        if response.error_code is not ErrorCode.NONE:
            return self._refused(response.error_code)
        self.member_id, self.generation = response.member_id, response.generation_id
        self.protocol_name = response.protocol_name or ""
        self.is_leader = response.leader == response.member_id
        self._failures = 0
        if not self.is_leader or response.skip_assignment:
            return Sync([])
        try:
            return Sync(self._assign(response.members))
        except ProtocolError as error:
            return Stop(f"the leader cannot read the subscription of another member: {error}")

    def synced(self, response: SyncGroupResponse) -> Next:
        """Take the answer to SyncGroup and return the next action."""
        if response.error_code is not ErrorCode.NONE:
            return self._refused(response.error_code)
        if not response.assignment:  # the leader assigned no partition to this member
            return Consume(())
        try:
            return Consume(decode_assignment(response.assignment).partitions)
        except ProtocolError as error:
            return Stop(f"the assignment cannot be read: {error}")

    def beaten(self, response: HeartbeatResponse, member_id: str, generation: int) -> Next:
        """Take the answer to a heartbeat with this member id and generation, and return the next action."""
        if (member_id, generation) != (self.member_id, self.generation):
            return GoOn()  # a late answer: it concerns a generation that this member has left
        if response.error_code is ErrorCode.NONE:
            return GoOn()
        return self._refused(response.error_code)

    def failed(self, error: Exception) -> Next:
        """Return the next action after a JoinGroup or SyncGroup without an answer of its type."""
        return self._rejoin_later(str(error))

    def _refused(self, error: ErrorCode) -> Next:
        if error in _FATAL:
            return Stop(f"{error.name}: {_FATAL[error]}")
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation = NO_GENERATION
            return Rejoin("REBALANCE_IN_PROGRESS: the group rebalances")
        if error is ErrorCode.ILLEGAL_GENERATION:
            return self._rejoin_later("ILLEGAL_GENERATION: the group has gone on to another generation")
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            return self._rejoin_later("UNKNOWN_MEMBER_ID: the coordinator has removed this member")
        return self._rejoin_later(error.name)

    def _rejoin_later(self, reason: str) -> Rejoin:
        self.generation = NO_GENERATION
        back_off_ms = min(FIRST_BACK_OFF_MS * 2**self._failures, LONGEST_BACK_OFF_MS)
        self._failures += 1
        return Rejoin(reason, back_off_ms)

    def _assign(self, members: Sequence[JoinGroupMember]) -> list[MemberAssignment]:
        subscriptions = {
            m.member_id: MemberSubscription(decode_subscription(m.metadata), m.group_instance_id)
            for m in members
        }
        topics = frozenset(t for s in subscriptions.values() for t in s.subscription.topics)
        assigned = ASSIGNORS[self.protocol_name].assign(self._partition_counts(topics), subscriptions)
        return [
            MemberAssignment(member_id, encode_assignment(Assignment(tuple(partitions))))
            for member_id, partitions in assigned.items()
        ]
