"""The figures of a run: rebalances, the times in which members and partitions stood still, and moves; and the
validation of the closed loop by them.

*A client of the classic protocol stands still* while one of its processes runs without an assignment: from
its JoinGroup, with which a member of an eager assignor gives up its partitions, until the answer to its
SyncGroup. Under `cooperative-sticky` a member that joins again does not stand still. A client of another
protocol stands still while it runs and has no partition (in a streams group, no active task).

*A partition stands still* while a process of the group runs, and none that consumes the partition does: none
has it, or the one that has it is dead, or pauses. This includes the time until a dead member's session ends,
which `why` does not know. A partition that a member has to give up is no longer consumed.

An experiment is as good as its model of the clients. So the clients first run under the recorded settings.
Each recorded rebalance is matched with a simulated one of the same cause, by the same client, at the same
time, with the same members. If too much differs, there is no comparison.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from msgspec import Struct

from kafka_why.contract.kafka.history import CLASSIC, EntryType
from kafka_why.contract.kafka.requests import JoinGroup, LeaveGroup
from kafka_why.contract.kafka.responses import AnyResponse, JoinGroupResponse, SyncGroupResponse
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.why.model import CauseKind, Rebalance
from kafka_why.why.report import CauseCount, Report, report
from kafka_why.wording import duration_text
from operations.whatif.epoch_requests import FENCED, EpochResponse, assigned, partitions_of
from operations.whatif.facts import ClientFleet, ClientProcess, EpochHeartbeat
from operations.whatif.observer import Partitions, is_cooperative, read_partitions
from operations.whatif.run import Run
from state.protocol import Received

Window: TypeAlias = tuple[int, int]

_NEW_GENERATION: Final = (EntryType.COMPLETING_REBALANCE, EntryType.GROUP_EPOCH_BUMPED)


class RunFigures(Struct, frozen=True, kw_only=True):
    """The figures of a run. Times are milliseconds, `partition_ms` is the sum over all partitions.

    `by_client` has the time that each client stood still. `longest_ms` is the longest time that one partition
    stood still at a stretch. `refused` are the clients that never joined, because the
    coordinator refused them. `moved` and
    `needless` are as in `kafka_why.why.moves`. In a group with epochs, `generations` counts the new group
    epochs, and `needless` is 0. In a streams group, partitions are active tasks, and `without_copy` is the
    number of those that moved to a process without a copy of their state.
    """

    name: str
    rebalances: int = 0
    causes: list[CauseCount] = []
    generations: int = 0
    not_stable_ms: int = 0
    stood_still_ms: int = 0
    by_client: dict[str, int] = {}
    partitions: int = 0
    partition_ms: int = 0
    longest_ms: int = 0
    moved: int = 0
    needless: int = 0
    without_copy: int = 0
    refused: list[str]


@dataclass(frozen=True)
class MeasuredRun:
    """A run with its figures, its report, and the process of each member id.

    `report` is None if no client ever joined.
    """

    run: Run
    outcome: RunFigures
    report: Report | None
    processes: Mapping[str, str]


@dataclass(frozen=True)
class _Held:
    """The partitions that a process held in a window of time, perhaps none."""

    partitions: Partitions
    window: Window


def measure(name: str, fleet: ClientFleet, run: Run) -> MeasuredRun:
    """Return the figures of a run of this fleet, recorded or simulated."""
    history = run.history()
    if not history:
        refused = [process.key for process in fleet.processes]
        return MeasuredRun(run, RunFigures(name=name, refused=refused), None, {})  # no client joined
    found = report(run.group_id, history, run.until_ms)
    held = _held(fleet, run)
    running = {process.key: _running(process, run.until_ms) for process in fleet.processes}
    by_client = dict.fromkeys((process.client for process in fleet.processes), 0)
    for process in fleet.processes:
        assigned = [span.window for span in held[process.key]]
        by_client[process.client] += _length(_without([running[process.key]], assigned))
    idle = _idle(fleet, held, running)
    figures = found.summary
    outcome = RunFigures(
        name=name,
        rebalances=figures.rebalances,
        causes=figures.causes,
        generations=sum(entry.type in _NEW_GENERATION for entry in history),
        not_stable_ms=figures.not_stable_ms,
        stood_still_ms=sum(by_client.values()),
        by_client=by_client,
        partitions=len(idle),
        partition_ms=sum(_length(windows) for windows in idle),
        longest_ms=max((to - since for windows in idle for since, to in windows), default=0),
        moved=figures.moved,
        needless=figures.needless,
        without_copy=sum(len(n) for r in found.rebalances if r.tasks for n in r.tasks.without_copy.values()),
        refused=_refused(fleet, run),
    )
    return MeasuredRun(run, outcome, found, _processes(run))


def _running(process: ClientProcess, until_ms: int) -> Window:
    return process.starts.moment.at_ms, until_ms if process.ends_ms is None else process.ends_ms


def _held(fleet: ClientFleet, run: Run) -> dict[str, list[_Held]]:
    """Return what each process held, and when."""
    ends = {process.key: _running(process, run.until_ms)[1] for process in fleet.processes}
    now: dict[str, tuple[Partitions, int]] = {}
    found: dict[str, list[_Held]] = {key: [] for key in ends}

    def hold(key: str, at_ms: int, partitions: Partitions | None) -> None:
        held, since_ms = now.pop(key, (frozenset(), at_ms))
        if since_ms < min(at_ms, ends[key]):
            found[key].append(_Held(held, (since_ms, min(at_ms, ends[key]))))
        if partitions is not None:
            now[key] = partitions, at_ms

    for step in run.steps:
        if isinstance(step.event, Received):
            key = run.senders.get(step.event.request_id)
            if key is not None and _gives_up(step.event.request):
                hold(key, step.at_ms, None)
        for reply in step.effects.replies:
            key = run.senders.get(reply.response.request)
            if key is not None and _changes_partitions(reply.response):
                hold(key, step.at_ms, _given(reply.response))
    for key in list(now):
        hold(key, run.until_ms, None)
    return found


def _changes_partitions(response: AnyResponse) -> bool:
    """Return True if a process has other partitions, or none, after this answer."""
    if isinstance(response, EpochResponse) and response.error_code in FENCED:
        return True
    return response.error_code is ErrorCode.NONE and (
        isinstance(response, SyncGroupResponse) or assigned(response) is not None
    )


def _given(response: AnyResponse) -> Partitions | None:
    """Return the partitions that an answer gives to a process, or None if the process stands still. A member
    of the classic protocol with an empty assignment does not stand still.
    """
    if isinstance(response, SyncGroupResponse):
        return read_partitions(response.assignment)
    return partitions_of(assigned(response) or {}) or None


def _gives_up(request: object) -> bool:
    """Return True if a process that sends this request gives up its partitions."""
    if isinstance(request, JoinGroup):
        return not (is_cooperative(request.protocols) and request.member_id)
    return isinstance(request, LeaveGroup) or (
        isinstance(request, EpochHeartbeat) and request.member_epoch <= 0
    )


def _idle(
    fleet: ClientFleet, held: Mapping[str, Sequence[_Held]], running: Mapping[str, Window]
) -> list[list[Window]]:
    """Return for each partition the times in which it stood still."""
    consumed: dict[TopicPartition, list[Window]] = {
        TopicPartition(topic, number): []
        for topic, known in fleet.partition_counts.items()
        for number in range(known[-1][1])
    }
    for process in fleet.processes:
        ends_ms = running[process.key][1]
        pauses = [(span.from_ms, ends_ms if span.to_ms is None else span.to_ms) for span in process.pauses]
        for span in held[process.key]:
            for window in _without([span.window], pauses):
                for partition in span.partitions:
                    consumed.setdefault(partition, []).append(window)
    there = _merged(running.values())
    return [_without(there, windows) for windows in consumed.values()]


def _merged(windows: Iterable[Window]) -> list[Window]:
    merged: list[Window] = []
    for since_ms, to_ms in sorted(windows):
        if merged and since_ms <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], to_ms)
        elif since_ms < to_ms:
            merged.append((since_ms, to_ms))
    return merged


def _without(windows: Iterable[Window], others: Iterable[Window]) -> list[Window]:
    """Return the parts of `windows` that are in none of the others."""
    return list(_parts(_merged(windows), _merged(others)))


def _parts(windows: Sequence[Window], others: Sequence[Window]) -> Iterator[Window]:
    for since_ms, to_ms in windows:
        for other_since_ms, other_to_ms in others:
            if other_to_ms <= since_ms or to_ms <= other_since_ms:
                continue
            if since_ms < other_since_ms:
                yield since_ms, other_since_ms
            since_ms = other_to_ms
        if since_ms < to_ms:
            yield since_ms, to_ms


def _length(windows: Iterable[Window]) -> int:
    return sum(to_ms - since_ms for since_ms, to_ms in windows)


def _processes(run: Run) -> dict[str, str]:
    """Return the process of each member id."""
    return {answer.member_id: key for key, answer in _join_answers(run) if answer.member_id}


def _join_answers(run: Run) -> Iterator[tuple[str, JoinGroupResponse | EpochResponse]]:
    """Yield the answers to requests that may join, each with the process that sent the request."""
    for step in run.steps:
        for reply in step.effects.replies:
            key = run.senders.get(reply.response.request)
            if key is not None and isinstance(reply.response, JoinGroupResponse | EpochResponse):
                yield key, reply.response


def _refused(fleet: ClientFleet, run: Run) -> list[str]:
    """Return the processes that never joined and whose last answer was a refusal."""
    last: dict[str, ErrorCode] = {}
    for key, answer in _join_answers(run):
        if last.get(key) is not ErrorCode.NONE:
            last[key] = answer.error_code
    waiting = (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED, *FENCED)
    return [p.key for p in fleet.processes if last.get(p.key, ErrorCode.NONE) not in waiting]


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
    why_moved = ""
    if recorded.report is not None and recorded.report.group_type == CLASSIC:
        why_moved = ": the clients' assignors assign differently than the assignors of these names here"
    objections = list(_objections(pairs, recorded.outcome, simulated.outcome, why_moved))
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
    """Match each recorded rebalance with the first unmatched simulated one that is like it. Return all pairs
    by time.
    """
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


def _objections(
    pairs: Sequence[RebalancePair], recorded: RunFigures, simulated: RunFigures, why_moved: str
) -> Iterator[str]:
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
        yield f"{recorded.moved} partitions moved, in the simulation {simulated.moved}{why_moved}"
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
