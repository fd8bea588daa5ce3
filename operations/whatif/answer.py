"""The answer to a what-if: what happened, whether the closed loop reproduces it, and what would have happened
under other settings.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from msgspec.structs import replace

from kafka_why.contract.kafka.requests import AnyRequest, LeaveGroup
from operations.whatif.changes import UNCHANGED, Changes
from operations.whatif.client import SimulatedClient
from operations.whatif.clients import derive
from operations.whatif.facts import ClientFleet, LogMoment, SentRequest
from operations.whatif.figures import MeasuredRun, measure
from operations.whatif.run import GroupLog, Run, RunStep, SimulatedCoordinator
from operations.whatif.validation import Validation, validate
from state.timeline import Row

# The closed loop: the recorded clients and the core, an event at a time, in the order of time.


Action = Callable[[LogMoment, str], None]


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
        self._numbers = count()
        self._own_ids = count()
        self._senders: dict[str, SimulatedClient] = {}
        self._clients = {
            process.key: SimulatedClient(process, fleet, changes, self) for process in fleet.processes
        }

    def run(self) -> Run:
        for sent in self._fleet.outside:
            self.at(sent.moment, sent.request_id, self._outside(sent))
        for client in self._clients.values():
            client.begin()
        while self._turn():
            pass
        self._deliver(self._coordinator.fire_until(self._log.until_ms))
        senders = {request_id: client.key for request_id, client in self._senders.items()}
        return Run(self._log.group_id, self._coordinator.steps, self._log.until_ms, senders)

    def at(self, moment: LogMoment, request_id: str, action: Action) -> None:
        """Schedule an action. `request_id` is that of the same request in the recorded log, or "" if there is
        none.
        """
        heapq.heappush(self._agenda, (moment, next(self._numbers), request_id, action))

    def send(self, client: SimulatedClient, moment: LogMoment, request_id: str, request: AnyRequest) -> None:
        """Append a client's request to the log, under its id in the recorded log if that is free."""
        while not request_id or request_id in self._senders:
            request_id = f"whatif-0-{next(self._own_ids)}"
        self._senders[request_id] = client
        self._deliver(self._coordinator.apply(Row(moment.at_ms, request_id, request)))

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

    def _outside(self, sent: SentRequest) -> Action:
        def apply(moment: LogMoment, request_id: str) -> None:
            request = sent.request
            if isinstance(request, LeaveGroup):
                request = self._removal(request_id, request)
            self._deliver(self._coordinator.apply(Row(moment.at_ms, request_id, request)))

        return apply

    def _removal(self, request_id: str, request: LeaveGroup) -> LeaveGroup:
        """Return a removal of the same processes' members, which have other member ids in the simulation."""
        whose = self._fleet.removals.get(request_id, ())
        members = [
            leaving if key is None else replace(leaving, member_id=self._clients[key].member_id)
            for leaving, key in zip(request.members, whose, strict=True)
        ]
        return replace(request, members=members)


RECORDED = "as it was"


@dataclass(frozen=True)
class WhatIfAnswer:
    """The answer. If the validation has objections, `tried` is empty, because a comparison is worthless."""

    log: GroupLog
    fleet: ClientFleet
    recorded: MeasuredRun
    validation: Validation
    tried: Sequence[MeasuredRun]


def answer(log: GroupLog, experiments: Sequence[Changes]) -> WhatIfAnswer:
    """Find the clients in the log, run them as they were, and then under each experiment's settings.

    Raises WhatIfError if the group cannot be simulated.
    """
    for changes in experiments:
        changes.configs(log.configs)
    fleet, run = derive(log)
    recorded = measure(RECORDED, fleet, run)
    again = measure(UNCHANGED.name, fleet, simulate(fleet, log, UNCHANGED))
    validation = validate(recorded, again)
    tried = (
        []
        if validation.objections
        else [measure(changes.name, fleet, simulate(fleet, log, changes)) for changes in experiments]
    )
    return WhatIfAnswer(log, fleet, recorded, validation, tried)
