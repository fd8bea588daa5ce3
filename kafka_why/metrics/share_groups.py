"""The metrics that only share groups have: how far their partitions are at the share coordinator. All of them
are the coordinator's own: Kafka has none. Rows SM1, SM4.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import UnsetType
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kafka_why.contract.errors import name_of
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.snapshot import ShareSnapshot
from kafka_why.metrics.series import Selection, add_others, filled
from kafka_why.metrics.times import Times

SHARE = "share"
OWN = "group_coordinator_share_group"
_INITIALIZE, _DELETE = "initialize", "delete"
_STATES = ("initializing", "initialized", "deleting")
_BY_HEARTBEAT = ("SH21", "SH22", "SH23")
"""The rows of new epochs that Kafka counts: those of heartbeats, and not those of members that go."""


@dataclass(slots=True)
class ShareCounts:
    """Counts since the start of this process, from the history. `failures` are partitions, by error code."""

    is_seen: bool = False
    initializing: Times = field(default_factory=Times)
    failures: Counter[str] = field(default_factory=Counter)

    def count(self, event: HistoryEntry) -> None:
        """Count an entry of a share group."""
        self.is_seen = True
        if event.type is EntryType.SHARE_PARTITIONS_INITIALIZED and event.took_ms is not None:
            self.initializing.add(event.took_ms)
        if event.type is EntryType.SHARE_PARTITIONS_NOT_INITIALIZED and event.error_code is not None:
            name = name_of(event.error_code) or str(event.error_code)
            self.failures[name] += sum(map(len, (event.partitions or {}).values()))


def is_rebalance(event: HistoryEntry) -> bool:
    """Whether Kafka counts this new epoch of a share group as a rebalance, as far as it is known."""
    return event.observed or event.rule in _BY_HEARTBEAT


def share_counts(counts: ShareCounts) -> Iterator[Metric]:
    """Yield the counters from the history. There are none as long as there was no share group."""
    if not counts.is_seen:
        return
    yield counts.initializing.metric(
        f"{OWN}_initializing_seconds",
        "Time from asking the share coordinator to initialize partitions until it had.",
    )
    yield filled(
        CounterMetricFamily(
            f"{OWN}_initialization_failures",
            "Partitions that the share coordinator answered with an error, once for each answer.",
            labels=("error_code",),
        ),
        (((code,), number) for code, number in sorted(counts.failures.items())),
    )


def share_gauges(groups: Mapping[str, ShareSnapshot], selection: Selection) -> Iterator[Metric]:
    """Yield the gauges from the groups' views. There are none without a share group."""
    if not groups:
        return
    own, rest = selection.own(groups), selection.rest(groups)
    partitions = GaugeMetricFamily(
        f"{OWN}_partitions",
        "Partitions by what the share coordinator does.",
        labels=("consumergroup", "state"),
    )
    tasks = GaugeMetricFamily(
        f"{OWN}_open_tasks", "Open tasks for the share coordinator.", labels=("consumergroup", "kind")
    )
    oldest = GaugeMetricFamily(
        f"{OWN}_oldest_initializing_timestamp_seconds",
        "When the share coordinator was asked for the oldest open initialization.",
        labels=("consumergroup",),
    )
    for group_id, share in own:
        for state in _STATES:
            partitions.add_metric((group_id, state), _partition_count(share, state))
        for kind, number in _task_counts(share).items():
            tasks.add_metric((group_id, kind), number)
        if (oldest_s := _oldest_initializing_s(share)) is not None:
            oldest.add_metric((group_id,), oldest_s)
    for state in _STATES:
        add_others(partitions, (_partition_count(share, state) for share in rest), state)
    for kind in (_INITIALIZE, _DELETE):
        add_others(tasks, (_task_counts(share).get(kind) for share in rest), kind)
    add_others(oldest, map(_oldest_initializing_s, rest), of_all=min)
    yield from (partitions, tasks, oldest)


def _partition_count(share: ShareSnapshot, state: str) -> int:
    """Return the number of partitions in one of _STATES."""
    return sum(map(len, getattr(share, state).values()))


def _task_counts(share: ShareSnapshot) -> dict[str, int]:
    """Return the number of open tasks of each kind; empty for an observed group."""
    if isinstance(share.tasks, UnsetType):
        return {}
    kinds = Counter(task.kind for task in share.tasks)
    return {kind: kinds[kind] for kind in (_INITIALIZE, _DELETE)}


def _oldest_initializing_s(share: ShareSnapshot) -> float | None:
    """Return the time at which the oldest open initialization was requested, None if there is none."""
    asked_ms = [task.asked_at_ms for task in share.tasks or () if task.kind == _INITIALIZE]
    return min(asked_ms) / 1000 if asked_ms else None
