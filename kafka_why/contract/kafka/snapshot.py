"""The view of a Kafka group on the groups topic, for listing and describing groups."""

import re
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.messages import RECORD_VERSION, SettingValue
from kafka_why.contract.protocols.subscriptions import TopicPartition, decode_assignment

Partitions = dict[bytes, list[int]]
"""Sorted partitions by topic id."""


CONFIGS = "KafkaConfigs"
"""The `protocol` of a `ConfigsView`."""


NamedPartitions = dict[str, list[int]]
"""Sorted partitions by topic name, or by topic id if no topic has the id."""


def flat(partitions: NamedPartitions) -> tuple[TopicPartition, ...]:
    """Return the partitions of all topics as one tuple."""
    return tuple(TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers)


class StreamsMemberSnapshot(Struct, frozen=True):
    """The fields that only members of streams groups have."""

    topology_epoch: int  # of the topology that the member uses
    process_id: str
    user_endpoint: str | None  # HOST:PORT
    client_tags: dict[str, str]
    # By task (`0_3`), the number of records that its state was behind the changelog topics when the member
    # last reported both offsets. Omitted on the groups topic.
    lags: dict[str, int] | UnsetType = UNSET


class ConsumerMemberSnapshot(Struct, frozen=True):
    """The additional fields of a `MemberSnapshot` in a group with epochs.

    In a streams group, partitions are tasks, by role and subtopology (`active 0`).
    """

    member_epoch: int
    previous_epoch: int  # the member epoch before this one
    state: str  # a `MemberState`
    rack_id: str | None
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str
    server_assignor: str | None
    assigned: NamedPartitions  # partitions that the member may use
    revoking: NamedPartitions  # partitions that the member has to give up
    target: NamedPartitions  # partitions of the member's target assignment
    member_type: str = "consumer"  # the member's protocol: classic, consumer, share or streams
    streams: StreamsMemberSnapshot | UnsetType = UNSET

    def awaited(self) -> NamedPartitions:
        """Return the partitions of the member's target that it does not have."""
        missing = {
            topic: sorted(set(numbers).difference(self.assigned.get(topic, ())))
            for topic, numbers in self.target.items()
        }
        return {topic: numbers for topic, numbers in missing.items() if numbers}


class MemberSnapshot(Struct, frozen=True, omit_defaults=True):
    """A member of a group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int  # 0 on the consumer protocol, where it is a setting of the group
    rebalance_timeout_ms: int
    metadata: bytes  # for the selected protocol; as in Kafka, empty unless the group is Stable
    assignment: bytes  # the leader's assignment; with epochs, see `consumer`
    rejoined: bool  # True if the member has joined in the current rebalance of a classic group
    consumer: ConsumerMemberSnapshot | None = None  # set in a group with epochs

    def held(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that the member may use.

        Raises ProtocolError if its assignment is not one of Kafka's consumer.
        """
        if self.consumer is not None:
            return flat(self.consumer.assigned)
        return decode_assignment(self.assignment).partitions if self.assignment else ()


class TopicSnapshot(Struct, frozen=True):
    """The metadata of a topic that a group knows."""

    topic_id: str  # the UUID as text
    partitions: int  # their number


class ShareTaskPartitions(Struct, frozen=True, omit_defaults=True):
    """The partitions of a topic in a task for the share coordinator."""

    topic_id: str
    topic_name: str
    partitions: list[int]
    state_epoch: int | UnsetType = UNSET
    start_offset: int | UnsetType = UNSET
    error_code: int = 0  # of the last result
    altered: bool = False  # True if an administrator set the start offset, which replaces any existing state


class ShareTask(Struct, frozen=True):
    """A task of the cluster's share coordinator for a share group.

    A task to initialize partitions has their state epochs and start offsets (-1 if the brokers decide).
    """

    task: str  # its id, which the `ShareStateResult` repeats
    kind: str  # `initialize` or `delete`
    asked_at_ms: int  # when the group's coordinator requested it
    topics: list[ShareTaskPartitions]


