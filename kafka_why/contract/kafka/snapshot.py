"""The view of a Kafka group on the groups topic, for listing and describing groups."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from msgspec import UNSET, Struct, UnsetType

from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.messages import RECORD_VERSION, SettingValue
from kafka_why.contract.protocols.subscriptions import TopicPartition, decode_assignment

Partitions = dict[bytes, list[int]]
"""Sorted partitions by topic id."""


CONFIGS = "KafkaConfigs"

NamedPartitions = dict[str, list[int]]
"""Sorted partitions by topic name, or by topic id if no topic has the id."""


def flat(partitions: NamedPartitions) -> tuple[TopicPartition, ...]:
    """Return the partitions of all topics as one tuple."""
    return tuple(TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers)


class StreamsMemberSnapshot(Struct, frozen=True):
    """The fields that only members of streams groups have. `user_endpoint` is HOST:PORT. `lags` are by task
    (`0_3`): how many records the member's state was behind the changelog topics when it last reported both
    offsets. The groups topic omits them.
    """

    topology_epoch: int
    process_id: str
    user_endpoint: str | None
    client_tags: dict[str, str]
    lags: dict[str, int] | UnsetType = UNSET


class ConsumerMemberSnapshot(Struct, frozen=True):
    """The additional fields of a `MemberSnapshot` in a group with epochs.

    `member_type` is the member's protocol: `classic`, `consumer`, `share` or `streams`. `assigned` are the
    partitions that the member may use, `revoking` the ones that it has to give up, and `target` the ones in
    its target assignment. In a streams group they are tasks, by role and subtopology (`active 0`).
    """

    member_epoch: int
    previous_epoch: int
    state: str
    rack_id: str | None
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str
    server_assignor: str | None
    assigned: NamedPartitions
    revoking: NamedPartitions
    target: NamedPartitions
    member_type: str = "consumer"
    streams: StreamsMemberSnapshot | UnsetType = UNSET

    def awaited(self) -> NamedPartitions:
        """Return the partitions of the member's target that it does not have."""
        missing = {t: sorted({*numbers} - {*self.assigned.get(t, ())}) for t, numbers in self.target.items()}
        return {topic: numbers for topic, numbers in missing.items() if numbers}


class MemberSnapshot(Struct, frozen=True, omit_defaults=True):
    """A member. As in Kafka, `metadata` is for the selected protocol, and is empty unless the group is
    Stable.

    `session_timeout_ms` is 0 for a member on the consumer protocol, because the session timeout is a setting
    of the group. `consumer` is set in a group with epochs.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes
    assignment: bytes
    rejoined: bool
    consumer: ConsumerMemberSnapshot | None = None

    def held(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that the member may use. Raises ProtocolError if its assignment is not one of
        Kafka's consumer.
        """
        if self.consumer is not None:
            return flat(self.consumer.assigned)
        return decode_assignment(self.assignment).partitions if self.assignment else ()


class TopicSnapshot(Struct, frozen=True):
    """A topic that the group knows: its id as text, and its number of partitions."""

    topic_id: str
    partitions: int


class ShareTaskPartitions(Struct, frozen=True, omit_defaults=True):
    """The partitions of a topic in a task for the share coordinator. `error_code` is the error of the last
    result. If `altered`, an administrator set the start offset, so it replaces any existing state.
    """

    topic_id: str
    topic_name: str
    partitions: list[int]
    state_epoch: int | UnsetType = UNSET
    start_offset: int | UnsetType = UNSET
    error_code: int = 0
    altered: bool = False


class ShareTask(Struct, frozen=True):
    """A task of the cluster's share coordinator for a share group. `task` is its id, which the
    `ShareStateResult` repeats.

    `kind` is `initialize` or `delete`. To initialize a partition, a task has its state epoch and its start
    offset (-1 if the brokers decide it).
    """

    task: str
    kind: str
    asked_at_ms: int
    topics: list[ShareTaskPartitions]


class ShareSnapshot(Struct, frozen=True):
    """The states of a share group's partitions at the share coordinator. Only initialized partitions are
    assigned.

    `tasks` are the open tasks, the oldest first. An observed group has no `tasks`, and only topics without
    partitions in `deleting`, because the log does not have the rest.
    """

    initializing: NamedPartitions
    initialized: NamedPartitions
    deleting: NamedPartitions
    tasks: list[ShareTask] | UnsetType = UNSET


