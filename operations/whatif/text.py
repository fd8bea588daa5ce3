"""The answer to a what-if: the simulations of its experiments, and their figures as data for JSON and as text
with a column for each experiment.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

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
from operations.whatif.clients import find_classic_clients
from operations.whatif.epoch_client import SimulatedMember
from operations.whatif.epoch_clients import find_epoch_clients
from operations.whatif.facts import (
    ClassicProcess,
    ClientFleet,
    ClientProcess,
    EpochProcess,
    LogMoment,
    SentRequest,
    ShareTaskPartition,
)
from operations.whatif.figures import MeasuredRun, RunFigures, measure, own_pauses, silences
from operations.whatif.process import Action, SimulatedProcess
from operations.whatif.run import GroupLog, Run, RunStep, SimulatedCoordinator, WhatIfError
from operations.whatif.validation import MatchKind, RebalancePair, Validation, validate
from state.kafka.share.protocol import open_tasks
from state.kafka.share_group import ShareGroup
from state.timeline import Row

# A simulation has at most this many steps for each request of the log, and FREE_STEPS more.
STEPS_PER_ROW = 50
FREE_STEPS = 1_000_000


def simulate(fleet: ClientFleet, log: GroupLog, changes: Changes) -> Run:
    """Run the group's clients with these changes until the end of the log. Raises WhatIfError."""
    return _Simulation(fleet, log, changes).run()


