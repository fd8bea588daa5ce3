"""Builds descriptions of groups from the responses of the coordinator and the brokers. Also finds groups that
use the broker's own coordinator by mistake.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol
from uuid import UUID

from kafka import KafkaAdminClient
from kafka.admin import GroupState
from msgspec import Struct

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import DEAD, SHARE
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.describe import LagsMs, PartitionRow, mentioned_partitions, partition_rows
from kafka_why.groups.list_groups import GroupOffsets, committed_offsets, list_groups, list_row
from kafka_why.groups.render import error_text
from kafka_why.groups.rocketmq import offsets_remark
from kafka_why.lag.brokers import records_at, timestamp_lags
from kafka_why.lag.definitions import LogBounds, Partition, lag_records, next_offset
from kafka_why.topic_reader import FollowerThread, TopicReader


class LogOffsets(TopicReader):
    """A reader of topics' partitions and log offsets from the brokers.

    All partitions passed to a method must exist (see `filter_existing`). The list of topics is read once.
    Methods raise kafka-python's KafkaError: KafkaTimeoutError if a response is late.
    """

    def __init__(self, client_config: ClientConfig, timeout_ms: int) -> None:
        super().__init__(client_config)
        self._client_config = client_config
        self._timeout_ms = timeout_ms

    @cached_property
    def topics(self) -> frozenset[str]:
        """The names of all topics except internal ones."""
        return frozenset(self._consumer.topics())

    def existing(self, topics: Iterable[str]) -> dict[str, frozenset[int]]:
        """Return the partitions of those topics that exist."""
        return {
            topic: frozenset(self._consumer.partitions_for_topic(topic))
            for topic in self.topics.intersection(topics)
        }

    def filter_existing(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions that exist."""
        existing = self.existing({partition.topic for partition in partitions})
        return {p for p in partitions if p.partition in existing.get(p.topic, ())}

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Return the bounds of each log."""
        starts, ends = self.beginnings(partitions), self.ends(partitions)
        return {p: LogBounds(starts[p], ends[p]) for p in partitions}

    def lags_ms(self, offsets: Collection[tuple[Partition, int]]) -> dict[tuple[Partition, int], int]:
        """Return the lag in time of each offset, by the timestamps of records (`kafka_why.lag.brokers`).

        Offsets without a usable timestamp are omitted.
        """
        lags_ms: dict[tuple[Partition, int], int] = {}
        remaining = set(offsets)
        with closing(kafka_clients.admin(self._client_config, request_timeout_ms=self._timeout_ms)) as admin:
            while remaining:
                batch = dict(remaining)  # one offset of each partition
                found_ms = timestamp_lags(partial(records_at, admin), batch)
                lags_ms |= {(p, offset): found_ms[p] for p, offset in batch.items() if p in found_ms}
                remaining -= batch.items()
        return lags_ms

    def topic_ids(self, topics: Iterable[str]) -> dict[str, UUID]:
        """Return the topic ids of those topics that exist."""
        with closing(kafka_clients.admin(self._client_config)) as admin:
            described = admin.describe_topics(sorted(topics))
        return {topic["name"]: UUID(str(topic["topic_id"])) for topic in described if not topic["error_code"]}


KnownTypes = Mapping[str, str | None]
"""By group id: the group type as in the group's history, or None if unknown."""

Answers = dict[str, GroupSnapshot | ErrorCode]
"""By group id: the group, or the error why the group cannot be described."""


class GroupDescriber(Protocol):
    """A source of descriptions of groups."""

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Return the groups or their errors, and the groups' offsets if `with_offsets`."""


class TopicGroupDescriber(GroupDescriber):
    """A describer of groups that reads the topics of a coordinator or an observer."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, timeout_ms: int) -> None:
        self._client_config = client_config
        self._layout = layout
        self._timeout_ms = timeout_ms

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Describe the Kafka groups among `groups`. Raises KafkaError."""
        all_views = list_groups(self._client_config, self._layout, self._timeout_ms)
        views = {view.group_id: view for view in all_views}
        kafka_groups: Answers = {}
        for group_id in groups:
            view = views.get(group_id) or dead_group(group_id)
            if isinstance(view, GroupSnapshot):
                kafka_groups[group_id] = view
        if not with_offsets:
            return kafka_groups, {}
        return kafka_groups, committed_offsets(
            self._client_config, self._layout, kafka_groups, self._timeout_ms
        )


