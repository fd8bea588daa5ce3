"""The validation of the closed loop, the simulation of a group's clients, by the figures of a run.

An experiment is as good as its model of the clients. So the clients first run under the recorded settings.
Each recorded rebalance is matched with a simulated one of the same cause, by the same client, at the same
time, with the same members. If too much differs, there is no comparison.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec import Struct

from kafka_why.contract.kafka.history import CLASSIC
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
    """A rebalance and its counterpart in the other run. Clients and members are keys of processes."""

    match: MatchKind
    began_ms: int  # in the recorded run, except an additional one
    cause: CauseKind
    clients: list[str]  # which caused it
    members: list[str]
    off_ms: int | None = None  # time by which it began later in the simulation; None without a counterpart


class Validation(Struct, frozen=True, kw_only=True):
    """The comparison of a recorded run with its simulation. `objections` are sentences. If there are none,
    the simulation reproduces the log.
    """

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
class _ComparedRebalance:
    """A rebalance. Processes stand for its members, because member ids differ in the simulation.

    `clients` are the processes that caused it.
    """

    rebalance: Rebalance
    clients: list[str]
    members: list[str]

    def is_like(self, other: "_ComparedRebalance") -> bool:
        """Return True if both have the same cause and processes, at the same time within WITHIN_MS."""
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
    """Compare the recorded run with its simulation under unchanged settings."""
    pairs = _match_rebalances(_compared_rebalances(recorded), _compared_rebalances(simulated))
    moves_reason = ""
    if recorded.report is not None and recorded.report.group_type == CLASSIC:
        moves_reason = ": the clients' assignors assign differently than the assignors of these names here"
    objections = list(_objections(pairs, recorded.outcome, simulated.outcome, moves_reason))
    return Validation(
        pairs=pairs, recorded=recorded.outcome, simulated=simulated.outcome, objections=objections
    )


def _compared_rebalances(measured: MeasuredRun) -> list[_ComparedRebalance]:
    """Return the rebalances of a run, with its processes instead of member ids."""
    return [
        _ComparedRebalance(
            r,
            _process_keys(r.cause.member_ids, measured.processes),
            _process_keys(r.members, measured.processes),
        )
        for r in (measured.report.rebalances if measured.report is not None else ())
    ]


def _process_keys(member_ids: Sequence[str], processes: Mapping[str, str]) -> list[str]:
    """Return the sorted keys of these members' processes. The id of an unknown member stands for itself."""
    return sorted(processes.get(member_id, member_id) for member_id in member_ids)


def _match_rebalances(
    recorded: Sequence[_ComparedRebalance], simulated: Sequence[_ComparedRebalance]
) -> list[RebalancePair]:
    """Match each recorded rebalance with the first unmatched simulated rebalance that is like it. Return all
    pairs by time.
    """
    unmatched = list(simulated)
    pairs = []
    for compared in recorded:
        match = next((other for other in unmatched if compared.is_like(other)), None)
        if match is None:
            pairs.append(compared.pair(MatchKind.MISSED))
        else:
            unmatched.remove(match)
            off_ms = match.rebalance.began_ms - compared.rebalance.began_ms
            pairs.append(compared.pair(MatchKind.MATCHED, off_ms))
    pairs += [other.pair(MatchKind.ADDITIONAL) for other in unmatched]
    return sorted(pairs, key=lambda pair: pair.began_ms)


def _objections(
    pairs: Sequence[RebalancePair], recorded: RunFigures, simulated: RunFigures, moves_reason: str
) -> Iterator[str]:
    """Yield a sentence for each figure that differs by more than its limit.

    `moves_reason` is the end of the sentence about moves: their probable reason, or "".
    """
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
        yield f"{recorded.moved} partitions moved, in the simulation {simulated.moved}{moves_reason}"
    clients = len(recorded.by_client)
    for noun, recorded_ms, simulated_ms, number in (
        ("clients", recorded.stood_still_ms, simulated.stood_still_ms, clients),
        ("partitions", recorded.partition_ms, simulated.partition_ms, recorded.partitions),
    ):
        if abs(recorded_ms - simulated_ms) > max(TIME_SHARE * recorded_ms, TIME_LEAST_MS * number):
            yield (
                f"{noun} stood still for {duration_text(recorded_ms)} in all, "
                f"in the simulation for {duration_text(simulated_ms)}"
            )
