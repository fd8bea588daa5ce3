"""The metrics of groups with epochs: consumer, share and streams groups. The counts by state and of
new epochs are Kafka's metrics; the others are the coordinator's own. A row is a case in docs/rules-*.md in
which the coordinator decides, with an id such as SH21.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import prometheus_client
from msgspec import UnsetType
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric, UnknownMetricFamily

from kafka_why.contract.kafka.history import (
    CONSUMER,
    DEAD,
    NOT_READY,
    SHARE,
    STREAMS,
    ConsumerGroupState,
    EntryType,
    HistoryEntry,
    MemberState,
)
from kafka_why.contract.kafka.snapshot import GroupSnapshot, ShareSnapshot
from kafka_why.contract.messages import name_of
from kafka_why.metrics.series import DURATION_BUCKETS_S, SeriesSelection, add_others, filled, group_gauge

# The metrics that only share groups have: the state of their partitions at the share coordinator. Kafka has
# no such metrics (rows SM1, SM4).


OWN_SHARES = "group_coordinator_share_group"
_INITIALIZE, _DELETE = "initialize", "delete"
_SHARE_STATES = ("initializing", "initialized", "deleting")
_SHARE_HEARTBEAT_ROWS = ("SH21", "SH22", "SH23")
"""The rows in which a heartbeat raises the epoch of a share group. Kafka counts these new epochs. It does not
count a new epoch after a member has left.
"""
_STREAMS_REMOVAL_ROW = "KSH42"
"""The row in which a removed member raises the epoch of a streams group. Kafka does not count this epoch."""


def is_rebalance(event: HistoryEntry) -> bool:
    """Return True if Kafka counts this new epoch as a rebalance.

    An observed epoch (of a group of Kafka's own coordinator) always counts, because its row does not show the
    cause.
    """
    is_counted = (
        event.rule in _SHARE_HEARTBEAT_ROWS
        if event.group_type == SHARE
        else event.rule != _STREAMS_REMOVAL_ROW
    )
    return event.observed or is_counted


def share_gauges(groups: Mapping[str, ShareSnapshot], selection: SeriesSelection) -> Iterator[Metric]:
    """Yield the gauges of share groups, from their views. Yield nothing if there is no share group."""
    if not groups:
        return
    with_series, others = selection.own(groups), selection.rest(groups)
    partitions = GaugeMetricFamily(
        f"{OWN_SHARES}_partitions",
        "Partitions by their state at the share coordinator.",
        labels=("consumergroup", "state"),
    )
    tasks = GaugeMetricFamily(
        f"{OWN_SHARES}_open_tasks",
        "Open tasks for the share coordinator.",
        labels=("consumergroup", "kind"),
    )
    oldest = GaugeMetricFamily(
        f"{OWN_SHARES}_oldest_initializing_timestamp_seconds",
        "The time at which the oldest open initialization was requested of the share coordinator.",
        labels=("consumergroup",),
    )
    for group_id, share in with_series:
        for state in _SHARE_STATES:
            partitions.add_metric((group_id, state), _partition_count(share, state))
        for kind, number in _task_counts(share).items():
            tasks.add_metric((group_id, kind), number)
        if (oldest_s := _oldest_initializing_s(share)) is not None:
            oldest.add_metric((group_id,), oldest_s)
    for state in _SHARE_STATES:
        add_others(partitions, (_partition_count(share, state) for share in others), state)
    for kind in (_INITIALIZE, _DELETE):
        add_others(tasks, (_task_counts(share).get(kind) for share in others), kind)
    add_others(oldest, map(_oldest_initializing_s, others), of_all=min)
    yield from (partitions, tasks, oldest)


def _partition_count(share: ShareSnapshot, state: str) -> int:
    return sum(map(len, getattr(share, state).values()))


def _task_counts(share: ShareSnapshot) -> dict[str, int]:
    """Return the number of open tasks by kind, or {} if they are unknown."""
    if isinstance(share.tasks, UnsetType):  # an observed group, whose tasks are not on the topics
        return {}
    kinds = Counter(task.kind for task in share.tasks)
    return {kind: kinds[kind] for kind in (_INITIALIZE, _DELETE)}


def _oldest_initializing_s(share: ShareSnapshot) -> float | None:
    """Return when the oldest open initialization was requested, in seconds since 1970, or None."""
    requested_ms = [task.asked_at_ms for task in share.tasks or () if task.kind == _INITIALIZE]
    return min(requested_ms) / 1000 if requested_ms else None


COORDINATOR = "kafka_server_group_coordinator_metrics"
OWN = "group_coordinator_consumer_group"

# The states of a type of group, if not those of ConsumerGroupState.
_STATES = {
    SHARE: (ConsumerGroupState.EMPTY, ConsumerGroupState.STABLE),
    STREAMS: (*ConsumerGroupState, NOT_READY),
}


class EpochCounts:
    """Counts of the history entries of groups with epochs since the start of this process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._epochs: Counter[str] = Counter()  # number of new epochs by the type of the group
        self._settling = prometheus_client.Histogram(
            f"{OWN}_settling_seconds",
            "Time from a new group epoch until every member has its target assignment.",
            registry=registry,
            buckets=DURATION_BUCKETS_S,
        )
        self._computed = prometheus_client.Counter(
            f"{OWN}_target_assignments", "Target assignments computed.", ("assignor",), registry=registry
        )
        self._moved = prometheus_client.Counter(
            f"{OWN}_moved_partitions",
            "Partitions that target assignments gave to another member.",
            registry=registry,
        )
        self._initializing = prometheus_client.Histogram(
            f"{OWN_SHARES}_initializing_seconds",
            "Time from a request to the share coordinator to initialize partitions until it has done so.",
            registry=registry,
            buckets=DURATION_BUCKETS_S,
        )
        self._failures = prometheus_client.Counter(
            f"{OWN_SHARES}_initialization_failures",
            "Partitions that the share coordinator answered with an error, once for each answer.",
            ("error_code",),
            registry=registry,
        )

    def count(self, event: HistoryEntry) -> None:
        """Count one entry of a group with epochs."""
        match event.type:
            case EntryType.GROUP_EPOCH_BUMPED if is_rebalance(event):
                self._epochs[event.group_type] += 1
            case EntryType.TARGET_ASSIGNMENT_COMPUTED if event.group_type == CONSUMER:
                self._computed.labels(event.assignor_name or "").inc()
                self._moved.inc(event.moved_partitions or 0)
            case EntryType.STABLE if event.took_ms is not None:
                self._settling.observe(event.took_ms / 1000)
            case EntryType.SHARE_PARTITIONS_INITIALIZED if event.took_ms is not None:
                self._initializing.observe(event.took_ms / 1000)
            case EntryType.SHARE_PARTITIONS_NOT_INITIALIZED if event.error_code is not None:
                name = name_of(event.error_code) or str(event.error_code)
                self._failures.labels(name).inc(sum(map(len, (event.partitions or {}).values())))

    def epochs(self) -> Iterator[Metric]:
        """Yield Kafka's counts of new epochs, untyped like all of Kafka's counts (`collector`)."""
        for type_ in (CONSUMER, *sorted(self._epochs.keys() - {CONSUMER})):
            name = f"{COORDINATOR}_{type_}_group_rebalance_count"
            yield UnknownMetricFamily(name, f"New group epochs of {type_} groups.", self._epochs[type_])


def consumer_group_gauges(views: Mapping[str, GroupSnapshot], selection: SeriesSelection) -> Iterator[Metric]:
    """Yield the gauges of groups with epochs.

    If there are no consumer groups, their numbers are 0. If there are no share or streams groups, theirs are
    omitted.
    """
    groups = {group_id: view for group_id, view in views.items() if view.consumer}
    states: dict[str, Counter[str]] = {CONSUMER: Counter()}
    for group in groups.values():
        states.setdefault(group.group_type, Counter())[group.state] += 1
    for type_, counts in sorted(states.items()):
        name, description = f"{COORDINATOR}_{type_}_group_count", f"{type_.capitalize()} groups by state."
        possible = (*_STATES.get(type_, tuple(ConsumerGroupState)), DEAD)
        yield filled(
            GaugeMetricFamily(name, description, labels=("state",)),
            (((state.lower(),), counts[state]) for state in possible),
        )
    with_series = selection.own(groups)
    yield _by_group("epoch", "Group epoch.", {g: group.generation for g, group in with_series})
    yield _by_group(
        "target_assignment_epoch",
        "Epoch of the target assignment.",
        {g: group.consumer.assignment_epoch for g, group in with_series if group.consumer},
    )
    yield group_gauge(
        f"{OWN}_unsettled_members",
        "Members that are not at the target assignment.",
        groups,
        selection,
        _unsettled_count,
    )
    shares = {g: view.consumer.share for g, view in groups.items() if view.consumer and view.consumer.share}
    yield from share_gauges(shares, selection)


def _unsettled_count(group: GroupSnapshot) -> int | None:
    """Return the number of members that are not at the target assignment, or None if it is unknown."""
    if not group.consumer or not group.are_members_complete:
        return None
    at_target = group.consumer.assignment_epoch, MemberState.STABLE.value
    return sum(
        not m.consumer or (m.consumer.member_epoch, m.consumer.state) != at_target for m in group.members
    )


def _by_group(name: str, description: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    series = (((group_id,), value) for group_id, value in values.items())
    return filled(GaugeMetricFamily(f"{OWN}_{name}", description, labels=("consumergroup",)), series)
