"""The outcome of a load: counts and times of its responses."""

from collections import Counter
from dataclasses import dataclass, field

from bench.stats import percentile


class WrongAnswer(RuntimeError):
    """A response is not the one being measured, so the figures would be meaningless."""


@dataclass
class LoadResult:
    """The responses to one load. `errors` counts them by error code.

    `due_s` has for each response when its request was due, in seconds since the start of the load.
    `latency_s` has the seconds from then until the response. `took_s` is the time from the first request to
    the last response, and `client_cores` the mean number of cores that the client used.
    """

    errors: Counter[int] = field(default_factory=Counter)
    due_s: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)
    took_s: float = 0.0
    client_cores: float = 0.0

    @property
    def responses(self) -> int:
        return len(self.latency_s)

    @property
    def rate(self) -> float:
        """Responses without an error a second."""
        return (self.responses - self.errors.total()) / self.took_s if self.took_s else 0.0

    def latency_ms(self, q: float) -> float:
        """Return the latency at quantile q."""
        return percentile(self.latency_s, q) * 1e3
