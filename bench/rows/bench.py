"""The inputs of a row: the systems, the number of repeats, and a process for its load."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from bench.apart import apart
from bench.load.load_result import LoadResult
from bench.report import Figure, Plot, say
from bench.systems import Running

P = ParamSpec("P")
T = TypeVar("T")

AT_ONCE_MS, KAFKAS_DELAY_MS = 0, 3_000
"""group.initial.rebalance.delay.ms of the systems: none, and Kafka's default."""


@dataclass(frozen=True)
class Plan:
    """The duration of measuring. Each repeat is a turn of all systems that are compared."""

    repeats: int
    load_s: float
    singles: int
    warm_up_s: float
    is_quick: bool

    @classmethod
    def of(cls, *, quick: bool) -> "Plan":
        if quick:
            return cls(repeats=2, load_s=3.0, singles=15, warm_up_s=10.0, is_quick=True)
        return cls(repeats=4, load_s=4.0, singles=40, warm_up_s=45.0, is_quick=False)


@dataclass
class Found:
    """A row's results, see `bench.report.Measured`."""

    figures: list[Figure] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    table: list[list[str]] = field(default_factory=list)


@dataclass
class Bench:
    """Starts the systems that a row needs. Rows with the same initial delay share them."""

    folder: Path
    plan: Plan
    packed: bool
    _running: dict[int, Running] = field(default_factory=dict)
    _starts: int = 0

    def systems(self, initial_delay_ms: int) -> Running:
        """Yield the systems with this delay. Those with another one end, because the machine is small."""
        if initial_delay_ms not in self._running:
            self.close()
            say(f"starting broker, coordinator and gateway, initial delay {initial_delay_ms} ms")
            self._starts += 1
            folder = self.folder / f"systems-{self._starts}"
            self._running[initial_delay_ms] = Running(folder, initial_delay_ms, packed=self.packed)
        return self._running[initial_delay_ms]

    def new_systems(self, initial_delay_ms: int) -> Running:
        """Return the same, but without any groups yet."""
        self.close()
        return self.systems(initial_delay_ms)

    def load(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a load in a process of its own, and return its result."""
        return apart(function, *args, **kwargs)

    def close(self) -> None:
        """End all systems."""
        while self._running:
            self._running.popitem()[1].close()


def client_figure(
    what: str, ours: Sequence[LoadResult], beside: Sequence[LoadResult], beside_is: str
) -> Figure:
    """Return the processor time of the load client a second, at each side."""
    cores, besides = ([outcome.client_cores for outcome in side] for side in (ours, beside))
    return Figure(f"{what}: the load client's part", "cores", cores, besides, beside_is)


def errors_figure(what: str, errors: Sequence[int]) -> Figure:
    """Return the number of responses with an error, over all repeats."""
    return Figure(f"{what}: responses with an error", "", [float(sum(errors))])
