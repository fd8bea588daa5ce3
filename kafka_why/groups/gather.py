"""Builds descriptions of groups from the responses of the coordinator and the brokers."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from uuid import UUID

import kafka
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
from kafka_why.lifetimes import BackgroundThread, OutageWarning

# The brokers' answers about partitions: their logs' bounds, and offsets by time.


class LogOffsets:
    """A reader of topics' partitions and log offsets from the brokers.

    All partitions passed to a method must exist (see `filter_existing`). The list of topics is read once.
    Methods raise kafka-python's KafkaError: KafkaTimeoutError if a response is late.
    """

    def __init__(self, client_config: ClientConfig, timeout_ms: int) -> None:
        self._client_config = client_config
        self._timeout_ms = timeout_ms
        self._consumer = kafka_clients.reading_consumer(client_config)
        self._topics: frozenset[str] | None = None

    def topics(self) -> frozenset[str]:
        """Return the names of all topics except internal ones."""
        if self._topics is None:
            self._topics = frozenset(self._consumer.topics())
        return self._topics

    def existing(self, topics: Iterable[str]) -> dict[str, frozenset[int]]:
        """Return the partitions of those topics that exist."""
        return {
            topic: frozenset(self._consumer.partitions_for_topic(topic))
            for topic in self.topics().intersection(topics)
        }

    def filter_existing(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions that exist."""
        existing = self.existing({partition.topic for partition in partitions})
        return {p for p in partitions if p.partition in existing.get(p.topic, ())}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of each partition, which is the offset of its next record."""
        return self._offsets(self._consumer.end_offsets, partitions)

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Return the bounds of each log."""
        ends = self.ends(partitions)
        starts = self._offsets(self._consumer.beginning_offsets, partitions)
        return {p: LogBounds(starts[p], ends[p]) for p in partitions}

    def at_time(self, partitions: Collection[TopicPartition], at_ms: int) -> dict[TopicPartition, int | None]:
        """Return the offset of each partition's first record at or after `at_ms`, or None."""
        times = {kafka.TopicPartition(*p): max(0, at_ms) for p in partitions}
        if not times:
            return {}
        found = self._consumer.offsets_for_times(times, timeout_ms=self._timeout_ms)
        return {_topic_partition(p): None if at is None else at.offset for p, at in found.items()}

    def lags_ms(self, offsets: Collection[tuple[Partition, int]]) -> dict[tuple[Partition, int], int]:
        """Return the lag in time of each offset, by the timestamps of records (`kafka_why.lag.brokers`).

        Offsets without a usable timestamp are omitted.
        """
        found: dict[tuple[Partition, int], int] = {}
        left = set(offsets)
        with closing(kafka_clients.admin(self._client_config, request_timeout_ms=self._timeout_ms)) as admin:
            while left:
                batch = dict(left)  # one offset of each partition
                lags = timestamp_lags(partial(records_at, admin), batch)
                found |= {(p, offset): lags[p] for p, offset in batch.items() if p in lags}
                left -= batch.items()
        return found

    def topic_ids(self, topics: Iterable[str]) -> dict[str, UUID]:
        """Return the topic ids of those topics that exist."""
        with closing(kafka_clients.admin(self._client_config)) as admin:
            described = admin.describe_topics(sorted(topics))
        return {topic["name"]: UUID(str(topic["topic_id"])) for topic in described if not topic["error_code"]}

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close(autocommit=False)

    def _offsets(
        self, ask: Callable[..., dict[kafka.TopicPartition, int]], partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        offsets = ask([kafka.TopicPartition(*p) for p in partitions], timeout_ms=self._timeout_ms)
        return {_topic_partition(p): offset for p, offset in offsets.items()}


def _topic_partition(partition: kafka.TopicPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


# Sources of descriptions of groups, and the groups topic as one of them.


KnownTypes = Mapping[str, str | None]
"""The group type by group id, as in the group's history, or None if unknown."""

Answers = dict[str, GroupSnapshot | ErrorCode]
"""By group id: the group, or the error why the group cannot be described."""


class GroupDescriber(Protocol):
    """A source of descriptions of groups."""

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Return the groups or their errors, and the groups' offsets if `with_offsets`."""
        ...


class TopicGroupDescriber(GroupDescriber):
    """A describer of groups that reads the topics of a coordinator or an observer."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, timeout_ms: int) -> None:
        self._topics = client_config, layout, timeout_ms

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Describe the Kafka groups among `groups`. Raises KafkaError."""
        client_config, layout, timeout_ms = self._topics
        views = {view.group_id: view for view in list_groups(*self._topics)}
        kafkas: Answers = {}
        for group_id in groups:
            view = views.get(group_id) or dead(group_id)
            if isinstance(view, GroupSnapshot):
                kafkas[group_id] = view
        if not with_offsets:
            return kafkas, {}
        return kafkas, committed_offsets(client_config, layout, kafkas, timeout_ms)


def dead(group_id: str) -> GroupSnapshot:
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
    requests: GroupDescriber, groups: KnownTypes, *, with_offsets: bool = False
) -> DescribedGroups:
    """Describe the groups and, if `with_offsets`, fetch their offsets in the same round trip.

    A group that does not exist is Dead. Raises `kafka_why.topic_reader.ClientError` if a response is missing.
    """
    answers, fetched = requests.describe(groups, with_offsets=with_offsets)
    found = DescribedGroups(rocketmq=sorted(groups.keys() - answers.keys()))
    for group_id, answer in sorted(answers.items()):
        codes = {fetched[group_id].error_code} if with_offsets else set()
        if isinstance(answer, ErrorCode):
            codes.add(answer)
        error = max(codes - {ErrorCode.NONE}, default=None)
        if error is not None:
            reason = error_text(error.name)
            found.errors.append(f"Consumer group '{group_id}' cannot be described: {reason}.")
            continue
        assert isinstance(answer, GroupSnapshot), "without an error"
        if not list_row(answer).is_of_consumers:
            found.errors.append(f"GroupId {group_id} is not a consumer group ({answer.protocol_type}).")
            continue
        found.groups[group_id] = answer
        if with_offsets:
            found.offsets[group_id] = fetched[group_id]
    return found


def describe_partitions(
    log: LogOffsets, described: DescribedGroups, *, with_lag_seconds: bool = False
) -> dict[str, list[PartitionRow]]:
    """Return the rows of each group's partitions. Raises kafka-python's KafkaError.

    `described` must have offsets. If `with_lag_seconds`, also look up the times of records.
    """
    mentioned: set[TopicPartition] = set()
    for group_id, group in described.groups.items():
        mentioned |= mentioned_partitions(group, described.offsets[group_id])
    # Read after the committed offsets, so that these are within the bounds.
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
    behind = {
        (partition, committed.offset)
        for offsets in described.offsets.values()
        for partition, committed in offsets.committed.items()
        if partition in bounds and lag_records(committed.offset, bounds[partition])
    }
    found = log.lags_ms({(p, next_offset(offset, bounds[p])) for p, offset in behind})
    return {
        (p, offset): ms
        for p, offset in behind
        if (ms := found.get((p, next_offset(offset, bounds[p])))) is not None
    }


# Finds groups of the embedded broker's own coordinator.


INTERVAL_S = 3.0
GROUPS_MAX = 100
"""The maximum number of groups that are shown."""
_CLIENTS_MAX = 3
_RETRY_S = 1.0
_BROKER_TIMEOUT_MS = 5_000
# The states of groups that have members.
_STATES = (
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
    GroupState.ASSIGNING,
    GroupState.RECONCILING,
)


class BrokerGroup(Struct, frozen=True):
    """A group with members."""

    group_id: str
    protocol: str
    state: str
    clients: list[str]  # for a classic group, each member's client id and host


def sentence(group: BrokerGroup, broker: str, gateway: str | None) -> str:
    """Return a sentence that names the group and its coordinator, and says what to do."""
    shown = group.clients[:_CLIENTS_MAX]
    more = f" and {len(group.clients) - len(shown)} more" if len(group.clients) > len(shown) else ""
    clients = f", {', '.join(shown)}{more}" if shown else ""
    instead = f"give its clients the gateway's address {gateway}" if gateway else "it needs a gateway"
    return (
        f"group {group.group_id!r} ({group.protocol} protocol, {group.state}{clients}) uses the broker's own "
        f"coordinator at {broker}, so it is not among the groups here: {instead}, or show it with "
        f"`group-coordinator observe --bootstrap-servers {broker}`"
    )


class BrokerGroups(BackgroundThread):
    """A thread that polls the broker's own coordinator for groups. `on_new` is called once for each group."""

    def __init__(
        self, client_config: ClientConfig, on_new: Callable[[BrokerGroup], None] = lambda _: None
    ) -> None:
        super().__init__("broker-groups")
        self.groups: list[BrokerGroup] = []
        """The groups of the last poll, at most GROUPS_MAX."""
        self._client_config = client_config
        self._on_new = on_new
        self._known: set[str] = set()
        self._outage = OutageWarning("polling the groups of the broker's own coordinator")

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                admin = kafka_clients.admin(
                    self._client_config,
                    bootstrap_timeout_ms=_BROKER_TIMEOUT_MS,
                    request_timeout_ms=_BROKER_TIMEOUT_MS,
                )
                with closing(admin):
                    while not self._stopped.is_set():
                        self._poll(admin)
                        self._outage.worked()
                        self._stopped.wait(INTERVAL_S)
            except Exception as error:  # noqa: BLE001 - the coordinator works without this, too
                self._outage.failed(error)
                self._stopped.wait(_RETRY_S)

    def _poll(self, admin: KafkaAdminClient) -> None:
        # Share groups of the gateway's clients are also at the broker's own coordinator.
        found = [group for group in admin.list_groups(states_filter=_STATES) if group["group_type"] != SHARE]
        listed = sorted(found, key=lambda group: str(group["group_id"]))[:GROUPS_MAX]
        classic = [group["group_id"] for group in listed if group["group_type"] == "classic"]
        described = _described(admin, classic)
        self.groups = [_group(group, described.get(group["group_id"])) for group in listed]
        for group in self.groups:
            if group.group_id not in self._known:
                self._known.add(group.group_id)
                self._on_new(group)


def _described(admin: KafkaAdminClient, group_ids: list[str]) -> dict[str, Any]:
    if not group_ids:
        return {}
    try:
        return dict(admin.describe_groups(group_ids))
    except ValueError:
        # kafka-python cannot decode what a member of one of these groups sent.
        half = len(group_ids) // 2
        return _described(admin, group_ids[:half]) | _described(admin, group_ids[half:]) if half else {}


def _group(listed: Mapping[str, Any], described: Mapping[str, Any] | None) -> BrokerGroup:
    members = [] if described is None else described["members"]
    clients = [f"{member['client_id']} at {member['client_host']}" for member in members]
    return BrokerGroup(listed["group_id"], listed["group_type"], listed["group_state"], clients)
