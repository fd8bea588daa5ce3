"""The answer to a what-if as data for JSON, and as text with a column for each experiment."""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.contract.kafka.history import CLASSIC, STREAMS
from kafka_why.contract.kafka.requests import AlterGroupConfigs, AnyRequest, LeaveGroup
from kafka_why.contract.kafka.responses import AlterGroupConfigsResponse
from kafka_why.contract.kafka.share_requests import ShareStatePartition, ShareStateResult
from kafka_why.wording import (
    Clock,
    Column,
    VisibleText,
    columns,
    count,
    duration_text,
    render_table,
    visible_text,
)
from operations.whatif.changes import UNCHANGED, Changes
from operations.whatif.client import SimulatedClient
from operations.whatif.clients import derive
from operations.whatif.epoch_client import SimulatedMember
from operations.whatif.epoch_clients import derive_epochs
from operations.whatif.facts import (
    ClassicProcess,
    ClientFleet,
    ClientProcess,
    EpochProcess,
    LogMoment,
    SentRequest,
)
from operations.whatif.figures import (
    MatchKind,
    MeasuredRun,
    RebalancePair,
    RunFigures,
    Validation,
    measure,
    validate,
)
from operations.whatif.process import SimulatedProcess
from operations.whatif.run import GroupLog, Run, RunStep, SimulatedCoordinator, WhatIfError
from state.kafka.share.protocol import open_tasks
from state.kafka.share_group import ShareGroup
from state.timeline import Row

# The closed loop: the recorded clients and the core, an event at a time, in the order of time.


Action = Callable[[LogMoment, str], None]

STEPS_PER_ROW = 50
FREE_STEPS = 1_000_000
"""The maximum steps of a simulation: so many for each request of the log, and these in addition."""


def simulate(fleet: ClientFleet, log: GroupLog, changes: Changes) -> Run:
    """Run the group's clients with these changes until the end of the log. Raises WhatIfError."""
    return _Simulation(fleet, log, changes).run()


