"""The gauges of RocketMQ's groups.

Connection metrics have the names and labels of RocketMQ 5's broker. Held locks are not on the topics. The
history only has entries for locks that were taken over from a silent client.
Source: BrokerMetricsConstant, BrokerMetricsManager of RocketMQ.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from kafka_why.contract.rocketmq.snapshot import ConnectionSnapshot, GroupSnapshot
from kafka_why.metrics.series import Selection, add_others, filled, fits
from kafka_why.rocketmq_group import GroupState, consume_mode, group_state

BROKER = "rocketmq"
OWN = "group_coordinator_rocketmq"

CLIENTS_MAX = 20
"""Languages with versions, which clients name, that have series of their own. The others are one series."""
_OTHER_CLIENTS = ("other", "other")


def rocketmq_gauges(groups: Mapping[str, GroupSnapshot], selection: Selection) -> Iterator[Metric]:
    """Yield the numbers of groups, clients, connections, and client ids with several connections."""
    states = Counter(group_state(group) for group in groups.values())
    yield filled(
        GaugeMetricFamily(f"{OWN}_groups", "Groups of RocketMQ by state.", labels=("state",)),
        (((state.lower(),), states[state]) for state in GroupState),
    )
    clients = GaugeMetricFamily(f"{OWN}_clients", "Client ids of a group.", labels=("consumergroup",))
    labels = ("consumergroup", "message_model")
    duplicates = GaugeMetricFamily(
        f"{OWN}_duplicate_client_ids", "Client ids of a group that several connections have.", labels=labels
    )
    for group_id, group in selection.own(groups):
        clients.add_metric((group_id,), _client_ids(group))
        duplicates.add_metric((group_id, _model(group)), len(group.duplicate_client_ids))
    rest = selection.rest(groups)
    yield add_others(clients, map(_client_ids, rest))
    for model in sorted({_model(group) for group in rest}):
        add_others(duplicates, (len(g.duplicate_client_ids) for g in rest if _model(g) == model), model)
    yield duplicates
    yield _consumer_connections(groups, selection)
    yield _producer_connections(groups)


def _client_ids(group: GroupSnapshot) -> int:
    return len({consumer.client_id for consumer in group.consumers})


def _model(group: GroupSnapshot) -> str:
    return "" if group.message_model is None else group.message_model.lower()


def _consumer_connections(groups: Mapping[str, GroupSnapshot], selection: Selection) -> Metric:
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


def _producer_connections(groups: Mapping[str, GroupSnapshot]) -> Metric:
    labels = ("language", "version")
    return filled(
        GaugeMetricFamily(f"{BROKER}_producer_connections", "Connections that produce.", labels=labels),
        _by_client(producer for group in groups.values() for producer in group.producers),
    )


def _by_client(connections: Iterable[ConnectionSnapshot]) -> list[tuple[tuple[str, str], int]]:
    """Return the number of connections by language and version, sorted: of the most frequent ones."""
    counts: Counter[tuple[str, str]] = Counter()
    for connection in connections:
        client = connection.language.lower(), str(connection.client_version)
        counts[client if fits(*client) else _OTHER_CLIENTS] += 1
    by_frequency = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))
    shown: Counter[tuple[str, str]] = Counter()
    for position, (client, number) in enumerate(by_frequency):
        shown[client if position < CLIENTS_MAX else _OTHER_CLIENTS] += number
    return sorted(shown.items())