class _Simulation:
    """The closed loop: a priority queue of the clients' actions, and the simulated coordinator. It is the
    clients' `SimulationEnvironment`.
    """

    def __init__(self, fleet: ClientFleet, log: GroupLog, changes: Changes) -> None:
        self._fleet = fleet
        self._log = log
        self._changes = changes
        self._coordinator = SimulatedCoordinator(log.group_id, log.configs.each(changes.config), log.outages)
        # A heap of the actions. The number keeps the order of actions of the same moment.
        self._agenda: list[tuple[LogMoment, int, str, Action]] = []
        self._action_numbers = itertools.count()
        self._new_numbers = itertools.count()
        self._senders: dict[str, SimulatedProcess[Any]] = {}  # by request id
        self._clients = {process.key: self._create_client(process) for process in fleet.processes}
        # The partitions of tasks whose results are in the log or planned.
        self._planned_share_tasks = set(fleet.share_tasks)

    def _create_client(self, process: ClientProcess) -> SimulatedProcess[Any]:
        """Return the simulated client of a process."""
        if isinstance(process, EpochProcess):
            return SimulatedMember(process, self._changes, self)
        assert isinstance(process, ClassicProcess)
        return SimulatedClient(process, self._fleet, self._changes, self)

    def run(self) -> Run:
        """Run the clients until the end of the log. Raises WhatIfError."""
        if self._changes.group:
            self._alter_group()
        for sent in self._fleet.other_requests:
            self.schedule(sent.moment, sent.request_id, partial(self._send_other, sent))
        for client in self._clients.values():
            client.begin()
        limit = STEPS_PER_ROW * len(self._log.rows) + FREE_STEPS
        while self._run_next():
            if len(self._coordinator.steps) > limit:
                raise WhatIfError(
                    f"{self._changes.name}: the simulation ends after {limit} steps of the group, because "
                    f"its log has only {len(self._log.rows)} requests; are the intervals of this experiment "
                    "too short?"
                )
        self._deliver_responses(self._coordinator.fire_until(self._log.until_ms))
        senders = {request_id: client.key for request_id, client in self._senders.items()}
        return Run(self._log.group_id, self._coordinator.steps, self._log.until_ms, senders)

    def schedule(self, moment: LogMoment, request_id: str, action: Action) -> None:
        """Schedule an action. `request_id` is the id of the same request in the recorded log, or "" if there
        is none.
        """
        heapq.heappush(self._agenda, (moment, next(self._action_numbers), request_id, action))

    def send(
        self, client: SimulatedProcess[Any], moment: LogMoment, request_id: str, request: AnyRequest
    ) -> None:
        """Append a client's request to the log, under its id in the recorded log if that is free."""
        while not request_id or request_id in self._senders:
            request_id = self._new_id()
        self._senders[request_id] = client
        self._apply(moment, request_id, request)

    def _new_id(self) -> str:
        """Return the id of a request that is not in the recorded log."""
        return f"whatif-0-{next(self._new_numbers)}"

    def _apply(self, moment: LogMoment, request_id: str, request: AnyRequest) -> None:
        """Apply a request at this moment, and pass the responses to the clients."""
        self._deliver_responses(self._coordinator.apply(Row(moment.at_ms, request_id, request)))

    def _alter_group(self) -> None:
        """Set the group's own settings before its first request. Raises WhatIfError if they are refused."""
        request = AlterGroupConfigs(
            group_id=self._log.group_id,
            correlation_id="",
            reply_partition=0,
            api_version=1,
            configs=dict(self._changes.group),
        )
        row = Row(self._log.rows[0].at_ms, self._new_id(), request)
        for step in self._coordinator.apply(row):
            for reply in step.effects.replies:
                if isinstance(reply.response, AlterGroupConfigsResponse) and reply.response.error_code:
                    raise WhatIfError(reply.response.error_message or "the group's settings are refused")

    def _run_next(self) -> bool:
        """Fire the next deadline, or run the next action. Return False if none is left before the end."""
        next_deadline_ms = self._coordinator.timeline.next_due_ms()
        next_action_ms = self._agenda[0][0].at_ms if self._agenda else None
        if (
            next_deadline_ms is not None
            and next_deadline_ms <= self._log.until_ms
            and (next_action_ms is None or next_deadline_ms <= next_action_ms)
        ):
            self._deliver_responses(self._coordinator.fire_until(next_deadline_ms))
            return True
        if next_action_ms is None or next_action_ms > self._log.until_ms:
            return False
        moment, _, request_id, action = heapq.heappop(self._agenda)
        action(moment, request_id)
        return True

    def _deliver_responses(self, steps: Iterable[RunStep]) -> None:
        """Pass the steps' responses to the clients, and plan the results of new share coordinator tasks."""
        for step in steps:
            for reply in step.effects.replies:
                client = self._senders.get(reply.response.request)
                if client is not None:
                    client.on_response(step.at_ms, reply.response)
            group = step.effects.group
            if isinstance(group, ShareGroup):
                self._plan_share_results(step.at_ms, group)

    def _plan_share_results(self, at_ms: int, group: ShareGroup) -> None:
        """Plan a successful result for the partitions of open tasks of the share coordinator.

        Partitions of tasks in the log are left out, because the log has their results.
        """
        for task in open_tasks(group):
            cause = task.task.partition("@")[0]  # the id of a task is <cause>@<epoch>
            results = {
                ShareTaskPartition(cause, topic.topic_name, number): ShareStatePartition(
                    UUID(topic.topic_id), number
                )
                for topic in task.topics
                for number in topic.partitions
            }
            unplanned = [results[key] for key in results if key not in self._planned_share_tasks]
            if unplanned:
                self._planned_share_tasks |= results.keys()
                result = ShareStateResult(group_id=group.group_id, task=task.task, partitions=unplanned)
                sent = SentRequest(LogMoment(at_ms + self._fleet.share_task_ms), self._new_id(), result)
                self.schedule(sent.moment, sent.request_id, partial(self._send_other, sent))

    def _send_other(self, sent: SentRequest, moment: LogMoment, request_id: str) -> None:
        """Send a request that no simulated client sends, adapted to the simulated group."""
        request = sent.request
        if isinstance(request, LeaveGroup) and request_id in self._fleet.removals:
            request = self._removal(request_id, request)
        elif isinstance(request, AlterGroupConfigs):
            configs = {
                name: value for name, value in request.configs.items() if name not in self._changes.group
            }
            request = replace(request, configs=configs)
        self._apply(moment, request_id, request)

    def _removal(self, request_id: str, request: LeaveGroup) -> LeaveGroup:
        """Return a request that removes the same processes, by their member ids in the simulation."""
        process_keys = self._fleet.removals[request_id]
        members = [
            leaving if key is None else replace(leaving, member_id=self._clients[key].member_id)
            for leaving, key in zip(request.members, process_keys, strict=True)
        ]
        return replace(request, members=members)


RECORDED = "as it was"


@dataclass(frozen=True)
class WhatIfAnswer:
    """The answer to a what-if. `recorded` has the figures of the log, `tried` the figures of the experiments.

    If the validation has objections, a comparison is worthless, so `tried` is empty.
    """

    log: GroupLog
    fleet: ClientFleet
    recorded: MeasuredRun
    validation: Validation
    tried: Sequence[RunFigures]


