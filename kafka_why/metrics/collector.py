"""Prometheus metric families from numbers, under the names that Kafka's operators know.

Kafka's own metrics are named as the JMX exporter writes them in lower case: `kafka.coordinator.group:type=
GroupMetadataManager,name=NumGroups` is kafka_coordinator_group_groupmetadatamanager_numgroups. The JMX
exporter leaves Kafka's counts untyped, and so does this module; PromQL computes the rates. Names and labels
that begin with kafka_consumergroup_ are those of danielqsj/kafka_exporter. Names that begin with rocketmq_
are those of RocketMQ 5's broker. Metrics that none of them has begin with group_coordinator_.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

from kafka_why.contract.kafka.history import CONSUMER, DEAD, GroupState
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.rocketmq.history import ConnectionSnapshot
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqGroup
from kafka_why.metrics.consumer_groups import consumer_group_gauges, epoch_counts
from kafka_why.metrics.metrics_state import MetricsState, TopicCounts
from kafka_why.metrics.series import (
    EXPORTER,
    OWN,
    SeriesSelection,
    add_others,
    filled,
    fits,
    lag_gauges,
    without_series,
)
from kafka_why.rocketmq_group import RocketMqGroupState, consume_mode, group_state

MANAGER = "kafka_coordinator_group_groupmetadatamanager"
COORDINATOR = "kafka_server_group_coordinator_metrics"


class MetricsStateCollector(Collector):
    """A collector of the metrics of the topics' content. `with_members` adds series of single members.

    An observer's topics have no responses, so offsets that were committed, expired or deleted are not
    counted.
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
        yield _kafkas_count("group_completed_rebalance", "Completed rebalances", counts.classic_rebalances)
        yield from _own_counts(counts, numbers.rebalances)
        yield from epoch_counts(counts.of_epochs)
        if numbers.groups is None or numbers.rocketmq_groups is None or numbers.lags is None:
            return
        yield from _group_gauges([group for group in numbers.groups.values() if not group.consumer])
        selection = numbers.selection
        yield from consumer_group_gauges(numbers.groups, selection)
        yield _members(numbers.groups, selection)
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
    yield _kafkas_count("offset_commit", "Offsets committed", counts.offsets_committed)
    yield _kafkas_count("offset_expiration", "Offsets expired", counts.offsets_expired)
    yield _kafkas_count("offset_deletion", "Offsets deleted by request", counts.offsets_deleted)


def _kafkas_count(name: str, meaning: str, value: int) -> Metric:
    return UnknownMetricFamily(f"{COORDINATOR}_{name}_count", f"{meaning}.", value)


def _own_counts(counts: TopicCounts, rebalances: Mapping[str, int]) -> Iterator[Metric]:
    for name, meaning, labels, found in (
        ("history_entries", "Entries of the events topic.", ("protocol", "type"), counts.entries),
        ("dead_letters", "Records of the dead-letter topic.", ("reason",), _by_one(counts.dead_letters)),
        ("rebalances", "Completed rebalances of a group.", ("consumergroup",), _by_one(rebalances)),
        (
            "responses",
            "Responses by type of request and error code.",
            ("type", "error_code"),
            counts.answers,
        ),
        ("rocketmq_pushes", "Messages pushed to RocketMQ's clients.", ("type",), _by_one(counts.pushes)),
    ):
        yield filled(CounterMetricFamily(f"{OWN}_{name}", meaning, labels=labels), sorted(found.items()))
    for name, meaning, count in (
        ("history_duplicates", "History entries that were read more than once.", counts.duplicates),
        (
            "rocketmq_expired_connections",
            "Consumers' connections that a scan removed because they were silent.",
            counts.expired_connections,
        ),
    ):
        yield CounterMetricFamily(f"{OWN}_{name}", meaning, count)


def _by_one(counts: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(value,): count for value, count in counts.items()}


def _group_gauges(groups: Sequence[GroupSnapshot]) -> Iterator[Metric]:
    states = Counter(group.state for group in groups)
    yield GaugeMetricFamily(f"{MANAGER}_numgroups", "Classic groups.", len(groups))
    for state in (*GroupState, DEAD):
        name = f"{MANAGER}_numgroups{state.lower()}"
        yield GaugeMetricFamily(name, f"Groups in state {state}.", states[state])


def _members(groups: Mapping[str, GroupSnapshot], selection: SeriesSelection) -> Metric:
    members = GaugeMetricFamily(f"{EXPORTER}_members", "Members of a group.", labels=("consumergroup",))
    own, rest = selection.own(groups), selection.rest(groups)
    filled(
        members, (((group_id,), len(group.members)) for group_id, group in own if group.are_members_complete)
    )
    return add_others(members, (len(group.members) for group in rest if group.are_members_complete))


