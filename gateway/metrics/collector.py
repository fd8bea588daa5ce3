"""A gateway's numbers as Prometheus metrics. All names begin with group_coordinator_gateway_."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.metrics.counts import BUCKETS_S
from gateway.metrics.numbers import FAMILIES, Family, Numbers, Values

PREFIX = "group_coordinator_gateway"
_BOUNDS = [*map(floatToGoString, BUCKETS_S), "+Inf"]


class GatewayCollector(Collector):
    """`numbers` returns the numbers at each scrape. It is called by threads of the HTTP server. If it raises
    TimeoutError, the scrape has the other metrics only.
    """

    def __init__(self, numbers: Callable[[], Numbers]) -> None:
        self._numbers = numbers

    def describe(self) -> list[Metric]:
        """The metrics without values, so that a registration asks no process for its numbers."""
        return [_metric(name, family, {}) for name, family in FAMILIES.items()]

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        try:
            numbers = self._numbers()
        except TimeoutError:  # /healthz says that the event loop is stuck
            return
        for name, family in FAMILIES.items():
            yield _metric(name, family, numbers.get(name, {}))


def _metric(name: str, family: Family, values: Values) -> Metric:
    full, labels = f"{PREFIX}_{name}", family.labels
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(full, family.meaning, labels=labels)
        for label_values, (*buckets, total) in sorted(values.items()):
            histogram.add_metric(label_values, _cumulative(buckets), total)
        return histogram
    metric_type = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = metric_type(full, family.meaning, labels=labels)
    for label_values, (value,) in sorted(values.items()):
        metric.add_metric(label_values, value)
    return metric


def _cumulative(buckets: list[float]) -> list[tuple[str, float]]:
    """Prometheus' buckets: each has the values of all before it."""
    total, cumulative = 0.0, []
    for bound, number in zip(_BOUNDS, buckets, strict=True):
        total += number
        cumulative.append((bound, total))
    return cumulative
