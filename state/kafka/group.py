"""The state that Kafka groups of all protocols share: clock, offsets and position in the history. A
conversion between protocols keeps these fields. This file holds data and queries only; the other files of
`state.kafka` change a group.
"""

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import ClassVar

from msgspec import Struct

from kafka_why.contract.kafka.history import LogPosition, Offset
from kafka_why.contract.kafka.share_requests import TopicImage, TopicImages
from kafka_why.contract.messages import SettingValue

# The deadlines of a group and their order.
#
# The order of ties is decided here, because Kafka leaves it open: the earlier deadline; then the initial
# delay of a streams group before session before rebalance before join before sync before parked before task
# before retention; then, in a classic group, the order in which members joined, members before pending ids,
# and in a consumer group the member id (row TM14).


class TimerKind(IntEnum):
    """The kinds of timers, in the order that decides ties. HEARTBEAT is a member's session timeout.

    In a classic group, JOIN and SYNC are timers of the rebalance. In a consumer group they are timers of a
    classic member, and REBALANCE is that of a member that has to revoke partitions. In a share group, PARKED
    is that of requests that wait for the share coordinator, and TASK that of the tasks for it. In a streams
    group, INITIAL_DELAY is the time before the first target assignment, in which more members may join.
    """

    HEARTBEAT = 0
    JOIN = 1
    SYNC = 2
    RETENTION = 3
    REBALANCE = 4
    PARKED = 5
    TASK = 6
    INITIAL_DELAY = 7


_ORDER = (
    TimerKind.INITIAL_DELAY,
    TimerKind.HEARTBEAT,
    TimerKind.REBALANCE,
    TimerKind.JOIN,
    TimerKind.SYNC,
    TimerKind.PARKED,
    TimerKind.TASK,
    TimerKind.RETENTION,
)
RANK = {kind: rank for rank, kind in enumerate(_ORDER)}


class DeadlineReached(Struct, frozen=True):
    """An event of the core: a deadline is due. `member_id` is "" for a timer of the group."""

    deadline_ms: int
    kind: TimerKind
    member_id: str = ""

    def __str__(self) -> str:
        of = f" of {self.member_id}" if self.member_id else ""
        return f"{self.kind.name.lower()} deadline{of} at {self.deadline_ms}"


Timer = tuple[int, TimerKind, str]
"""The time of a deadline in ms, its kind, and the id of its member, "" for a timer of the group."""


# The settings of a group id that has no group. As in Kafka, settings may be set before the group exists,
# and they outlive it.


class ConfigsOnly(Struct, array_like=True, forbid_unknown_fields=True, tag="KafkaConfigs"):
    """The settings of a group id without a group, by Kafka's names. A new group inherits them.

    `incarnation` is the request, or the deadline, that created this object. There is no history and no
    deadline: `seq` and `last_fired_ms` are 0, and `quarantined` is None.
    """

    group_id: str
    incarnation: str
    clock_ms: int  # the time of the last event
    configs: dict[str, SettingValue]
    seq: int = 0
    last_fired_ms: int = 0
    quarantined: None = None


