"""The metrics of groups with epochs: consumer, share and streams groups. The counts by state and of
new epochs are Kafka's metrics; the others are the coordinator's own.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import UnsetType
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    UnknownMetricFamily,
)

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
from kafka_why.metrics.series import DurationCounts, SeriesSelection, add_others, filled

# The metrics that only share groups have: the state of their partitions at the share coordinator. Kafka has
# no such metrics. Rows SM1, SM4.


OWN_SHARES = "group_coordinator_share_group"
_INITIALIZE, _DELETE = "initialize", "delete"
_SHARE_STATES = ("initializing", "initialized", "deleting")
_BY_HEARTBEAT = ("SH21", "SH22", "SH23")
"""The rows of new epochs of share groups that Kafka counts: those of heartbeats, not those of members that
leave.
"""
_BY_REMOVAL = "KSH42"
"""The row of new epochs of streams groups that Kafka does not count: a member was removed."""


@dataclass(slots=True)
class ShareCounts:
    """Counts of share groups' history entries since the start of this process."""

    is_seen: bool = False
    initializing: DurationCounts = field(default_factory=DurationCounts)
    failures: Counter[str] = field(default_factory=Counter)  # partitions by error code

    def count(self, event: HistoryEntry) -> None:
        """Count an entry of a share group."""
        self.is_seen = True
        if event.type is EntryType.SHARE_PARTITIONS_INITIALIZED and event.took_ms is not None:
            self.initializing.add(event.took_ms)
        if event.type is EntryType.SHARE_PARTITIONS_NOT_INITIALIZED and event.error_code is not None:
            name = name_of(event.error_code) or str(event.error_code)
            self.failures[name] += sum(map(len, (event.partitions or {}).values()))


def is_rebalance(event: HistoryEntry) -> bool:
    """Return True if Kafka counts this new epoch as a rebalance."""
    is_counted = event.rule in _BY_HEARTBEAT if event.group_type == SHARE else event.rule != _BY_REMOVAL
    # The cause of an observed epoch is unknown.
    return event.observed or is_counted


def share_counts(counts: ShareCounts) -> Iterator[Metric]:
    """Yield the counters of share groups' histories, or none until there is a share group."""
    if not counts.is_seen:
        return
    yield counts.initializing.metric(
        f"{OWN_SHARES}_initializing_seconds",
        "Time from a request to the share coordinator to initialize partitions until it has done so.",
    )
    yield filled(
        CounterMetricFamily(
            f"{OWN_SHARES}_initialization_failures",
            "Partitions that the share coordinator answered with an error, once for each answer.",
            labels=("error_code",),
        ),
        (((code,), number) for code, number in sorted(counts.failures.items())),
    )


def share_gauges(groups: Mapping[str, ShareSnapshot], selection: SeriesSelection) -> Iterator[Metric]:
    """Yield the gauges of share groups' views, or none without a share group."""
    if not groups:
        return
    own, rest = selection.own(groups), selection.rest(groups)
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
    for group_id, share in own:
        for state in _SHARE_STATES:
            partitions.add_metric((group_id, state), _partition_count(share, state))
        for kind, number in _task_counts(share).items():
            tasks.add_metric((group_id, kind), number)
        if (oldest_s := _oldest_initializing_s(share)) is not None:
            oldest.add_metric((group_id,), oldest_s)
    for state in _SHARE_STATES:
        add_others(partitions, (_partition_count(share, state) for share in rest), state)
    for kind in (_INITIALIZE, _DELETE):
        add_others(tasks, (_task_counts(share).get(kind) for share in rest), kind)
    add_others(oldest, map(_oldest_initializing_s, rest), of_all=min)
    yield from (partitions, tasks, oldest)


def _partition_count(share: ShareSnapshot, state: str) -> int:
    return sum(map(len, getattr(share, state).values()))


def _task_counts(share: ShareSnapshot) -> dict[str, int]:
    if isinstance(share.tasks, UnsetType):  # an observed group
        return {}
    kinds = Counter(task.kind for task in share.tasks)
    return {kind: kinds[kind] for kind in (_INITIALIZE, _DELETE)}


def _oldest_initializing_s(share: ShareSnapshot) -> float | None:
    asked_ms = [task.asked_at_ms for task in share.tasks or () if task.kind == _INITIALIZE]
    return min(asked_ms) / 1000 if asked_ms else None


COORDINATOR = "kafka_server_group_coordinator_metrics"
OWN = "group_coordinator_consumer_group"

