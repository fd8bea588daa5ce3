"""The table of docs/faults.md."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from tests.faults.campaign.judge.verdicts import Wrong
from tests.faults.campaign.kinds.all import KINDS
from tests.faults.campaign.running import IDENTICAL, Result, Struck

DOCUMENT = Path("docs/faults.md")
_HEAD = ("fault", "times", "in flight", *(wrong.value for wrong in Wrong), "refused clearly", "recovery (s)")

_LOSSES_HEAD = ("fault", "times", "last acknowledgement after the loss (s)", "end after the loss (s)")


def table(results: Sequence[Result]) -> str:
    """The table of all campaigns, and the seeds below it."""
    struck: dict[str, list[Struck]] = defaultdict(list)
    wrongs: dict[str, dict[str, int]] = defaultdict(lambda: {wrong.value: 0 for wrong in Wrong})
    for result in results:
        for one in result.struck:
            struck[one.fault].append(one)
        for fault, counts in result.wrongs.items():
            for wrong, count in counts.items():
                wrongs[fault][wrong] += count
    rows = [_row(name, struck[name], wrongs[name]) for name in KINDS if struck[name]]
    if "none" in wrongs:
        rows.append(_row("none", [], wrongs["none"]))
    everything = [one for of_kind in struck.values() for one in of_kind]
    sums = {wrong.value: sum(counts[wrong.value] for counts in wrongs.values()) for wrong in Wrong}
    rows.append(_row("all", everything, sums))
    lines = [_HEAD, ("---", *["---:"] * (len(_HEAD) - 1)), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    runs = ", ".join(f"{r.seed} ({len(r.struck)} faults, {r.seconds / 60:.0f} min)" for r in results)
    failures = "".join(f"\n\nSeed {r.seed} ended early: {r.failure}" for r in results if r.failure)
    requests = sum(result.requests for result in results)
    early = sum(result.early for result in results)
    replayed = [result.replay for result in results if result.replay]
    again = f"{replayed.count(IDENTICAL)} of {len(replayed)} replays were identical"
    judged = f"{requests:,} requests were judged, {early:,} with an early answer"
    losses = _losses(struck)
    return f"{text}\n\n{losses}Seeds: {runs}. {judged}; {again}.{failures}"


def _losses(struck: Mapping[str, Sequence[Struck]]) -> str:
    """The table of what was measured of coordinators that lost requests, "" if there was none."""
    measured = {
        name: [one for one in of_kind if one.silence_s is not None] for name, of_kind in struck.items()
    }
    rows = [_loss_row(name, measured[name]) for name in KINDS if measured.get(name)]
    if not rows:
        return ""
    rows.append(_loss_row("all", [one for of_kind in measured.values() for one in of_kind]))
    lines = [_LOSSES_HEAD, ("---", *["---:"] * (len(_LOSSES_HEAD) - 1)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def _loss_row(name: str, struck: Sequence[Struck]) -> tuple[str, ...]:
    silences = [one.silence_s for one in struck if one.silence_s is not None]
    ends = [one.end_s for one in struck if one.end_s is not None]
    return (name, str(len(struck)), _median_and_most(silences, 2), _median_and_most(ends, 1))


def _median_and_most(times: Sequence[float], digits: int) -> str:
    return f"{median(times):.{digits}f}, at most {max(times):.{digits}f}" if times else "-"


def _row(name: str, struck: Sequence[Struck], wrongs: dict[str, int]) -> tuple[str, ...]:
    times = [one.recovery_s for one in struck]
    refused = sum(one.outcome == "refused clearly" for one in struck)
    recovery = _median_and_most(times, 1)
    in_flight = f"{sum(one.in_flight for one in struck):,}"
    return (name, str(len(struck)), in_flight, *(str(n) for n in wrongs.values()), str(refused), recovery)
