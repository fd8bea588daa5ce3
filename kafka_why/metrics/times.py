"""Durations as a histogram."""

from collections import Counter
from dataclasses import dataclass, field

from prometheus_client.core import HistogramMetricFamily, Metric

# From an assignment without moves to members that take the default max.poll.interval.ms, in seconds.
BOUNDS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(slots=True)
class Times:
    """Durations since the start of this process. `within` counts those within a bound and no smaller one."""

    whole_ms: int = 0
    within: Counter[float] = field(default_factory=Counter)

    def add(self, took_ms: int) -> None:
        self.whole_ms += took_ms
        self.within[next((b for b in BOUNDS_S if took_ms <= b * 1000), float("inf"))] += 1

    def metric(self, name: str, meaning: str) -> Metric:
        """Return the histogram, in seconds."""
        buckets: list[tuple[str, float]] = []
        for bound in (*BOUNDS_S, float("inf")):
            below = buckets[-1][1] if buckets else 0
            buckets.append(("+Inf" if bound == float("inf") else str(bound), below + self.within[bound]))
        family = HistogramMetricFamily(name, meaning)
        family.add_metric((), buckets, self.whole_ms / 1000)
        return family