def answer(log: GroupLog, experiments: Sequence[Changes]) -> WhatIfAnswer:
    """Find the clients in the log, run them under the recorded settings, and then under each experiment's.

    Raises WhatIfError if the group cannot be simulated.
    """
    for changes in experiments:
        log.configs.each(changes.config)  # raises for an invalid setting
        changes.check_protocol(log.protocol)
    fleet, run = find_classic_clients(log) if log.protocol == CLASSIC else find_epoch_clients(log)
    recorded = measure(RECORDED, fleet, run)
    simulated = measure(UNCHANGED.name, fleet, simulate(fleet, log, UNCHANGED))
    validation = validate(recorded, simulated)
    tried = (
        []
        if validation.objections
        else [measure(changes.name, fleet, simulate(fleet, log, changes)).outcome for changes in experiments]
    )
    return WhatIfAnswer(log, fleet, recorded, validation, tried)


_MAX_PAIRS = 40


def summary(found: WhatIfAnswer) -> dict[str, object]:
    """Return the answer without its runs, for JSON. Times are milliseconds since the epoch."""
    return {
        "group_id": found.log.group_id,
        "from_ms": found.log.rows[0].at_ms,
        "until_ms": found.log.until_ms,
        "clients": list(found.recorded.outcome.by_client),
        "ignored": found.fleet.ignored,
        "validation": found.validation,
        "recorded": found.recorded.outcome,
        "tried": found.tried,
    }


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
    """Yield a label and a text for each line above the table."""
    log, validation = found.log, found.validation
    times = f"{clock.time(log.rows[0].at_ms)} to {clock.time(log.until_ms)}"
    yield "Group", f"{log.group_id}, {times} {clock.zone(log.until_ms)}"
    clients, runs = len(found.recorded.outcome.by_client), len(found.fleet.processes)
    pause_count = sum(map(len, own_pauses(found.fleet, log.until_ms).values()))
    silence_count = len(silences(found.fleet, log.until_ms))
    pauses = f", {count(pause_count, 'pause')}" if pause_count else ""
    pauses += f", all silent {count(silence_count, 'time')}" if silence_count else ""
    yield "Clients", f"{clients}, started {count(runs, 'time')}{pauses}"
    matched, rebalances = validation.count(MatchKind.MATCHED), validation.recorded.rebalances
    yield (
        "Model",
        f"reproduces {matched} of {count(rebalances, 'rebalance')} "
        f"within {duration_text(validation.worst_ms())}, "
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
    """Return the figures, with a row for each figure and a column for each run."""
    unit = "task" if protocol == STREAMS else "partition"
    generations = "generations" if protocol == CLASSIC else "group epochs"
    kinds = list(dict.fromkeys(cause.kind for outcome in outcomes for cause in outcome.causes))
    rows: list[Sequence[object]] = [
        ["rebalances", *(outcome.rebalances for outcome in outcomes)],
        *([f"  {kind}", *(_rebalances_of_kind(outcome, kind) for outcome in outcomes)] for kind in kinds),
        [generations, *(outcome.generations for outcome in outcomes)],
        ["group not Stable", *(duration_text(outcome.not_stable_ms) for outcome in outcomes)],
        ["clients stood still", *(duration_text(outcome.stood_still_ms) for outcome in outcomes)],
        *(
            [f"  {client}", *(duration_text(o.by_client.get(client, 0)) for o in outcomes)]
            for client in outcomes[0].by_client
        ),
        [f"{unit}s stood still", *(f"{o.partition_ms / 1000:.1f} {unit}-s" for o in outcomes)],
        ["  one, at the longest", *(duration_text(outcome.longest_ms) for outcome in outcomes)],
        [f"{unit}s moved", *(outcome.moved for outcome in outcomes)],
    ]
    if protocol == CLASSIC:
        rows.append(["  needlessly", *(outcome.needless for outcome in outcomes)])
    elif protocol == STREAMS:
        rows.append(["  without a copy of their state", *(outcome.without_copy for outcome in outcomes)])
    names = [outcomes[0].name, *(f"try {number}" for number in range(1, len(outcomes)))]
    return render_table([Column("", 0), *(Column(name, 0) for name in names)], rows)


def _rebalances_of_kind(outcome: RunFigures, kind: str) -> int:
    return sum(cause.rebalances for cause in outcome.causes if cause.kind == kind)


def _pairs_text(pairs: Sequence[RebalancePair], clock: Clock) -> VisibleText:
    """Return the first pairs as a table."""
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
    hidden_line = [f"({hidden} more are not shown)"] if hidden else []
    return visible_text([render_table([Column(heading, 0) for heading in headings], rows), *hidden_line])


def _refusal(validation: Validation) -> VisibleText:
    """Return the objections, which replace a comparison."""
    title = "The model does not reproduce what happened, so a comparison would be worth nothing:"
    return visible_text([title, *(f"- {objection}" for objection in validation.objections)])