class _Simulation:
    """A priority queue of the clients' actions, and the simulated coordinator. It is the clients'
    environment.
    """

    def __init__(self, fleet: ClientFleet, log: GroupLog, changes: Changes) -> None:
        self._fleet = fleet
        self._log = log
        self._coordinator = SimulatedCoordinator(log.group_id, changes.configs(log.configs), log.outages)
        self._agenda: list[tuple[LogMoment, int, str, Action]] = []
        self._numbers = itertools.count()
        self._own_ids = itertools.count()
        self._name = changes.name
        self._group_settings = changes.group
        self._senders: dict[str, SimulatedProcess] = {}
        self._clients = {process.key: self._client(process, changes) for process in fleet.processes}
        self._share_tasks = set(fleet.share_tasks)

    def _client(self, process: ClientProcess, changes: Changes) -> SimulatedProcess:
        if isinstance(process, EpochProcess):
            return SimulatedMember(process, changes, self)
        assert isinstance(process, ClassicProcess)
        return SimulatedClient(process, self._fleet, changes, self)

    def run(self) -> Run:
        if self._group_settings:
            self._alter_group(self._group_settings)
        for sent in self._fleet.outside:
            self.at(sent.moment, sent.request_id, self._outside(sent))
        for client in self._clients.values():
            client.begin()
        most = STEPS_PER_ROW * len(self._log.rows) + FREE_STEPS
        while self._turn():
            if len(self._coordinator.steps) > most:
                raise WhatIfError(
                    f"{self._name}: the simulation ends after {most} steps of the group, because its log has "
                    f"only {len(self._log.rows)} requests; are the intervals of this experiment too short?"
                )
        self._deliver(self._coordinator.fire_until(self._log.until_ms))
        senders = {request_id: client.key for request_id, client in self._senders.items()}
        return Run(self._log.group_id, self._coordinator.steps, self._log.until_ms, senders)

    def at(self, moment: LogMoment, request_id: str, action: Action) -> None:
        """Schedule an action. `request_id` is that of the same request in the recorded log, or "" if there is
        none.
        """
        heapq.heappush(self._agenda, (moment, next(self._numbers), request_id, action))

    def send(self, client: SimulatedProcess, moment: LogMoment, request_id: str, request: AnyRequest) -> None:
        """Append a client's request to the log, under its id in the recorded log if that is free."""
        while not request_id or request_id in self._senders:
            request_id = self._own_id()
        self._senders[request_id] = client
        self._apply(moment, request_id, request)

    def _own_id(self) -> str:
        """Return the id of a request that is not in the recorded log."""
        return f"whatif-0-{next(self._own_ids)}"

    def _apply(self, moment: LogMoment, request_id: str, request: AnyRequest) -> None:
        self._deliver(self._coordinator.apply(Row(moment.at_ms, request_id, request)))

    def _alter_group(self, settings: Mapping[str, str]) -> None:
        """Give the group its own settings before its first request. Raises WhatIfError if it refuses them."""
        request = AlterGroupConfigs(
            group_id=self._log.group_id,
            correlation_id="",
            reply_partition=0,
            api_version=1,
            configs=dict(settings),
        )
        row = Row(self._log.rows[0].at_ms, self._own_id(), request)
        for step in self._coordinator.apply(row):
            for reply in step.effects.replies:
                if isinstance(reply.response, AlterGroupConfigsResponse) and reply.response.error_code:
                    raise WhatIfError(reply.response.error_message or "the group's settings are refused")

    def _turn(self) -> bool:
        """Fire the next deadline, or run the next action. Return False if none is left before the end."""
        due_ms = self._coordinator.timeline.next_due_ms()
        next_ms = self._agenda[0][0].at_ms if self._agenda else None
        if due_ms is not None and due_ms <= self._log.until_ms and (next_ms is None or due_ms <= next_ms):
            self._deliver(self._coordinator.fire_until(due_ms))
            return True
        if next_ms is None or next_ms > self._log.until_ms:
            return False
        moment, _, request_id, action = heapq.heappop(self._agenda)
        action(moment, request_id)
        return True

    def _deliver(self, steps: Iterable[RunStep]) -> None:
        for step in steps:
            for reply in step.effects.replies:
                client = self._senders.get(reply.response.request)
                if client is not None:
                    client.on_response(step.at_ms, reply.response)
            group = step.effects.group
            if isinstance(group, ShareGroup):
                self._plan_share_results(step.at_ms, group)

    def _plan_share_results(self, at_ms: int, group: ShareGroup) -> None:
        """Let the share coordinator succeed in the tasks that the log does not have."""
        for task in open_tasks(group):
            name = task.task.partition("@")[0]
            if name not in self._share_tasks:
                self._share_tasks.add(name)
                partitions = [
                    ShareStatePartition(UUID(topic.topic_id), number)
                    for topic in task.topics
                    for number in topic.partitions
                ]
                result = ShareStateResult(group_id=group.group_id, task=task.task, partitions=partitions)
                sent = SentRequest(LogMoment(at_ms + self._fleet.share_task_ms), self._own_id(), result)
                self.at(sent.moment, sent.request_id, self._outside(sent))

    def _outside(self, sent: SentRequest) -> Action:
        def apply(moment: LogMoment, request_id: str) -> None:
            request = sent.request
            if isinstance(request, LeaveGroup) and request_id in self._fleet.removals:
                request = self._removal(request_id, request)
            elif isinstance(request, AlterGroupConfigs):
                configs = {
                    name: value for name, value in request.configs.items() if name not in self._group_settings
                }
                request = replace(request, configs=configs)
            self._apply(moment, request_id, request)

        return apply

    def _removal(self, request_id: str, request: LeaveGroup) -> LeaveGroup:
        """Return a removal of the same processes' members, which have other member ids in the simulation."""
        whose = self._fleet.removals[request_id]
        members = [
            leaving if key is None else replace(leaving, member_id=self._clients[key].member_id)
            for leaving, key in zip(request.members, whose, strict=True)
        ]
        return replace(request, members=members)


RECORDED = "as it was"


@dataclass(frozen=True)
class WhatIfAnswer:
    """The answer to a what-if. If the validation has objections, a comparison is worthless, so `tried` is
    empty.
    """

    log: GroupLog
    fleet: ClientFleet
    recorded: MeasuredRun
    validation: Validation
    tried: Sequence[RunFigures]


def answer(log: GroupLog, experiments: Sequence[Changes]) -> WhatIfAnswer:
    """Find the clients in the log, run them as they were, and then under each experiment's settings.

    Raises WhatIfError if the group cannot be simulated.
    """
    for changes in experiments:
        changes.configs(log.configs)
        changes.check_protocol(log.protocol)
    fleet, run = derive(log) if log.protocol == CLASSIC else derive_epochs(log)
    recorded = measure(RECORDED, fleet, run)
    again = measure(UNCHANGED.name, fleet, simulate(fleet, log, UNCHANGED))
    validation = validate(recorded, again)
    tried = (
        []
        if validation.objections
        else [measure(changes.name, fleet, simulate(fleet, log, changes)).outcome for changes in experiments]
    )
    return WhatIfAnswer(log, fleet, recorded, validation, tried)


_MAX_PAIRS = 40


class WhatIfSummary(Struct, frozen=True, kw_only=True):
    """The answer without its runs, for JSON. Times are milliseconds since the epoch."""

    group_id: str
    from_ms: int
    until_ms: int
    clients: list[str]
    ignored: dict[str, int]
    validation: Validation
    recorded: RunFigures
    tried: list[RunFigures]


def summary(found: WhatIfAnswer) -> WhatIfSummary:
    """Return the answer for JSON."""
    return WhatIfSummary(
        group_id=found.log.group_id,
        from_ms=found.log.rows[0].at_ms,
        until_ms=found.log.until_ms,
        clients=list(found.recorded.outcome.by_client),
        ignored=dict(found.fleet.ignored),
        validation=found.validation,
        recorded=found.recorded.outcome,
        tried=list(found.tried),
    )


