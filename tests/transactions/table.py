"""The table of docs/transactions.md."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.campaigns.results import markdown, median_and_most
from tests.transactions.checker import Wrong
from tests.transactions.stage import TransactionResult

DOCUMENT = Path("docs/transactions.md")
_HEAD = (
    "application",
    "coordinator",
    "faults",
    "records",
    *(wrong.value for wrong in Wrong),
    "recovery (s)",
    "stable after (s)",
)


def table(results: Sequence[TransactionResult]) -> str:
    """A row for each application and coordinator, and below them the seeds and the faults."""
    by_row: dict[tuple[str, str], list[TransactionResult]] = defaultdict(list)
    for result in results:
        for name in result.wrongs or ["-"]:
            by_row[name, result.system].append(result)
    rows = [_row(name, system, of_row) for (name, system), of_row in by_row.items()]
    seeds = ", ".join(
        f"{it.seed} ({'+'.join(it.wrongs)}, {it.system}: {len(it.struck)} faults, {it.seconds / 60:.0f} min)"
        for it in results
    )
    failures = "".join(f"\n\nSeed {it.seed} ended early: {it.failure}" for it in results if it.failure)
    return f"{markdown(_HEAD, rows, texts=2)}\n\nSeeds: {seeds}.\n\n{_faults(results)}{failures}"


def _row(name: str, system: str, results: Sequence[TransactionResult]) -> tuple[str, ...]:
    times = [struck.recovery_s for result in results for struck in result.struck]
    wrongs = [
        str(sum(result.wrongs.get(name, {}).get(wrong.value, 0) for result in results)) for wrong in Wrong
    ]
    return (
        name,
        system,
        str(len(times)),
        f"{sum(result.records.get(name, 0) for result in results):,}",
        *wrongs,
        median_and_most(times),
        f"{max(result.stable_s for result in results):.1f}",
    )


def _faults(results: Sequence[TransactionResult]) -> str:
    """How often each fault struck, and how long it took until each application went on."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for result in results:
        for struck in result.struck:
            times[struck.fault, result.system].append(struck.recovery_s)
    rows = [
        (fault, system, str(len(of_fault)), median_and_most(of_fault))
        for (fault, system), of_fault in sorted(times.items())
    ]
    return markdown(("fault", "coordinator", "times", "recovery (s)"), rows, texts=2)
