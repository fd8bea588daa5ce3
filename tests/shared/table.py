"""The table of docs/share-faults.md."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.campaigns.results import markdown, median_and_most
from tests.shared.judge import Wrong
from tests.shared.kinds import KINDS
from tests.shared.stage import ShareResult, ShareStruck

DOCUMENT = Path("docs/share-faults.md")
_HEAD = (
    "fault",
    "coordinator",
    "times",
    *(wrong.value for wrong in Wrong),
    "goes on after (s)",
    "longest pause (s)",
)


def table(results: Sequence[ShareResult]) -> str:
    """A row for each fault and coordinator, and below them what was judged."""
    times: dict[tuple[str, str], list[ShareStruck]] = defaultdict(list)
    wrongs: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in results:
        for struck in result.struck:
            times[struck.fault, result.by].append(struck)
            times["all", result.by].append(struck)
        for fault, counts in result.wrongs.items():
            wrongs[fault, result.by].update(counts)
            wrongs["all", result.by].update(counts)
    sides = sorted({result.by for result in results}, reverse=True)
    rows = [
        _row(fault, by, times[fault, by], wrongs[fault, by])
        for fault in (*KINDS, "none", "all")
        for by in sides
        if times[fault, by] or wrongs[fault, by]
    ]
    return "\n\n".join([markdown(_HEAD, rows, texts=2), *map(_judged, results)])


def _row(fault: str, by: str, struck: Sequence[ShareStruck], wrongs: Counter[str]) -> tuple[str, ...]:
    times = ([it.recovery_s for it in struck], [it.pause_s for it in struck])
    counts = [str(wrongs[wrong.value]) for wrong in Wrong]
    return (fault, by, str(len(struck)), *counts, *map(median_and_most, times))


def _judged(result: ShareResult) -> str:
    done = ", ".join(f"{number:,} {kind}" for kind, number in sorted(result.outcomes.items()))
    failure = f" It ended early: {result.failure}" if result.failure else ""
    return (
        f"Seed {result.seed}, `{result.by}`: {len(result.struck)} faults in {result.seconds / 60:.0f} min, "
        f"{result.records:,} records, {result.deliveries:,} deliveries, acknowledgements {done}; "
        f"{result.states:,} states; {result.stuck} consumers were stuck after a renewal.{failure}"
    )