def dead_group(group_id: str) -> GroupSnapshot:
    """Return the description of a group that does not exist. Its state is Dead, as in Kafka."""
    return snapshot_without_times(group_id, DEAD, protocol_type=None, members=[])


def snapshot_without_times(group_id: str, state: str, **fields: Any) -> GroupSnapshot:
    """Return a group with these fields. Other fields, such as times, are empty."""
    empty: dict[str, Any] = {
        **dict.fromkeys(("incarnation", "last_rebalance_reason"), ""),
        **dict.fromkeys(("seq", "at_ms", "state_timestamp_ms", "generation"), 0),
        **dict.fromkeys(("protocol_name", "leader_id", "last_rebalance_at_ms", "quarantined")),
        "pending_members": [],
    }
    return GroupSnapshot(**empty | {"group_id": group_id, "state": state, **fields})


@dataclass(frozen=True, slots=True)
class DescribedGroups:
    """Described groups in the order of their ids, with their offsets if requested."""

    groups: dict[str, GroupSnapshot] = field(default_factory=dict)
    offsets: dict[str, GroupOffsets] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)  # a sentence for each group that could not be described
    rocketmq: list[str] = field(default_factory=list)  # ids of RocketMQ's groups

    def refusals(self) -> list[str]:
        """Return a sentence for each group that is not in `groups`."""
        return [*self.errors, *map(offsets_remark, self.rocketmq)]


def describe_groups(
    describer: GroupDescriber, groups: KnownTypes, *, with_offsets: bool = False
) -> DescribedGroups:
    """Describe the groups and, if `with_offsets`, fetch their offsets in the same round trip.

    A group that does not exist is Dead. Raises `kafka_why.topic_reader.ClientError` if a response is missing.
    """
    answers, offsets = describer.describe(groups, with_offsets=with_offsets)
    # A describer has an answer for every group except RocketMQ's.
    described = DescribedGroups(rocketmq=sorted(groups.keys() - answers.keys()))
    for group_id, answer in sorted(answers.items()):
        codes = {offsets[group_id].error_code} if with_offsets else set()
        if isinstance(answer, ErrorCode):
            codes.add(answer)
        error = max(codes - {ErrorCode.NONE}, default=None)
        if error is not None:
            reason = error_text(error.name)
            described.errors.append(f"Consumer group '{group_id}' cannot be described: {reason}.")
            continue
        assert isinstance(answer, GroupSnapshot), "an answer is a group or an error"
        if not list_row(answer).is_of_consumers:
            described.errors.append(f"GroupId {group_id} is not a consumer group ({answer.protocol_type}).")
            continue
        described.groups[group_id] = answer
        if with_offsets:
            described.offsets[group_id] = offsets[group_id]
    return described


def describe_partitions(
    log: LogOffsets, described: DescribedGroups, *, with_lag_seconds: bool = False
) -> dict[str, list[PartitionRow]]:
    """Return the rows of each group's partitions. Raises kafka-python's KafkaError.

    `described` must have offsets. If `with_lag_seconds`, also look up the times of records.
    """
    mentioned: set[TopicPartition] = set()
    for group_id, group in described.groups.items():
        mentioned |= mentioned_partitions(group, described.offsets[group_id])
    # The bounds are read after the committed offsets, so that the offsets are within the bounds.
    bounds = log.bounds(log.filter_existing(mentioned))
    lags_ms = _lags_ms(log, described, bounds) if with_lag_seconds else None
    return {
        group_id: partition_rows(group, described.offsets[group_id], bounds, lags_ms)
        for group_id, group in described.groups.items()
    }


def _lags_ms(
    log: LogOffsets, described: DescribedGroups, bounds: Mapping[TopicPartition, LogBounds]
) -> LagsMs:
    """Return the lags in time of committed offsets that have a lag in records."""
    # The lag begins at the next record. It is after the committed offset if retention has deleted records.
    next_offsets = {  # by partition and committed offset
        (partition, committed.offset): (partition, next_offset(committed.offset, bounds[partition]))
        for offsets in described.offsets.values()
        for partition, committed in offsets.committed.items()
        if partition in bounds and lag_records(committed.offset, bounds[partition])
    }
    lags_ms = log.lags_ms(set(next_offsets.values()))
    return {committed: lags_ms[next_] for committed, next_ in next_offsets.items() if next_ in lags_ms}


