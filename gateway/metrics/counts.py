"""Counters of one gateway, written on the event loop's thread. They are plain numbers, because a request
takes some tens of microseconds, of which a counter of prometheus_client would take one.
"""

from bisect import bisect_left
from collections import Counter, defaultdict

BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histograms, in seconds. A last bucket without a bound follows."""

TOO_MANY, TOO_MANY_OF_IP = "max.connections", "max.connections.per.ip"
TOO_OFTEN_OF_IP = "connection_creation_rate"
DRAINING = "draining"
REASONS = (TOO_MANY, TOO_MANY_OF_IP, TOO_OFTEN_OF_IP, DRAINING)
"""The reasons to refuse a connection: the exceeded limit, or the gateway's end."""


class DurationHistogram:
    """A histogram: the number of values in each bucket, and the sum of all values in seconds."""

    __slots__ = ("buckets", "sum_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a value. A value on a bound belongs to the bucket below the bound, as in Prometheus."""
        self.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class GatewayCounts:
    """Counts since the start. `refused` is by reason, one of REASONS. `answered` are durations of answered
    requests by api key. `errors` are responses by api key and error code, other than 0. `items` are the
    groups in requests about several groups, by api key. `throttled` is by api key, and `throttled_s` is the
    total time for which requests were throttled. `held` is the number of steps of the event loop that took
    too long, `held_s` their total time (`loop_watch`). `coordinator` are durations of the coordinator's
    responses by the name of the request, without JoinGroup and SyncGroup, which it may park.
    """

    def __init__(self) -> None:
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()
        self.received_bytes = 0
        self.sent_bytes = 0
        self.answered: defaultdict[int, DurationHistogram] = defaultdict(DurationHistogram)
        self.errors: Counter[tuple[int, int]] = Counter()
        self.items: Counter[int] = Counter()
        self.throttled: Counter[int] = Counter()
        self.throttled_s = 0.0
        self.held = 0
        self.held_s = 0.0
        self.coordinator: defaultdict[str, DurationHistogram] = defaultdict(DurationHistogram)