class ShareSnapshot(Struct, frozen=True):
    """The states of a share group's partitions at the share coordinator.

    Only initialized partitions are assigned.
    """

    initializing: NamedPartitions
    initialized: NamedPartitions
    # An observed group (`observe`) has only topics here, because Kafka's log does not have their partitions.
    deleting: NamedPartitions
    tasks: list[ShareTask] | UnsetType = UNSET  # open tasks, the oldest first; omitted in an observed group


class StreamsSnapshot(Struct, frozen=True):
    """The topology of a streams group.

    In an observed group (`observe`), `stateful` and all later fields are omitted. In any other group, the
    fields after `stateful` are omitted if they are empty.
    """

    topology_epoch: int | None  # None without a topology
    # The topology epoch whose topics were found valid; -1 if they are not valid, and the group is NotReady.
    validated_topology_epoch: int
    subtopologies: dict[str, list[str]]  # topics that each subtopology reads
    assignment_configs: dict[str, str]  # settings of the assignment
    stateful: list[str] | UnsetType = UNSET  # subtopologies with changelog topics
    not_ready: str | UnsetType = UNSET  # why the topics are not valid
    shutdown_requested_by: str | UnsetType = UNSET  # member that asked to shut the application down
    # Until this time the first target assignment waits for more members.
    initial_deadline_ms: int | UnsetType = UNSET


class ConsumerGroupSnapshot(Struct, frozen=True):
    """The additional fields of a `GroupSnapshot` of a group with epochs: a consumer, share or streams group.

    The topic watcher, a thread of the coordinator's service, polls the brokers' metadata, and sends the
    coordinator the metadata of `unknown_topics` and the matches of `unresolved_regexes`.
    """

    assignment_epoch: int
    assignor_name: str  # assignor that computed the target assignment; "" before the first one
    topics: dict[str, TopicSnapshot | None]  # topics that the group knows; None if no topic has the name
    resolved_regexes: dict[str, list[str]]  # topics that each pattern matches
    unknown_topics: list[str]  # subscribed names without metadata yet
    unresolved_regexes: list[str]  # patterns without a result yet
    # By pattern, a digest of the topics that matched at the last poll of the metadata. Gateways resolve these
    # patterns, because gateways check which topics a client may DESCRIBE. Omitted if empty.
    checked_regexes: dict[str, str] | UnsetType = UNSET
    share: ShareSnapshot | UnsetType = UNSET  # of a share group
    streams: StreamsSnapshot | UnsetType = UNSET  # of a streams group

    @property
    def group_type(self) -> str:
        """The group's type: consumer, share or streams."""
        if self.share:
            return "share"
        return "streams" if self.streams else "consumer"


class GroupSnapshot(Struct, frozen=True):
    """A Kafka group's view: its state after the history entry `seq` of this incarnation."""

    group_id: str
    incarnation: str  # distinguishes the group from earlier groups with the same id
    seq: int
    at_ms: int  # time of the state
    state: str
    state_timestamp_ms: int  # when the group entered `state`
    generation: int  # the group epoch in a group with epochs
    protocol_type: str | None
    protocol_name: str | None
    leader_id: str | None
    members: list[MemberSnapshot]
    pending_members: list[str]  # member ids that were assigned but have not joined yet
    last_rebalance_at_ms: int | None  # when it began; None if there was none
    last_rebalance_reason: str
    quarantined: str | None  # the error that stopped the group's deadlines, else None
    subscribed_topics: list[str] | None = None  # of all members; None if unknown
    # The members' metadata and assignments were omitted, because the record would be too large.
    truncated: bool = False
    version: int = RECORD_VERSION
    consumer: ConsumerGroupSnapshot | UnsetType = UNSET  # omitted in a classic group
    # Settings that the group overrides; omitted if empty.
    configs: dict[str, SettingValue] | UnsetType = UNSET
    # Topics whose ids a classic group needs for its conversion to the consumer protocol. The topic watcher
    # sends the ids. Omitted if empty.
    wanted_topics: list[str] | UnsetType = UNSET
    observed: bool | UnsetType = UNSET  # True for a group of the cluster's own coordinator, else omitted

    @property
    def group_type(self) -> str:
        """The group's type: classic, consumer, share or streams."""
        return self.consumer.group_type if self.consumer else "classic"

    @property
    def are_members_complete(self) -> bool:
        """False if the group has members, but the view omits them because it would be too large.

        A `truncated` view that still has members omits only their metadata and assignments.
        """
        return bool(self.members) or not self.truncated or self.state == GroupState.EMPTY


