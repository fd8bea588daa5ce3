"""The state that Kafka groups of all protocols share: clock, offsets and position in the history. A
conversion between protocols keeps these fields. This file holds data and queries only; the other files of
`state.kafka` change a group.

A row, such as Z6, is a rule of docs/rules.md.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import ClassVar

from msgspec import Struct

from kafka_why.contract.kafka.history import LogPosition, Offset
from kafka_why.contract.kafka.share_requests import TopicImage, TopicImages
from kafka_why.contract.messages import ErrorCode, SettingValue
from state.protocol import DeadlineEvent

# The deadlines of a group and their order.
#
# The earlier deadline fires first. Kafka leaves the order of equal deadlines open, so it is decided here:
# the kinds fire in the order of `_ORDER`. Of one kind, the members of a classic group fire in the order in
# which they joined, before pending ids. In other groups the member id decides (row TM14).


class TimerKind(IntEnum):
    """The kinds of timers. `_ORDER` decides which of two equal deadlines fires first.

    HEARTBEAT is a member's session timeout, and RETENTION is the next removal of expired offsets. In a
    classic group, JOIN and SYNC limit a rebalance. In a consumer group, JOIN and SYNC limit how long a
    classic member takes, and REBALANCE limits how long a member takes to revoke partitions. In a streams
    group, REBALANCE is for tasks, and INITIAL_DELAY is the time before the first target assignment, in which
    more members may join. In a share group, PARKED is for requests that wait for the share coordinator, and
    TASK for the share coordinator's tasks.
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
"""The position of each kind in `_ORDER`."""


class DeadlineReached(DeadlineEvent, frozen=True):
    """A deadline of a Kafka group. `member_id` is "" for a timer of the group."""

    kind: TimerKind
    member_id: str = ""

    def __str__(self) -> str:
        of_member = f" of {self.member_id}" if self.member_id else ""
        return f"{self.kind.name.lower()} deadline{of_member} at {self.deadline_ms}"


Timer = tuple[int, TimerKind, str]
"""The time of a deadline in ms, its kind, and the id of its member, "" for a timer of the group."""


# The settings of a group id that has no group. As in Kafka, settings may be set before the group exists,
# and they outlive it.


class ConfigsOnly(Struct, array_like=True, forbid_unknown_fields=True, tag="KafkaConfigs"):
    """The settings of a group id without a group, by Kafka's names. A new group inherits them.

    `incarnation` is the id of the request, or the text of the deadline, that created this object. There is no
    history and no deadline: `seq` and `last_fired_ms` are 0, and `quarantined` is None.
    """

    group_id: str
    incarnation: str
    clock_ms: int  # the time of the last event
    configs: dict[str, SettingValue]
    seq: int = 0
    last_fired_ms: int = 0
    quarantined: None = None


class Topic(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A topic that exists, as it was last reported to the group. `topic_id` has 16 bytes, and `partitions` is
    the number of partitions.
    """

    topic_id: bytes
    partitions: int


class PendingOffsets(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The offsets of one TxnOffsetCommit, pending until their transaction ends. `offsets`, by topic and
    partition, are never changed in place.

    The transaction's marker is written to the partition `txn_partition` of the markers topic, at or after
    `txn_position`. Markers of the producer's earlier transactions are before `txn_position`.
    """

    request: str  # the id of the TxnOffsetCommit
    position: LogPosition  # the position of the TxnOffsetCommit
    at_ms: int  # the group's time when the TxnOffsetCommit was applied
    transactional_id: str
    producer_id: int
    producer_epoch: int
    txn_version: int  # 2 if the end of the transaction raises the epoch by one (KIP-890), else 1
    txn_partition: int  # the partition with the transaction's markers
    txn_position: int  # the end of that partition, read before the sender checked the transaction
    txn_topic_id: bytes | None  # the id of the markers topic
    offsets: dict[str, dict[int, Offset]]


class EndedTransaction(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The latest marker that ended a producer's transaction in a group: the marker's position in the markers
    topic, and the group's time when the marker was applied.
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
    state_timestamp_ms: int = 0  # the time at which the group entered its state
    # The start of the latest rebalance, running or complete, and its reason.
    last_rebalance_at_ms: int | None = None
    last_rebalance_reason: str = ""
    quarantined: str | None = None  # the fault because of which no timer of the group fires
    offsets: dict[str, dict[int, Offset]] = {}  # by topic and partition
    retention_deadline_ms: int | None = None  # the next retention pass, None if none is armed
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
        """Return True if offsets can expire in this state of the group. In groups with epochs, which are all
        but classic groups, they always can (row OF28).
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
    """Return a reported topic in the form of the stored state, None if the topic does not exist."""
    return None if image is None else Topic(image.id.bytes, image.partitions)


def topics_from_request(
    known: Mapping[str, Topic | None], images: TopicImages, deleted: Collection[bytes]
) -> Topics:
    """Return the topics, by name, that a request adds to `known`: new names, topics that did not exist, and
    topics with more partitions.

    `images` are the topics that the request reports. A reported topic counts as missing if its id is in
    `deleted`.
    """
    added: Topics = {}
    for name, image in images.items():
        topic, known_topic = topic_of(image), known.get(name)
        if topic is not None and topic.topic_id in deleted:
            topic = None
        is_new = name not in known or (known_topic is None and topic is not None)
        if is_new or has_more_partitions(topic, known_topic):
            added[name] = topic
    return added


def topics_from_watcher(
    known: Mapping[str, Topic | None], images: TopicImages, deleted: Collection[bytes]
) -> Topics:
    """Return the topics, by name, for which the watcher's report `images` differs from `known`.

    A lagging broker may report fewer partitions of the same topic, or a topic whose id is in `deleted`. Both
    are ignored.
    """
    changed: Topics = {}
    for name, image in images.items():
        topic, known_topic = topic_of(image), known.get(name)
        if topic is not None and topic.topic_id in deleted:
            continue
        if name not in known or (topic != known_topic and not has_more_partitions(known_topic, topic)):
            changed[name] = topic
    return changed


def has_more_partitions(topic: Topic | None, before: Topic | None) -> bool:
    """Return True if both are the same topic, and the first has more partitions."""
    if topic is None or before is None:
        return False
    return topic.topic_id == before.topic_id and topic.partitions > before.partitions


def is_among(topic: str, topics: Sequence[str]) -> bool:
    """Return True if `topics`, which are sorted, contain the topic."""
    index = bisect_left(topics, topic)
    return index < len(topics) and topics[index] == topic


def validate_instance(
    static_members: Mapping[str, str], member_id: str, instance_id: str | None
) -> ErrorCode:
    """Return UNKNOWN_MEMBER_ID if the instance id belongs to no member, FENCED_INSTANCE_ID if it belongs to
    another member, else NONE. A request without an instance id is valid.
    """
    if instance_id is None:
        return ErrorCode.NONE
    owner = static_members.get(instance_id)
    if owner is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if owner == member_id else ErrorCode.FENCED_INSTANCE_ID
