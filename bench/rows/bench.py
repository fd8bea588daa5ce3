"""The inputs of a row: the systems, the number of repeats, and a process for its load."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from bench.load.load_result import LoadResult
from bench.report import Figure, Plot, say
from bench.separate_process import call_in_process
from bench.systems import SystemProcesses

P = ParamSpec("P")
T = TypeVar("T")

NO_DELAY_MS, DEFAULT_DELAY_MS = 0, 3_000
"""Values of group.initial.rebalance.delay.ms: no delay, and Kafka's default."""


@dataclass(frozen=True)
class Plan:
    """The durations and repeats of measurements. Each repeat is one turn of all systems that are compared."""

    repeats: int
    load_s: float  # the duration of a load in one turn
    single_requests: int  # of one turn, sent one at a time
    warm_up_s: float  # the longest warm-up
    is_quick: bool

    @classmethod
    def of(cls, *, quick: bool) -> "Plan":
        if quick:
            return cls(repeats=2, load_s=3.0, single_requests=15, warm_up_s=10.0, is_quick=True)
        return cls(repeats=4, load_s=4.0, single_requests=40, warm_up_s=45.0, is_quick=False)


@dataclass
class RowResult:
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
    packed: bool  # loads on the topics write several requests in one record
    _running: dict[int, SystemProcesses] = field(default_factory=dict)  # at most one, by initial delay
    _starts: int = 0

    def systems(self, initial_delay_ms: int) -> SystemProcesses:
        """Return the systems with this delay, and start them if needed.

        Systems with another delay are ended first, because the machine is small.
        """
        if initial_delay_ms not in self._running:
            self.close()
            say(f"starting broker, coordinator and gateway, initial delay {initial_delay_ms} ms")
            self._starts += 1
            folder = self.folder / f"systems-{self._starts}"
            self._running[initial_delay_ms] = SystemProcesses(folder, initial_delay_ms, packed=self.packed)
        return self._running[initial_delay_ms]

    def new_systems(self, initial_delay_ms: int) -> SystemProcesses:
        """Start and return new systems with this delay, which have no groups."""
        self.close()
        return self.systems(initial_delay_ms)

    def call_in_process(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a load in a process of its own, and return its result."""
        return call_in_process(function, *args, **kwargs)

    def close(self) -> None:
        """End all systems."""
        while self._running:
            self._running.popitem()[1].close()


def client_figure(
    what: str, ours: Sequence[LoadResult], reference: Sequence[LoadResult], reference_name: str
) -> Figure:
    """Return the cores that the load client used, for each side."""
    cores, reference_cores = ([outcome.client_cores for outcome in side] for side in (ours, reference))
    return Figure(f"{what}: the load client's part", "cores", cores, reference_cores, reference_name)


def errors_figure(what: str, errors: Sequence[int]) -> Figure:
    """Return the number of responses with an error, over all repeats."""
    return Figure(f"{what}: responses with an error", "", [float(sum(errors))])