class Topic(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A topic as the group knows it: the 16 bytes of its id, and its number of partitions."""

    topic_id: bytes
    partitions: int


class PendingOffsets(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The offsets of one TxnOffsetCommit, pending until their transaction ends.

    `offsets`, by topic and partition, are never changed in place.
    """

    request: str  # the id of the TxnOffsetCommit
    position: LogPosition  # the position of the TxnOffsetCommit
    at_ms: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    txn_version: int
    txn_partition: int
    txn_position: int
    txn_topic_id: bytes | None  # the id of the markers topic
    offsets: dict[str, dict[int, Offset]]


class EndedTransaction(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The latest marker that ended a producer's transaction in a group: its position in the markers topic,
    and the group's time when it was applied.
    """

    txn_partition: int
    txn_position: int
    txn_topic_id: bytes | None
    at_ms: int


class Group(Struct, array_like=True, forbid_unknown_fields=True, dict=True):
    """The fields that all protocols share, and that a group keeps when it changes its protocol."""

    type_name: ClassVar[str]
    """The protocol's name in ListGroups and in the history."""

    group_id: str
    incarnation: str  # the id of the request that created the group
    seq: int = 0  # the number of history entries so far
    clock_ms: int = 0  # the time of the last event
    last_fired_ms: int = 0  # the latest deadline that fired
    state_timestamp_ms: int = 0
    # The start of the latest rebalance, running or complete, and its reason.
    last_rebalance_at_ms: int | None = None
    last_rebalance_reason: str = ""
    quarantined: str | None = None  # the fault that stopped the group's timers, which move with its clock
    offsets: dict[str, dict[int, Offset]] = {}  # by topic and partition
    retention_deadline_ms: int | None = None
    # Ids of topics that TopicMetadata showed to be deleted or replaced, the latest last.
    deleted_topic_ids: list[bytes] = []
    # Offsets that wait for the end of their transactions, in the order of their requests.
    pending: list[PendingOffsets] = []
    ended: dict[int, EndedTransaction] = {}  # by producer id
    # The group's own settings (AlterConfigs of the resource GROUP), by Kafka's names.
    configs: dict[str, SettingValue] = {}

    def entry_details(self) -> Mapping[str, object]:
        """Return the fields of every history entry of a group of this protocol."""
        return {"group_type": self.type_name}

    def pending_partitions(self) -> dict[str, set[int]]:
        """Return the partitions that have a pending offset, by topic."""
        partitions: dict[str, set[int]] = {}
        for entry in self.pending:
            for topic, offsets in entry.offsets.items():
                partitions.setdefault(topic, set()).update(offsets)
        return partitions

    @property
    def is_empty(self) -> bool:
        """Return True if the group has no members."""
        raise NotImplementedError

    @property
    def can_expire_offsets(self) -> bool:
        """Return True if offsets can expire in this state of the group. In groups with epochs they always can
        (row OF28).
        """
        return True

    @property
    def abandoned_since_ms(self) -> int | None:
        """The time in ms from which the retention of unused offsets counts.

        None if it counts from their commit, as in groups with epochs (row OF27).
        """
        return None

    def is_over(self) -> bool:
        """Row Z6: return True if a retention pass deletes the group."""
        return self.is_empty and self.is_without_offsets()

    def is_without_offsets(self) -> bool:
        """Return True if the group has neither a committed nor a pending offset."""
        return not self.offsets and not self.pending


# The cluster's topics as a group knows them: reported by requests (row MI7) and by the topic watcher (row
# MI8).
#
# The core cannot read the cluster. A gateway may read an older broker or cache than the watcher, so requests
# only add topics and partitions. Only the watcher replaces and removes.


Topics = dict[str, Topic | None]
"""Topics by name, None if no topic has the name."""


def topic_of(image: TopicImage | None) -> Topic | None:
    return None if image is None else Topic(image.id.bytes, image.partitions)


def reported(known: Mapping[str, Topic | None], images: TopicImages, deleted: Collection[bytes]) -> Topics:
    """Return the topics, by name, that a request adds: new names, topics that were missing, and more
    partitions.

    `deleted` are ids of deleted topics, which a request may still report.
    """
    found: Topics = {}
    for name, image in images.items():
        topic, before = topic_of(image), known.get(name)
        if topic is not None and topic.topic_id in deleted:
            topic = None
        if name not in known or (before is None and topic is not None) or is_more_of(topic, before):
            found[name] = topic
    return found


def watched(known: Mapping[str, Topic | None], images: TopicImages, deleted: Collection[bytes]) -> Topics:
    """Return the topics, by name, for which the watcher's report differs from `known`.

    A lower count of the same topic and a deleted topic are ignored, because they come from a lagging broker.
    """
    found: Topics = {}
    for name, image in images.items():
        topic, before = topic_of(image), known.get(name)
        if topic is not None and topic.topic_id in deleted:
            continue
        if name not in known or (topic != before and not is_more_of(before, topic)):
            found[name] = topic
    return found


def is_more_of(topic: Topic | None, before: Topic | None) -> bool:
    """Return True if both are the same topic, and the first has more partitions."""
    if topic is None or before is None:
        return False
    return topic.topic_id == before.topic_id and topic.partitions > before.partitions


# A group with epochs, whose target assignment the coordinator computes: the base of consumer groups (KIP-848)
# and share groups (KIP-932).
#
# The order of the fields is the layout of the stored state. Source: ModernGroup.java.


class ModernGroup(Group):
    """A group with epochs."""

    group_epoch: int = 1  # grows with each change that needs a new target assignment
    assignment_epoch: int = 1  # the group epoch that the target was computed for
    assignment_timestamp_ms: int = 0  # when the target was computed, 0 if unknown
    metadata_hash: bytes = b""  # fingerprint of the subscribed topics (row HB53), b"" without topics
    metadata_stale: bool = True  # the fingerprint has to be computed again

    def subscribed(self) -> set[str]:
        """Return the names of all topics that members read."""
        raise NotImplementedError

    def required_topics(self) -> set[str]:
        """Return the names of the topics that the group epoch depends on."""
        return self.subscribed()

    @property
    def generation(self) -> int:
        """The group epoch, which the history shows as the generation."""
        return self.group_epoch

    @property
    def is_rebalancing(self) -> bool:
        """Return True if members have not reached their target assignment, or one has to be computed."""
        raise NotImplementedError

    def entry_details(self) -> Mapping[str, object]:
        return {"group_type": self.type_name, "assignment_epoch": self.assignment_epoch}
