"""The counts of a load client."""

from collections import Counter
from dataclasses import dataclass, field

from bench.stats import percentile


class WrongAnswer(RuntimeError):
    """A response is not the one being measured, so the figures would be meaningless."""


@dataclass
class LoadResult:
    """The responses to one load. `errors` counts the responses with an error by its code. `due_s` is when
    each request was due, in seconds from the begin of the load, and `latency_s` how long after that its
    response came, both in the order of the responses. `took_s` is from the first request to the last
    response, `client_cores` the processor time of the load client divided by that.
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
