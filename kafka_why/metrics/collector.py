"""Prometheus metric families from numbers, under the names that Kafka's operators know.

Kafka's own metrics are named as the JMX exporter writes them in lower case: `kafka.coordinator.group:type=
GroupMetadataManager,name=NumGroups` is kafka_coordinator_group_groupmetadatamanager_numgroups. The JMX
exporter leaves Kafka's counts untyped, and so does this module; PromQL computes the rates. Names and labels
that begin with kafka_consumergroup_ are those of danielqsj/kafka_exporter. Names that begin with rocketmq_
are those of RocketMQ 5's broker. All other names begin with group_coordinator_.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

from kafka_why.contract.kafka.history import CONSUMER, DEAD, GroupState
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.rocketmq.history import ConnectionSnapshot
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqGroup
from kafka_why.metrics.consumer_groups import consumer_group_gauges
from kafka_why.metrics.metrics_state import MetricsState, TopicCounts
from kafka_why.metrics.series import (
    EXPORTER,
    OWN,
    SeriesSelection,
    add_others,
    filled,
    fits,
    group_gauge,
    lag_gauges,
    without_series,
)
from kafka_why.rocketmq_group import RocketMqGroupState, consume_mode, group_state

MANAGER = "kafka_coordinator_group_groupmetadatamanager"
COORDINATOR = "kafka_server_group_coordinator_metrics"


class MetricsStateCollector(Collector):
    """A collector of the metrics that are computed from the topics.

    `with_members` adds series of single members. `is_observed` is True if the topics are an observer's. They
    do not have all offsets that were committed, expired or deleted, so these are not counted.
    """

    def __init__(
        self, metrics_state: MetricsState, *, with_members: bool = False, is_observed: bool = False
    ) -> None:
        self._metrics_state = metrics_state
        self._with_members = with_members
        self._is_observed = is_observed

    def collect(self) -> Iterator[Metric]:
        numbers = self._metrics_state.numbers()
        counts = numbers.counts
        if not self._is_observed:
            yield from _offset_counts(counts)
        yield _kafka_count("group_completed_rebalance", "Completed rebalances", counts.classic_rebalances)
        yield from counts.registry.collect()
        yield from counts.groups_with_epochs.epochs()
        yield CounterMetricFamily(
            f"{OWN}_history_duplicates", "History entries that were read more than once.", numbers.duplicates
        )
        yield filled(
            CounterMetricFamily(
                f"{OWN}_rebalances", "Completed rebalances of a group.", labels=("consumergroup",)
            ),
            (((group_id,), number) for group_id, number in sorted(numbers.rebalances.items())),
        )
        # Until the topics are read to their ends, the groups are unknown.
        if numbers.groups is None or numbers.rocketmq_groups is None or numbers.lags is None:
            return
        yield from _classic_group_gauges(numbers.groups.values())
        selection = numbers.selection
        yield from consumer_group_gauges(numbers.groups, selection)
        yield group_gauge(
            f"{EXPORTER}_members", "Members of a group.", numbers.groups, selection, _member_count
        )
        yield from rocketmq_gauges(numbers.rocketmq_groups, selection)
        yield from _by_protocol(numbers.groups, numbers.rocketmq_groups)
        yield without_series("groups", "Groups", selection.others)
        yield GaugeMetricFamily(f"{MANAGER}_numoffsets", "Committed offsets.", numbers.offsets)
        yield from lag_gauges(
            numbers.lags,
            numbers.other_lags,
            with_members=self._with_members,
            rows_max=self._metrics_state.bounds.rows,
        )


def _offset_counts(counts: TopicCounts) -> Iterator[Metric]:
    yield _kafka_count("offset_commit", "Offsets committed", counts.offsets_committed)
    yield _kafka_count("offset_expiration", "Offsets expired", counts.offsets_expired)
    yield _kafka_count("offset_deletion", "Offsets deleted by request", counts.offsets_deleted)


def _kafka_count(name: str, description: str, value: int) -> Metric:
    return UnknownMetricFamily(f"{COORDINATOR}_{name}_count", f"{description}.", value)


def _classic_group_gauges(groups: Iterable[GroupSnapshot]) -> Iterator[Metric]:
    states = Counter(group.state for group in groups if not group.consumer)  # without groups with epochs
    yield GaugeMetricFamily(f"{MANAGER}_numgroups", "Classic groups.", states.total())
    for state in (*GroupState, DEAD):
        name = f"{MANAGER}_numgroups{state.lower()}"
        yield GaugeMetricFamily(name, f"Groups in state {state}.", states[state])


def _member_count(group: GroupSnapshot) -> int | None:
    """Return the number of members, or None if the view omits some."""
    return len(group.members) if group.are_members_complete else None


def _by_protocol(
    groups: Mapping[str, GroupSnapshot], rocketmq: Mapping[str, RocketMqGroup]
) -> Iterator[Metric]:
    """Yield the number of groups of each protocol, and that of quarantined groups of all protocols."""
    counts = Counter({"classic": 0, CONSUMER: 0, "rocketmq": len(rocketmq)})
    counts.update(group.group_type for group in groups.values())
    yield filled(
        GaugeMetricFamily(f"{COORDINATOR}_group_count", "Groups by protocol.", labels=("protocol",)),
        (((protocol,), number) for protocol, number in sorted(counts.items())),
    )
    reasons = [*(group.quarantined for group in groups.values()), *(g.quarantined for g in rocketmq.values())]
    quarantined = sum(reason is not None for reason in reasons)
    yield GaugeMetricFamily(f"{OWN}_quarantined_groups", "Groups whose deadlines are stopped.", quarantined)


# RocketMQ's groups. No metric counts the held queue locks, because the history has only the locks that were
# taken over from a silent client. Source: BrokerMetricsConstant, BrokerMetricsManager of RocketMQ.

BROKER = "rocketmq"
OWN_ROCKETMQ = "group_coordinator_rocketmq"

CLIENTS_MAX = 20
"""The maximum number of clients (a language and a version) with their own series. Connections name their
language and version freely, so all further ones share the series of _OTHER_CLIENTS.
"""
_OTHER_CLIENTS = ("other", "other")


def rocketmq_gauges(groups: Mapping[str, RocketMqGroup], selection: SeriesSelection) -> Iterator[Metric]:
    """Yield the gauges of RocketMQ's groups."""
    states = Counter(group_state(group) for group in groups.values())
    yield filled(
        GaugeMetricFamily(f"{OWN_ROCKETMQ}_groups", "Groups of RocketMQ by state.", labels=("state",)),
        (((state.lower(),), states[state]) for state in RocketMqGroupState),
    )
    yield group_gauge(
        f"{OWN_ROCKETMQ}_clients", "Client ids of a group.", groups, selection, _client_id_count
    )
    yield group_gauge(
        f"{OWN_ROCKETMQ}_different_subscriptions",
        "Different subscriptions of a group's clients, 0 if all clients subscribe to the same.",
        groups,
        selection,
        _different_subscription_count,
    )
    labels = ("consumergroup", "message_model")
    duplicates = GaugeMetricFamily(
        f"{OWN_ROCKETMQ}_duplicate_client_ids",
        "Client ids of a group that several connections have.",
        labels=labels,
    )
    for group_id, group in selection.own(groups):
        duplicates.add_metric((group_id, _message_model(group)), len(group.duplicate_client_ids))
    other_groups = selection.rest(groups)
    for model in sorted({_message_model(group) for group in other_groups}):
        of_model = (group for group in other_groups if _message_model(group) == model)
        add_others(duplicates, (len(group.duplicate_client_ids) for group in of_model), model)
    yield duplicates
    yield _consumer_connections(groups, selection)
    yield _producer_connections(groups)