_STATES = {
    SHARE: (ConsumerGroupState.EMPTY, ConsumerGroupState.STABLE),
    STREAMS: (*ConsumerGroupState, NOT_READY),
}


@dataclass(slots=True)
class EpochCounts:
    """Counts of the history entries of groups with epochs since the start of this process."""

    epochs: Counter[str] = field(default_factory=Counter)  # by the type of the group
    settling: DurationCounts = field(default_factory=DurationCounts)
    computed: Counter[str] = field(default_factory=Counter)  # target assignments by assignor
    moved_partitions: int = 0
    shares: ShareCounts = field(default_factory=ShareCounts)

    def count(self, event: HistoryEntry) -> None:
        """Count one entry of a group with epochs."""
        if event.group_type == SHARE:
            self.shares.count(event)
        match event.type:
            case EntryType.GROUP_EPOCH_BUMPED if is_rebalance(event):
                self.epochs[event.group_type] += 1
            case EntryType.TARGET_ASSIGNMENT_COMPUTED if event.group_type == CONSUMER:
                self.computed[event.assignor_name or ""] += 1
                self.moved_partitions += event.moved_partitions or 0
            case EntryType.STABLE if event.took_ms is not None:
                self.settling.add(event.took_ms)


def epoch_counts(counts: EpochCounts) -> Iterator[Metric]:
    """Yield the counters from the history."""
    for type_ in (CONSUMER, *sorted(counts.epochs.keys() - {CONSUMER})):
        name = f"{COORDINATOR}_{type_}_group_rebalance_count"
        yield UnknownMetricFamily(name, f"New group epochs of {type_} groups.", counts.epochs[type_])
    yield counts.settling.metric(
        f"{OWN}_settling_seconds", "Time from a new group epoch until every member has its target assignment."
    )
    yield filled(
        CounterMetricFamily(
            f"{OWN}_target_assignments", "Target assignments computed.", labels=("assignor",)
        ),
        (((assignor,), number) for assignor, number in sorted(counts.computed.items())),
    )
    yield CounterMetricFamily(
        f"{OWN}_moved_partitions",
        "Partitions that target assignments gave to another member.",
        counts.moved_partitions,
    )
    yield from share_counts(counts.shares)


def consumer_group_gauges(views: Mapping[str, GroupSnapshot], selection: SeriesSelection) -> Iterator[Metric]:
    """Yield the gauges of groups with epochs. Types other than consumer have none without a group."""
    groups = {group_id: view for group_id, view in views.items() if view.consumer}
    states: dict[str, Counter[str]] = {CONSUMER: Counter()}
    for group in groups.values():
        states.setdefault(group.group_type, Counter())[group.state] += 1
    for type_, counts in sorted(states.items()):
        name, meaning = f"{COORDINATOR}_{type_}_group_count", f"{type_.capitalize()} groups by state."
        shown = (*_STATES.get(type_, tuple(ConsumerGroupState)), DEAD)
        yield filled(
            GaugeMetricFamily(name, meaning, labels=("state",)),
            (((state.lower(),), counts[state]) for state in shown),
        )
    own = selection.own(groups)
    yield _by_group("epoch", "Group epoch.", {g: group.generation for g, group in own})
    yield _by_group(
        "target_assignment_epoch",
        "Epoch of the target assignment.",
        {g: group.consumer.assignment_epoch for g, group in own if group.consumer},
    )
    unsettled = _by_group(
        "unsettled_members",
        "Members that are not at the target assignment.",
        {g: _unsettled(group) for g, group in own},
    )
    yield add_others(unsettled, map(_unsettled, selection.rest(groups)))
    shares = {g: view.consumer.share for g, view in groups.items() if view.consumer and view.consumer.share}
    yield from share_gauges(shares, selection)


def _unsettled(group: GroupSnapshot) -> int | None:
    if not group.consumer or not group.are_members_complete:
        return None  # unknown
    at_target = group.consumer.assignment_epoch, MemberState.STABLE.value
    return sum(
        not m.consumer or (m.consumer.member_epoch, m.consumer.state) != at_target for m in group.members
    )


def _by_group(name: str, meaning: str, values: Mapping[str, int | None]) -> GaugeMetricFamily:
    known = (((group_id,), value) for group_id, value in values.items() if value is not None)
    return filled(GaugeMetricFamily(f"{OWN}_{name}", meaning, labels=("consumergroup",)), known)
