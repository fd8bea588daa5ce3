"""Prometheus metrics of a gateway. All names begin with a prefix, `group_coordinator_gateway` for the gateway
of Kafka.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

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
        """Return a metric of prometheus_client with these values."""
        family = self._families[name]
        full_name, labels = f"{self._prefix}_{name}", family.labels
        if family.kind == "histogram":
            histogram = HistogramMetricFamily(full_name, family.meaning, labels=labels)
            for label_values, (*buckets, sum_s) in sorted(values.items()):
                # Prometheus's buckets are cumulative: each includes the values of all buckets below it.
                histogram.add_metric(
                    label_values, list(zip(_BOUNDS, accumulate(buckets), strict=True)), sum_s
                )
            return histogram
        metric_type = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        metric = metric_type(full_name, family.meaning, labels=labels)
        for label_values, (value,) in sorted(values.items()):
            metric.add_metric(label_values, value)
        return metric