class ConfigsView(Struct, frozen=True):
    """The settings of a group that does not exist, because settings can be made before the group.

    Readers of views skip it, because no group has its `protocol`.
    """

    group_id: str
    incarnation: str
    seq: int
    at_ms: int
    configs: dict[str, SettingValue]
    protocol: str = CONFIGS
    version: int = RECORD_VERSION


def named(partitions: Mapping[bytes, Iterable[int]], names: Mapping[bytes, str]) -> NamedPartitions:
    """Return the sorted partitions by topic name, or by topic id if the name is unknown."""
    by_name = {names.get(id_) or str(UUID(bytes=id_)): sorted(numbers) for id_, numbers in partitions.items()}
    return dict(sorted(by_name.items()))


# Formats parts of the history's sentences.

NAMED_AT_MOST = 10
"""The usual maximum number of names in a list of a sentence."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 topic` or `2 topics`. `noun` is singular."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(texts: list[str], noun: str, most: int = NAMED_AT_MOST) -> str:
    """Return a text such as `a, b and 3 more topics`, with at most `most` texts. `noun` is singular."""
    left_out = len(texts) - most
    rest = f" and {counted(left_out, f'more {noun}')}" if left_out > 0 else ""
    return ", ".join(texts[:most]) + rest


def listed_partitions(partitions: Mapping[bytes, Iterable[int]], names: Mapping[bytes, str]) -> str:
    """Return a text such as `orders-0, orders-1`. `names` are topic names by topic id."""
    texts = [f"{topic}-{number}" for topic, numbers in named(partitions, names).items() for number in numbers]
    return listed(texts, "partition")


def names_change(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the predicate of a sentence about a member, such as `subscribes to a, b and no longer to c`.

    `before` and `after` are the topics to which it subscribes.
    """
    added, removed = sorted({*after}.difference(before)), sorted({*before}.difference(after))
    if not removed:
        return f"subscribes to {listed(added, 'topic')}"
    if not added:
        return f"no longer subscribes to {listed(removed, 'topic')}"
    return f"subscribes to {listed(added, 'topic')} and no longer to {listed(removed, 'topic')}"


_NO_COMMIT = "none of its partitions had a commit since it got them"
_LAST_COMMIT = re.compile(r"the last commit of its partitions was (?P<ago_s>\d+\.\d) s before")


def last_commit(ago_ms: int | None) -> str:
    """Return a sentence about the last commit of a removed member's partitions.

    `ago_ms` is the time from the commit to the removal, or None if there was no commit since the member got
    them.
    """
    if ago_ms is None:
        return _NO_COMMIT
    return f"the last commit of its partitions was {max(ago_ms, 0) / 1000:.1f} s before"


def last_commit_in(reason: str, earlier_ms: int = 0) -> str:
    """Return the sentence of `last_commit` in a removal's `reason`, or "" if it has none.

    `reason` has the time from the commit to the removal. If the member was in fact gone `earlier_ms` before
    the removal, the returned sentence has the time to that earlier moment.
    """
    sentence = _LAST_COMMIT.search(reason)
    if sentence is not None:
        return last_commit(round(float(sentence["ago_s"]) * 1000) - earlier_ms)
    return _NO_COMMIT if _NO_COMMIT in reason else ""