def answer_text(found: WhatIfAnswer, clock: Clock) -> VisibleText:
    """Return the heading, the validation, and the table; without the table if there are objections."""
    blocks = [visible_text(columns(_heading(found, clock)))]
    if found.validation.objections:
        blocks += [_pairs_text(found.validation.pairs, clock), _refusal(found.validation)]
    else:
        outcomes = [found.recorded.outcome, *found.tried]
        blocks.append(_table(outcomes, found.log.protocol))
    return visible_text(blocks, "\n\n")


def _heading(found: WhatIfAnswer, clock: Clock) -> Iterator[tuple[str, str]]:
    log, validation = found.log, found.validation
    times = f"{clock.time(log.rows[0].at_ms)} to {clock.time(log.until_ms)}"
    yield "Group", f"{log.group_id}, {times} {clock.zone(log.until_ms)}"
    clients, runs = len(found.recorded.outcome.by_client), len(found.fleet.processes)
    pauses = sum(len(process.pauses) for process in found.fleet.processes)
    paused = f", {count(pauses, 'pause')}" if pauses else ""
    yield "Clients", f"{clients}, started {count(runs, 'time')}{paused}"
    matched, all_ = validation.count(MatchKind.MATCHED), validation.recorded.rebalances
    yield (
        "Model",
        f"reproduces {matched} of {count(all_, 'rebalance')} within {duration_text(validation.worst_ms())}, "
        f"{validation.count(MatchKind.ADDITIONAL)} more; clients stood still for "
        f"{duration_text(validation.simulated.stood_still_ms)}, "
        f"really {duration_text(validation.recorded.stood_still_ms)}",
    )
    for reason, number in found.fleet.ignored.items():
        yield "Ignored", f"{count(number, 'request')} {reason}"
    for number, outcome in enumerate(found.tried, 1):
        yield f"Try {number}", outcome.name
        if outcome.refused:
            yield "", f"the coordinator refuses {', '.join(outcome.refused)}"


def _table(outcomes: Sequence[RunFigures], protocol: str) -> VisibleText:
    what = "task" if protocol == STREAMS else "partition"
    generations = "generations" if protocol == CLASSIC else "group epochs"
    kinds = list(dict.fromkeys(cause.kind for outcome in outcomes for cause in outcome.causes))
    rows: list[list[object]] = [["rebalances", *(outcome.rebalances for outcome in outcomes)]]
    rows += [[f"  {kind}", *(_of_kind(outcome, kind) for outcome in outcomes)] for kind in kinds]
    rows += [
        [generations, *(outcome.generations for outcome in outcomes)],
        ["group not Stable", *(duration_text(outcome.not_stable_ms) for outcome in outcomes)],
        ["clients stood still", *(duration_text(outcome.stood_still_ms) for outcome in outcomes)],
    ]
    rows += [
        [f"  {client}", *(duration_text(o.by_client.get(client, 0)) for o in outcomes)]
        for client in outcomes[0].by_client
    ]
    rows += [
        [f"{what}s stood still", *(f"{o.partition_ms / 1000:.1f} {what}-s" for o in outcomes)],
        ["  one, at the longest", *(duration_text(outcome.longest_ms) for outcome in outcomes)],
        [f"{what}s moved", *(outcome.moved for outcome in outcomes)],
    ]
    if protocol == CLASSIC:
        rows.append(["  needlessly", *(outcome.needless for outcome in outcomes)])
    elif protocol == STREAMS:
        rows.append(["  without a copy of their state", *(outcome.without_copy for outcome in outcomes)])
    names = [outcomes[0].name, *(f"try {number}" for number in range(1, len(outcomes)))]
    return render_table([Column("", 0), *(Column(name, 0) for name in names)], rows)


def _of_kind(outcome: RunFigures, kind: str) -> int:
    return sum(cause.rebalances for cause in outcome.causes if cause.kind == kind)


def _pairs_text(pairs: Sequence[RebalancePair], clock: Clock) -> VisibleText:
    rows = [
        [
            pair.match,
            clock.time(pair.began_ms),
            "-" if pair.off_ms is None else f"{pair.off_ms:+d} ms",
            f"{pair.cause}: {', '.join(pair.clients) or '-'}",
            len(pair.members),
        ]
        for pair in pairs[:_MAX_PAIRS]
    ]
    headings = ("REBALANCE", "BEGAN", "OFF", "CAUSE", "MEMBERS")
    hidden = len(pairs) - len(rows)
    more = [f"({hidden} more are not shown)"] if hidden else []
    return visible_text([render_table([Column(heading, 0) for heading in headings], rows), *more])


def _refusal(validation: Validation) -> VisibleText:
    lines = ["The model does not reproduce what happened, so a comparison would be worth nothing:"]
    return visible_text([*lines, *(f"- {objection}" for objection in validation.objections)])
