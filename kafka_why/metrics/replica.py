"""Prometheus metric families of the replica."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kafka_why.contract.service.replica import PHASES, ReplicaState
from kafka_why.metrics.collector import OWN, CheapCollector


class ReplicaCollector(CheapCollector):
    """What the replica does, as the service sees it. Everything is 0 without one."""

    def __init__(self, state: Callable[[], ReplicaState]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        phases = GaugeMetricFamily(
            f"{OWN}_replica_phase", "1 for the replica's current phase.", labels=("phase",)
        )
        for phase in PHASES:
            phases.add_metric((phase,), int(phase == state.phase))
        yield phases
        for name, meaning, count in (
            ("answers", "Early answers appended.", state.answers),
            ("compared", "Early answers compared with the query's.", state.compared),
            ("differences", "Early answers that were not the query's.", state.differences),
            ("seedings", "Replicas started from the query's state.", state.seedings),
        ):
            yield CounterMetricFamily(f"{OWN}_replica_{name}", meaning, count)
        for name, meaning, value in (
            ("lag_records", "Records of the requests topic that it has not applied.", state.lag_records),
            ("lag_seconds", "Age of the last record applied, 0 if it was the newest.", state.lag_ms / 1000),
            ("lead_seconds", "Seconds since the query last committed a batch.", state.lead_s),
            ("lead_bytes", "Size of the early answers that wait for the query's.", state.lead_bytes),
            ("groups", "Groups in its memory.", state.groups),
        ):
            yield GaugeMetricFamily(f"{OWN}_replica_{name}", meaning, value)