def _by_protocol(
    groups: Mapping[str, GroupSnapshot], rocketmq: Mapping[str, RocketMqGroup]
) -> Iterator[Metric]:
    types = Counter(group.group_type for group in groups.values())
    kafkas = ("classic", CONSUMER, *sorted(types.keys() - {"classic", CONSUMER}))
    yield filled(
        GaugeMetricFamily(f"{COORDINATOR}_group_count", "Groups by protocol.", labels=("protocol",)),
        [*(((type_,), types[type_]) for type_ in kafkas), (("rocketmq",), len(rocketmq))],
    )
    reasons = [*(group.quarantined for group in groups.values()), *(g.quarantined for g in rocketmq.values())]
    quarantined = sum(reason is not None for reason in reasons)
    yield GaugeMetricFamily(f"{OWN}_quarantined_groups", "Groups whose deadlines are stopped.", quarantined)


# RocketMQ's groups. Held locks are not on the topics: the history has only those that were taken over from a
# silent client. Source: BrokerMetricsConstant, BrokerMetricsManager of RocketMQ.

BROKER = "rocketmq"
OWN_ROCKETMQ = "group_coordinator_rocketmq"

CLIENTS_MAX = 20
"""Languages with versions, which clients name, that have series of their own. The others are one series."""
_OTHER_CLIENTS = ("other", "other")


def rocketmq_gauges(groups: Mapping[str, RocketMqGroup], selection: SeriesSelection) -> Iterator[Metric]:
    """Yield the gauges of RocketMQ's groups."""
    states = Counter(group_state(group) for group in groups.values())
    yield filled(
        GaugeMetricFamily(f"{OWN_ROCKETMQ}_groups", "Groups of RocketMQ by state.", labels=("state",)),
        (((state.lower(),), states[state]) for state in RocketMqGroupState),
    )
    clients = GaugeMetricFamily(
        f"{OWN_ROCKETMQ}_clients", "Client ids of a group.", labels=("consumergroup",)
    )
    labels = ("consumergroup", "message_model")
    duplicates = GaugeMetricFamily(
        f"{OWN_ROCKETMQ}_duplicate_client_ids",
        "Client ids of a group that several connections have.",
        labels=labels,
    )
    differing = GaugeMetricFamily(
        f"{OWN_ROCKETMQ}_different_subscriptions",
        "Different subscriptions of a group's clients, 0 if all clients subscribe to the same.",
        labels=("consumergroup",),
    )
    for group_id, group in selection.own(groups):
        clients.add_metric((group_id,), _client_ids(group))
        differing.add_metric((group_id,), _subscriptions(group))
        duplicates.add_metric((group_id, _model(group)), len(group.duplicate_client_ids))
    rest = selection.rest(groups)
    yield add_others(clients, map(_client_ids, rest))
    yield add_others(differing, map(_subscriptions, rest))
    for model in sorted({_model(group) for group in rest}):
        add_others(duplicates, (len(g.duplicate_client_ids) for g in rest if _model(g) == model), model)
    yield duplicates
    yield _consumer_connections(groups, selection)
    yield _producer_connections(groups)


def _client_ids(group: RocketMqGroup) -> int:
    return len({consumer.client_id for consumer in group.consumers})


def _subscriptions(group: RocketMqGroup) -> int:
    return len({tuple(own) for own in group.different_subscriptions.values()})


def _model(group: RocketMqGroup) -> str:
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
    return add_others(family, (len(group.consumers) for group in selection.rest(groups)), "", "", "")


def _producer_connections(groups: Mapping[str, RocketMqGroup]) -> Metric:
    labels = ("language", "version")
    return filled(
        GaugeMetricFamily(f"{BROKER}_producer_connections", "Connections that produce.", labels=labels),
        _by_client(producer for group in groups.values() for producer in group.producers),
    )


def _by_client(connections: Iterable[ConnectionSnapshot]) -> list[tuple[tuple[str, str], int]]:
    """Return the numbers of connections by language and version, the rarest of them together."""
    counts: Counter[tuple[str, str]] = Counter()
    for connection in connections:
        client = connection.language.lower(), str(connection.client_version)
        counts[client if fits(*client) else _OTHER_CLIENTS] += 1
    by_frequency = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))
    shown: Counter[tuple[str, str]] = Counter()
    for position, (client, number) in enumerate(by_frequency):
        shown[client if position < CLIENTS_MAX else _OTHER_CLIENTS] += number
    return sorted(shown.items())