def _client_id_count(group: RocketMqGroup) -> int:
    return len({consumer.client_id for consumer in group.consumers})


def _different_subscription_count(group: RocketMqGroup) -> int:
    return len({tuple(subscriptions) for subscriptions in group.different_subscriptions.values()})


def _message_model(group: RocketMqGroup) -> str:
    """Return the label of the group's message model, "" if it is unknown."""
    return "" if group.message_model is None else group.message_model.lower()


def _consumer_connections(groups: Mapping[str, RocketMqGroup], selection: SeriesSelection) -> Metric:
    labels = ("consumer_group", "language", "version", "consume_mode")
    family = filled(
        GaugeMetricFamily(f"{BROKER}_consumer_connections", "Connections that consume.", labels=labels),
        (
            ((group_id, *client, consume_mode(group)), number)
            for group_id, group in selection.own(groups)
            for client, number in _by_client(group.consumers)
        ),
    )
    # The series of the other groups has no language, version or consume mode.
    return add_others(family, (len(group.consumers) for group in selection.rest(groups)), "", "", "")


def _producer_connections(groups: Mapping[str, RocketMqGroup]) -> Metric:
    labels = ("language", "version")
    return filled(
        GaugeMetricFamily(f"{BROKER}_producer_connections", "Connections that produce.", labels=labels),
        _by_client(producer for group in groups.values() for producer in group.producers),
    )


def _by_client(connections: Iterable[ConnectionSnapshot]) -> list[tuple[tuple[str, str], int]]:
    """Return the numbers of connections by language and version.

    Clients beyond the CLIENTS_MAX most frequent ones, and those with too long names, are counted together.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for connection in connections:
        client = connection.language.lower(), str(connection.client_version)
        counts[client if fits(*client) else _OTHER_CLIENTS] += 1
    by_frequency = sorted(counts, key=lambda client: (-counts[client], client))
    bounded_counts: Counter[tuple[str, str]] = Counter()
    for position, client in enumerate(by_frequency):
        bounded_counts[client if position < CLIENTS_MAX else _OTHER_CLIENTS] += counts[client]
    return sorted(bounded_counts.items())
