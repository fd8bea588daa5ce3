"""What is known of a group of the cluster's own coordinator. This file holds data and queries only.

A change of the fields is a new version in `checkpoints.observed_codec`.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from assignors.kafka.api import TopicPartition
from assignors.kafka.consumer_protocol import PROTOCOL_TYPE, ProtocolError, decode_assignment
from state.kafka.classic_group import GroupState
from state.kafka.consumer_group import ConsumerGroupState, MemberState, Partitions
from state.kafka.group import Offset
from state.kafka.observed.records import ClassicMember, MemberSubscription

CLASSIC, CONSUMER = "classic", "consumer"

# The number of the entry of a group's creation, which is kept free where the creation was not seen. Readers
# therefore see that the history begins later.
CREATION = 1


class Classic(Struct, array_like=True, forbid_unknown_fields=True):
    """A classic group: its members and what they have since `since_ms`."""

    protocol_name: str | None
    leader_id: str | None
    since_ms: int
    members: list[ClassicMember]


class Assigned(Struct, array_like=True, forbid_unknown_fields=True):
    """What a member of the consumer protocol has since `since_ms`.

    It has to give up `revoking` since `revoking_since_ms`.
    """

    epoch: int
    previous_epoch: int
    state: MemberState | None
    partitions: Partitions
    revoking: Partitions
    revoking_since_ms: int | None
    since_ms: int


class News(Struct, array_like=True, forbid_unknown_fields=True):
    """What the records of one request have said so far: the reasons of the group epoch that may follow.

    `gone` has what is known of each member that went. `away` are members that had left for a while and are
    removed now, by their instance ids: a member with the same instance id may follow.
    """

    joined: list[str] = field(default_factory=list)
    gone: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    regexes: list[str] = field(default_factory=list)
    away: dict[str, str] = field(default_factory=dict)


class Consumer(Struct, array_like=True, forbid_unknown_fields=True):
    """A group of the consumer protocol, whose epoch is the group's generation.

    `is_found`: only what the group was like is known, and no change was seen yet. `is_ending`: its records
    are being removed. `changed_targets` are the target assignments since the last epoch of a target.
    """

    is_found: bool = True
    is_ending: bool = False
    assignment_epoch: int = 0
    metadata_hash: int = 0
    subscriptions: dict[str, MemberSubscription] = field(default_factory=dict)
    assigned: dict[str, Assigned] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    changed_targets: dict[str, Partitions] = field(default_factory=dict)
    topics: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    regexes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    news: News = field(default_factory=News)


class ObservedGroup(Struct, array_like=True, forbid_unknown_fields=True):
    """A group of the cluster's own coordinator, after its last record, which was appended at `at_ms`.

    `incarnation` and `seq` are as in `state.kafka.group.Group`. `told_ms` is the time of the last history
    entry. `run` is the id of the first of the last records that have the same time `run_ms`: Kafka writes
    what follows from one request at one time. Neither `classic` nor `consumer` is set for a group that has
    nothing but offsets.
    """

    group_id: str
    incarnation: str
    seq: int = CREATION
    at_ms: int = 0
    state: str = GroupState.EMPTY.value
    state_timestamp_ms: int = 0
    generation: int = 0
    protocol_type: str | None = None
    last_rebalance_at_ms: int | None = None
    last_rebalance_reason: str = ""
    run: str = ""
    run_ms: int = 0
    told_ms: int = 0
    offsets: dict[str, dict[int, Offset]] = field(default_factory=dict)
    classic: Classic | None = None
    consumer: Consumer | None = None

    @property
    def type_name(self) -> str:
        """The protocol's name in the history."""
        return CLASSIC if self.consumer is None else CONSUMER

    def member_ids(self) -> list[str]:
        """The members, in the order in which the records name them."""
        if self.consumer is not None:
            return list(self.consumer.subscriptions)
        return [] if self.classic is None else [member.member_id for member in self.classic.members]

    def consumer_state(self) -> str:
        """The state of a group of the consumer protocol: ConsumerGroup.maybeUpdateGroupState."""
        assert self.consumer is not None
        if not self.consumer.subscriptions:
            return ConsumerGroupState.EMPTY.value
        if self.generation > self.consumer.assignment_epoch:
            return ConsumerGroupState.ASSIGNING.value
        if all(map(self._is_reconciled, self.consumer.subscriptions)):
            return ConsumerGroupState.STABLE.value
        return ConsumerGroupState.RECONCILING.value

    def _is_reconciled(self, member_id: str) -> bool:
        assert self.consumer is not None
        has = self.consumer.assigned.get(member_id)
        return (
            has is not None
            and has.state is MemberState.STABLE
            and has.epoch == self.consumer.assignment_epoch
        )

    def why_gone(self, member_id: str, held: Iterable[TopicPartition], since_ms: int, at_ms: int) -> str:
        """What is known of a member that is gone at `at_ms` and had the partitions since `since_ms`: when the
        last commit of these was.
        """
        text, partitions = f"member {member_id} left or expired", list(held)
        if not partitions:
            return text
        offsets = (self.offsets.get(p.topic, {}).get(p.partition) for p in partitions)
        last_ms = max((offset.committed_at_ms for offset in offsets if offset is not None), default=0)
        if last_ms < since_ms:
            return f"{text}: none of its partitions had a commit since it got them"
        return f"{text}: the last commit of its partitions was {max(at_ms - last_ms, 0) / 1000:.1f} s before"

    def held_by(self, member: ClassicMember) -> list[TopicPartition]:
        """The partitions of a classic member, none if its assignment is not of Kafka's consumer."""
        if self.protocol_type != PROTOCOL_TYPE or not member.assignment:
            return []
        try:
            return list(decode_assignment(member.assignment).partitions)
        except ProtocolError:
            return []

    def names(self, names: Mapping[bytes, str]) -> dict[bytes, str]:
        """The names of topics by id, with those that the group's own records have."""
        own = {} if self.consumer is None else self.consumer.topics
        return {**names, **{topic_id: name for topic_id, (name, _) in own.items()}}