class StreamsSnapshot(Struct, frozen=True):
    """The topology of a streams group. `subtopologies` are the topics that each subtopology reads.

    `topology_epoch` is None without a topology. `validated_topology_epoch` is the topology epoch whose topics
    were found valid, or -1 if they are not valid. The group is then NotReady. `assignment_configs` are the
    settings of the assignment. The other fields are omitted in an observed group, and all but `stateful` if
    they are empty. `stateful` are the subtopologies with changelog topics. `not_ready` says why the topics
    are not valid. `shutdown_requested_by` is the member that asked to shut the application down. Until
    `initial_deadline_ms`, the first target assignment waits for more members.
    """

    topology_epoch: int | None
    validated_topology_epoch: int
    subtopologies: dict[str, list[str]]
    assignment_configs: dict[str, str]
    stateful: list[str] | UnsetType = UNSET
    not_ready: str | UnsetType = UNSET
    shutdown_requested_by: str | UnsetType = UNSET
    initial_deadline_ms: int | UnsetType = UNSET


class ConsumerGroupSnapshot(Struct, frozen=True):
    """Additional fields of a `GroupSnapshot` with epochs: a consumer, share or streams group.

    `assignor_name` is the assignor that computed the target assignment, or "" before the first one. `topics`
    are the topics that the group knows (None if no topic has the name). `resolved_regexes` are the topics
    that each pattern matches. `unknown_topics` are subscribed names without metadata yet, and
    `unresolved_regexes` are patterns without a result. The topic watcher sends the missing data.

    `checked_regexes` are patterns for which a member's gateway checks the right to DESCRIBE topics. Gateways
    resolve these patterns. The values are digests of the topics that matched at the last poll of the
    metadata. The field is omitted if empty. `share` and `streams` are set for groups of these types.
    """

    assignment_epoch: int
    assignor_name: str
    topics: dict[str, TopicSnapshot | None]
    resolved_regexes: dict[str, list[str]]
    unknown_topics: list[str]
    unresolved_regexes: list[str]
    checked_regexes: dict[str, str] | UnsetType = UNSET
    share: ShareSnapshot | UnsetType = UNSET
    streams: StreamsSnapshot | UnsetType = UNSET

    @property
    def group_type(self) -> str:
        """The group's type, as in its history."""
        return "share" if self.share else "streams" if self.streams else "consumer"


class GroupSnapshot(Struct, frozen=True):
    """The group after the history entry `seq` of this incarnation.

    `generation` is the group epoch in a group with epochs. `truncated` is True if the members' metadata and
    assignments were omitted because the record would be too large. `consumer` has the fields of consumer,
    share and streams groups, and is omitted in a classic group. `configs` are the settings that the group
    overrides. `wanted_topics` are the topics whose ids a classic group needs before it can be converted to
    the consumer protocol. The topic watcher sends the ids. Both fields are omitted if empty. `observed` is
    True for a group of the cluster's own coordinator, else omitted.
    """

    group_id: str
    incarnation: str
    seq: int
    at_ms: int
    state: str
    state_timestamp_ms: int
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader_id: str | None
    members: list[MemberSnapshot]
    pending_members: list[str]
    last_rebalance_at_ms: int | None
    last_rebalance_reason: str
    quarantined: str | None
    subscribed_topics: list[str] | None = None
    truncated: bool = False
    version: int = RECORD_VERSION
    consumer: ConsumerGroupSnapshot | UnsetType = UNSET
    configs: dict[str, SettingValue] | UnsetType = UNSET
    wanted_topics: list[str] | UnsetType = UNSET
    observed: bool | UnsetType = UNSET

    @property
    def group_type(self) -> str:
        """The group's type, as in its history."""
        return self.consumer.group_type if self.consumer else "classic"

    @property
    def are_members_complete(self) -> bool:
        """True if `members` is complete. A record that would be too large omits the members."""
        return bool(self.members) or not self.truncated or self.state == GroupState.EMPTY


class ConfigsView(Struct, frozen=True):
    """The settings of a group that does not exist. Readers of views skip this record, because no group has
    its `protocol`.
    """

    group_id: str
    incarnation: str
    seq: int
    at_ms: int
    configs: dict[str, SettingValue]
    protocol: str = CONFIGS
    version: int = RECORD_VERSION


def named(partitions: Mapping[bytes, Iterable[int]], names: Mapping[bytes, str]) -> NamedPartitions:
    """Return the sorted partitions by topic name, or by topic id if `names` does not have the id."""
    by_name = {names.get(id_) or str(UUID(bytes=id_)): sorted(numbers) for id_, numbers in partitions.items()}
    return dict(sorted(by_name.items()))
