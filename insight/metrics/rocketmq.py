"""The gauges of RocketMQ's groups.

Connection metrics have the names and labels of RocketMQ 5's broker. Held locks are not on the topics. The
history only has entries for locks that were taken over from a silent client.
Source: BrokerMetricsConstant, BrokerMetricsManager of RocketMQ.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from insight.rocketmq_group import GroupState, consume_mode, group_state
from state.rocketmq.snapshot import GroupSnapshot

BROKER = "rocketmq"
OWN = "group_coordinator_rocketmq"


def rocketmq_gauges(groups: Mapping[str, GroupSnapshot]) -> Iterator[Metric]:
    """Yield the numbers of groups, clients, connections, and client ids with several connections."""
    states = Counter(group_state(group) for group in groups.values())
    by_state = GaugeMetricFamily(f"{OWN}_groups", "Groups of RocketMQ by state.", labels=("state",))
    for state in GroupState:
        by_state.add_metric((state.lower(),), states[state])
    yield by_state
    clients = GaugeMetricFamily(f"{OWN}_clients", "Client ids of a group.", labels=("consumergroup",))
    labels = ("consumergroup", "message_model")
    duplicates = GaugeMetricFamily(
        f"{OWN}_duplicate_client_ids", "Client ids of a group that several connections have.", labels=labels
    )
    for group_id, group in sorted(groups.items()):
        clients.add_metric((group_id,), len({consumer.client_id for consumer in group.consumers}))
        model = "" if group.message_model is None else group.message_model.lower()
        duplicates.add_metric((group_id, model), len(group.duplicate_client_ids))
    yield clients
    yield duplicates
    yield _consumer_connections(groups)
    yield _producer_connections(groups)


def _consumer_connections(groups: Mapping[str, GroupSnapshot]) -> Metric:
    labels = ("consumer_group", "language", "version", "consume_mode")
    family = GaugeMetricFamily(f"{BROKER}_consumer_connections", "Connections that consume.", labels=labels)
    for group_id, group in sorted(groups.items()):
        counts = Counter((c.language.lower(), str(c.client_version)) for c in group.consumers)
        for client, number in sorted(counts.items()):
            family.add_metric((group_id, *client, consume_mode(group)), number)
    return family


def _producer_connections(groups: Mapping[str, GroupSnapshot]) -> Metric:
    labels = ("language", "version")
    family = GaugeMetricFamily(f"{BROKER}_producer_connections", "Connections that produce.", labels=labels)
    producers = [producer for group in groups.values() for producer in group.producers]
    counts = Counter((p.language.lower(), str(p.client_version)) for p in producers)
    for client, number in sorted(counts.items()):
        family.add_metric(client, number)
    return family
