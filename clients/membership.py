"""The member's side of the protocol, without IO: what a consumer does next, given what it was answered.

This is the eager protocol of Kafka's consumer: give up everything, JoinGroup, SyncGroup, then heartbeats
until one of them says that it all starts again. Source: AbstractCoordinator and ConsumerCoordinator of
Kafka's Java client.
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
    """Send a JoinGroup after `back_off_ms`. Whatever partitions are held are given up now."""

    reason: str
    back_off_ms: int = 0


@dataclass(frozen=True, slots=True)
class Sync:
    """Send a SyncGroup; a leader's carries the assignment of everyone."""

    assignments: list[MemberAssignment]


@dataclass(frozen=True, slots=True)
class Consume:
    """Consume these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """This member cannot go on; `reason` says why, in a sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Nothing changes."""


Next = Rejoin | Sync | Consume | Stop | GoOn

# The member's own mistake, or somebody took its place: trying again would not help. As in Kafka's consumer.
_FATAL = {
    ErrorCode.FENCED_INSTANCE_ID: "another process has joined under the same group.instance.id",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "no assignor of this member is one that all others have too",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the coordinator does not allow this session timeout",
    ErrorCode.INVALID_GROUP_ID: "the coordinator does not allow this group id",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full",
    ErrorCode.UNSUPPORTED_VERSION: "the coordinator does not know this version of the request",
    ErrorCode.INVALID_REQUEST: "the coordinator finds the request malformed",
}


class Membership:
    """One member of one group: who it is, in which generation, and what comes next.

    `topics` are what it subscribes to, `assignors` the names it offers, best first. `partition_counts` gives
    the partitions of topics when this member leads; a topic it leaves out gives nobody anything.
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
        # An eager member holds nothing when it joins, so it has no owned partitions to tell of (KIP-429).
        metadata = encode_subscription(Subscription(tuple(topics)))
        self.protocols = [Protocol(name, metadata) for name in assignors]
        self._partition_counts = partition_counts
        self._failures = 0

    @property
    def is_in_generation(self) -> bool:
        """Whether it has been let into a generation, so that it has to send heartbeats."""
        return self.generation != NO_GENERATION

    def joined(self, response: JoinGroupResponse) -> Next:
        """The answer to JoinGroup."""
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
            return Stop(f"as the leader it cannot read what another member subscribes to: {error}")

    def synced(self, response: SyncGroupResponse) -> Next:
        """The answer to SyncGroup."""
        if response.error_code is not ErrorCode.NONE:
            return self._refused(response.error_code)
        if not response.assignment:  # the leader had nothing for it
            return Consume(())
        try:
            return Consume(decode_assignment(response.assignment).partitions)
        except ProtocolError as error:
            return Stop(f"the assignment cannot be read: {error}")

    def beaten(self, response: HeartbeatResponse, member_id: str, generation: int) -> Next:
        """The answer to a heartbeat that was sent with this member id in this generation."""
        if (member_id, generation) != (self.member_id, self.generation):
            return GoOn()  # late: it speaks of a generation this member has left
        if response.error_code is ErrorCode.NONE:
            return GoOn()
        return self._refused(response.error_code)

    def failed(self, error: Exception) -> Next:
        """JoinGroup or SyncGroup had no answer of their kind."""
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
        dealt = ASSIGNORS[self.protocol_name].assign(self._partition_counts(topics), subscriptions)
        return [
            MemberAssignment(member_id, encode_assignment(Assignment(tuple(partitions))))
            for member_id, partitions in dealt.items()
        ]
