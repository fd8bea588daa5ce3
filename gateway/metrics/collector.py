"""Prometheus metrics of a gateway. All names begin with a prefix: `group_coordinator_gateway` for Kafka's."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.metrics.numbers import BUCKETS_S, FAMILIES, Family, Numbers, Values

PREFIX = "group_coordinator_gateway"
_BOUNDS = [*map(floatToGoString, BUCKETS_S), "+Inf"]


class GatewayCollector(Collector):
    """A collector for prometheus_client.

    Each scrape calls `numbers` on a thread of the HTTP server. If that raises TimeoutError, the scrape has
    only the metrics of other collectors.
    """

    def __init__(
        self,
        numbers: Callable[[], Numbers],
        families: Mapping[str, Family] = FAMILIES,
        prefix: str = PREFIX,
    ) -> None:
        self._numbers = numbers
        self._families = families
        self._prefix = prefix

    def describe(self) -> list[Metric]:
        """Return the metrics without values, so that registration needs no numbers."""
        return [self._metric(name, {}) for name in self._families]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their current values."""
        try:
            numbers = self._numbers()
        except TimeoutError:  # /healthz reports that the event loop is stuck
            return
        for name in self._families:
            yield self._metric(name, numbers.get(name, {}))

    def _metric(self, name: str, values: Values) -> Metric:
        family = self._families[name]
        full, labels = f"{self._prefix}_{name}", family.labels
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
    """Return Prometheus's cumulative buckets: each includes the values of all buckets below it."""
    total, cumulative = 0.0, []
    for bound, number in zip(_BOUNDS, buckets, strict=True):
        total += number
        cumulative.append((bound, total))
    return cumulative
