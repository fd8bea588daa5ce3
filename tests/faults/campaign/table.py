"""The tables of docs/faults.md."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.campaigns.fault import FaultOutcome
from tests.campaigns.results import markdown, median_and_most
from tests.faults.campaign.judge.verdicts import Wrong
from tests.faults.campaign.kinds.all import KINDS
from tests.faults.campaign.stage import IDENTICAL, FaultResult, FaultStruck

DOCUMENT = Path("docs/faults.md")
_HEAD = ("fault", "times", "in flight", *(wrong.value for wrong in Wrong), "refused clearly", "recovery (s)")
_LOSSES_HEAD = ("fault", "times", "last acknowledgement after the loss (s)", "end after the loss (s)")


def table(results: Sequence[FaultResult]) -> str:
    """The table of all campaigns, and the seeds below it."""
    struck: dict[str, list[FaultStruck]] = defaultdict(list)
    wrongs: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for one in result.struck:
            struck[one.fault].append(one)
            struck["all"].append(one)
        for fault, counts in result.wrongs.items():
            wrongs[fault].update(counts)
            wrongs["all"].update(counts)
    names = [name for name in (*KINDS, "none") if struck[name] or wrongs[name]]
    rows = [_row(name, struck[name], wrongs[name]) for name in (*names, "all")]
    runs = ", ".join(f"{r.seed} ({len(r.struck)} faults, {r.seconds / 60:.0f} min)" for r in results)
    failures = "".join(f"\n\nSeed {r.seed} ended early: {r.failure}" for r in results if r.failure)
    requests = sum(result.requests for result in results)
    early = sum(result.early for result in results)
    replayed = [result.replay for result in results if result.replay]
    again = f"{replayed.count(IDENTICAL)} of {len(replayed)} replays were identical"
    judged = f"{requests:,} requests were judged, {early:,} with an early answer"
    return f"{markdown(_HEAD, rows)}\n\n{_losses(struck)}Seeds: {runs}. {judged}; {again}.{failures}"


def _losses(struck: Mapping[str, Sequence[FaultStruck]]) -> str:
    """The table of what was measured of coordinators that lost requests, "" if there was none."""
    measured = {
        name: [one for one in struck.get(name, ()) if one.silence_s is not None] for name in (*KINDS, "all")
    }
    rows = [_loss_row(name, of_kind) for name, of_kind in measured.items() if of_kind]
    return f"{markdown(_LOSSES_HEAD, rows)}\n\n" if rows else ""


def _loss_row(name: str, struck: Sequence[FaultStruck]) -> tuple[str, ...]:
    silences = [one.silence_s for one in struck if one.silence_s is not None]
    ends = [one.end_s for one in struck if one.end_s is not None]
    return (name, str(len(struck)), median_and_most(silences, 2), median_and_most(ends))


def _row(name: str, struck: Sequence[FaultStruck], wrongs: Counter[str]) -> tuple[str, ...]:
    recovery = median_and_most([one.recovery_s for one in struck])
    refused = sum(one.outcome == FaultOutcome.REFUSED for one in struck)
    in_flight = f"{sum(one.in_flight for one in struck):,}"
    counts = [str(wrongs[wrong.value]) for wrong in Wrong]
    return (name, str(len(struck)), in_flight, *counts, str(refused), recovery)