INTERVAL_S = 3.0
"""The pause between two polls of the broker's groups."""
GROUPS_MAX = 100
"""The maximum number of groups that are shown."""
_CLIENTS_MAX = 3  # named in a sentence
_BROKER_TIMEOUT_MS = 5_000
_STATES_WITH_MEMBERS = (
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
    GroupState.ASSIGNING,
    GroupState.RECONCILING,
)


class BrokerGroup(Struct, frozen=True):
    """A group that has members at the broker's own coordinator."""

    group_id: str
    protocol: str
    state: str
    clients: list[str]  # for a classic group, each member's client id and host


def broker_group_sentence(group: BrokerGroup, broker: str, gateway: str | None) -> str:
    """Return a sentence that names the group and its coordinator, and says what to do."""
    named, omitted = group.clients[:_CLIENTS_MAX], len(group.clients[_CLIENTS_MAX:])
    more = f" and {omitted} more" if omitted else ""
    clients = f", {', '.join(named)}{more}" if named else ""
    instead = f"give its clients the gateway's address {gateway}" if gateway else "it needs a gateway"
    return (
        f"group {group.group_id!r} ({group.protocol} protocol, {group.state}{clients}) uses the broker's own "
        f"coordinator at {broker}, so it is not among the groups here: {instead}, or show it with "
        f"`group-coordinator observe --bootstrap-servers {broker}`"
    )


class BrokerGroups(FollowerThread):
    """A thread that polls the broker's own coordinator for groups. `on_new` is called once for each group."""

    _retried_errors = Exception  # the coordinator works without this, too

    def __init__(
        self, client_config: ClientConfig, on_new: Callable[[BrokerGroup], None] = lambda _: None
    ) -> None:
        super().__init__("broker-groups", "polling the groups of the broker's own coordinator")
        self.groups: list[BrokerGroup] = []
        """The groups of the last poll, at most GROUPS_MAX."""
        self._client_config = client_config
        self._on_new = on_new
        self._reported: set[str] = set()  # ids of groups that `on_new` was called with

    def _connect_and_follow(self) -> None:
        admin = kafka_clients.admin(
            self._client_config,
            bootstrap_timeout_ms=_BROKER_TIMEOUT_MS,
            request_timeout_ms=_BROKER_TIMEOUT_MS,
        )
        with closing(admin):
            while not self._stopped.is_set():
                self._poll(admin)
                self._worked()
                self._stopped.wait(INTERVAL_S)

    def _poll(self, admin: KafkaAdminClient) -> None:
        # The broker's own coordinator also has the share groups of the gateway's clients. That is no mistake.
        with_members = admin.list_groups(states_filter=_STATES_WITH_MEMBERS)
        misplaced = [group for group in with_members if group["group_type"] != SHARE]
        first_groups = sorted(misplaced, key=lambda group: str(group["group_id"]))[:GROUPS_MAX]
        classic_ids = [group["group_id"] for group in first_groups if group["group_type"] == "classic"]
        described = _describe_classic(admin, classic_ids)
        self.groups = [_broker_group(group, described.get(group["group_id"])) for group in first_groups]
        for group in self.groups:
            if group.group_id not in self._reported:
                self._reported.add(group.group_id)
                self._on_new(group)


def _describe_classic(admin: KafkaAdminClient, group_ids: list[str]) -> dict[str, Any]:
    """Return the descriptions of classic groups. A group that kafka-python cannot decode is left out."""
    if not group_ids:
        return {}
    try:
        return dict(admin.describe_groups(group_ids))
    except ValueError:
        # Some group cannot be decoded. Find it by halves.
        if len(group_ids) == 1:
            return {}
        half = len(group_ids) // 2
        return _describe_classic(admin, group_ids[:half]) | _describe_classic(admin, group_ids[half:])


def _broker_group(listed: Mapping[str, Any], described: Mapping[str, Any] | None) -> BrokerGroup:
    members = [] if described is None else described["members"]
    clients = [f"{member['client_id']} at {member['client_host']}" for member in members]
    return BrokerGroup(listed["group_id"], listed["group_type"], listed["group_state"], clients)
