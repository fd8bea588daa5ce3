"""The validation of the closed loop: with nothing changed, it has to do what the group did.

An experiment is as good as its model of the clients. So the clients first run under the recorded settings.
Each recorded rebalance is matched with a simulated one of the same cause, by the same client, at the same
time, with the same members. If too much differs, there is no comparison.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec import Struct

from kafka_why.why.model import CauseKind, Rebalance
from kafka_why.wording import duration_text
from operations.whatif.figures import MeasuredRun, RunFigures

# The simulation reproduces the log within all of these limits.
WITHIN_MS: Final = 1_000  # the time by which the beginning or duration of a matched rebalance may differ
UNMATCHED_SHARE: Final = 0.05  # the share of rebalances and moves that may differ, rounded down
TIME_SHARE: Final = 0.05  # the share of the time that clients or partitions stood still that may differ
TIME_LEAST_MS: Final = 1_000  # or this time for each client or partition, if that is more


class MatchKind(StrEnum):
    """The runs that have a rebalance: both, only the recorded one, or only the simulated one."""

    MATCHED = "matched"
    MISSED = "missed"
    ADDITIONAL = "additional"


class RebalancePair(Struct, frozen=True, kw_only=True):
    """A rebalance and its counterpart. `clients` caused it. `off_ms` is the time by which it began later in
    the simulation, or None without a counterpart.
    """

    match: MatchKind
    began_ms: int
    cause: CauseKind
    clients: list[str]
    members: list[str]
    off_ms: int | None = None


class Validation(Struct, frozen=True, kw_only=True):
    """The comparison. `objections` are sentences; without any, the log is reproduced."""

    pairs: list[RebalancePair]
    recorded: RunFigures
    simulated: RunFigures
    objections: list[str]

    def count(self, match: MatchKind) -> int:
        """Return the number of rebalances of this kind."""
        return sum(pair.match is match for pair in self.pairs)

    def worst_ms(self) -> int:
        """Return the greatest difference between the beginnings of matched rebalances."""
        return max((abs(pair.off_ms) for pair in self.pairs if pair.off_ms is not None), default=0)


@dataclass(frozen=True)
class _Seen:
    """A rebalance in the form in which it is compared."""

    rebalance: Rebalance
    clients: list[str]
    members: list[str]

    def is_like(self, other: "_Seen") -> bool:
        ours, theirs = self.rebalance, other.rebalance
        return (
            ours.cause.kind is theirs.cause.kind
            and (self.clients, self.members) == (other.clients, other.members)
            and abs(ours.began_ms - theirs.began_ms) <= WITHIN_MS
            and abs((ours.duration_ms or 0) - (theirs.duration_ms or 0)) <= WITHIN_MS
        )

    def pair(self, match: MatchKind, off_ms: int | None = None) -> RebalancePair:
        return RebalancePair(
            match=match,
            began_ms=self.rebalance.began_ms,
            cause=self.rebalance.cause.kind,
            clients=self.clients,
            members=self.members,
            off_ms=off_ms,
        )


def validate(recorded: MeasuredRun, simulated: MeasuredRun) -> Validation:
    """Compare what happened with the simulation of the unchanged settings."""
    pairs = _pairs(_seen(recorded), _seen(simulated))
    objections = list(_objections(pairs, recorded.outcome, simulated.outcome))
    return Validation(
        pairs=pairs, recorded=recorded.outcome, simulated=simulated.outcome, objections=objections
    )


def _seen(measured: MeasuredRun) -> list[_Seen]:
    return [
        _Seen(r, _named(r.cause.member_ids, measured.processes), _named(r.members, measured.processes))
        for r in (measured.report.rebalances if measured.report is not None else ())
    ]


def _named(member_ids: Sequence[str], processes: Mapping[str, str]) -> list[str]:
    return sorted(processes.get(member_id, member_id) for member_id in member_ids)


def _pairs(recorded: Sequence[_Seen], simulated: Sequence[_Seen]) -> list[RebalancePair]:
    """Match each recorded rebalance with the first like it that is not matched yet. Return all by time."""
    rest = list(simulated)
    pairs = []
    for ours in recorded:
        theirs = next((other for other in rest if ours.is_like(other)), None)
        if theirs is None:
            pairs.append(ours.pair(MatchKind.MISSED))
        else:
            rest.remove(theirs)
            pairs.append(ours.pair(MatchKind.MATCHED, theirs.rebalance.began_ms - ours.rebalance.began_ms))
    pairs += [other.pair(MatchKind.ADDITIONAL) for other in rest]
    return sorted(pairs, key=lambda pair: pair.began_ms)


def _objections(pairs: Sequence[RebalancePair], recorded: RunFigures, simulated: RunFigures) -> Iterator[str]:
    missed = sum(pair.match is MatchKind.MISSED for pair in pairs)
    additional = sum(pair.match is MatchKind.ADDITIONAL for pair in pairs)
    allowed = int(UNMATCHED_SHARE * recorded.rebalances)
    if max(missed, additional) > allowed:
        yield (
            f"of {recorded.rebalances} rebalances the simulation misses {missed} and has {additional} more "
            f"({allowed} each are allowed)"
        )
    if abs(recorded.generations - simulated.generations) > allowed:
        yield f"there were {recorded.generations} generations, the simulation has {simulated.generations}"
    if abs(recorded.moved - simulated.moved) > int(UNMATCHED_SHARE * recorded.moved):
        yield (
            f"{recorded.moved} partitions moved, in the simulation {simulated.moved}: the clients' assignors "
            "assign differently than the assignors of these names here"
        )
    clients = len(recorded.by_client)
    for what, was_ms, now_ms, places in (
        ("clients", recorded.stood_still_ms, simulated.stood_still_ms, clients),
        ("partitions", recorded.partition_ms, simulated.partition_ms, recorded.partitions),
    ):
        if abs(was_ms - now_ms) > max(TIME_SHARE * was_ms, TIME_LEAST_MS * places):
            yield (
                f"{what} stood still for {duration_text(was_ms)} in all, "
                f"in the simulation for {duration_text(now_ms)}"
            )
