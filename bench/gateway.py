"""The coordinator behind the gateway, compared with the broker's own: alternately, with the same client.

Kafka's side does not have the machine to itself either, because Spark and the ticker run all the time.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from bench.apart import apart
from bench.forming import SIZES, forming_figures, measure_forming
from bench.heartbeats import GROUPS, Beats, Plan, heartbeat_figures, measure_heartbeats
from bench.passthrough import Limit, measure_passthrough, passthrough_figures
from bench.report import Figure, Table, say
from bench.sides import Sides, running
from gateway.upstream.connections import Address

DEFAULT_DELAY_MS = 3_000  # Kafka's


@dataclass
class Gateway:
    """Measurements of both sides, which start without an initial delay except to measure that delay."""

    quick: bool
    beats_of: dict[int, Sides[Beats]] = field(default_factory=dict)
    """Heartbeat measurements by the number of groups."""

    def measure(self, folder: Path, parts: frozenset[str]) -> Table:
        """Run the named parts in the order of PARTS."""
        wanted = [part for name, part in PARTS.items() if name in parts]
        figures: list[Figure] = []
        say("starting both coordinators")
        with running(folder / "at-once", initial_delay_ms=0) as sides:
            for part in wanted:
                figures += _printed(part(self, sides))
        if "forming" in parts:
            say(f"starting both coordinators, with an initial delay of {DEFAULT_DELAY_MS} ms")
            with running(folder / "delayed", DEFAULT_DELAY_MS) as sides:
                figures += _printed(self.forming(sides, DEFAULT_DELAY_MS))
        return Table("through the gateway", "Kafka's own", figures)

    def heartbeats(self, sides: Sides[Address]) -> Iterator[Figure]:
        """See `bench.heartbeats`."""
        for groups in GROUPS:
            say(f"  heartbeats, groups: {groups:,}")
            plan = Plan(turns=2, singles=15, load_s=4.0) if self.quick else Plan(5, singles=40, load_s=10.0)
            beats = self.beats_of[groups] = apart(measure_heartbeats, sides, groups, plan)
            yield from heartbeat_figures(groups, beats)

    def forming(self, sides: Sides[Address], initial_delay_ms: int = 0) -> Iterator[Figure]:
        """See `bench.forming`."""
        for members in SIZES:
            say(f"  a group of {members} members forms")
            formed = apart(measure_forming, sides, members, turns=1 if self.quick else 5)
            yield from forming_figures(members, initial_delay_ms, formed)

    def passthrough(self, sides: Sides[Address]) -> Iterator[Figure]:
        """See `bench.passthrough`."""
        say("  records pass through")
        passed = apart(measure_passthrough, sides, turns=1 if self.quick else 5, limit=Limit())
        yield from passthrough_figures(passed)


PARTS: Mapping[str, Callable[[Gateway, Sides[Address]], Iterator[Figure]]] = MappingProxyType(
    {"heartbeats": Gateway.heartbeats, "forming": Gateway.forming, "passthrough": Gateway.passthrough}
)


def _printed(figures: Iterator[Figure]) -> Iterator[Figure]:
    """Print each figure as soon as it is measured: the run is long, and a later part may fail."""
    for figure in figures:
        say(figure.text())
        yield figure
