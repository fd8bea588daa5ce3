"""A run of one group through the core: each step with its time.

The open loop applies the rows of a log as they are. The closed loop (`operations.whatif.answer`) makes
its rows itself, from the answers to earlier ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.requests import AnyRequest as KafkaRequest
from kafka_why.escaping import visible, visible_text
from state.config import Configs, CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.inputs import Outage
from state.kafka.context import Effects
from state.timeline import Row, Timeline

_KAFKA_REQUESTS = get_args(KafkaRequest)


class WhatIfError(ValueError):
    """The question has no answer; the message says why."""


@dataclass(frozen=True)
class GroupLog:
    """A group's requests in the order of the log, from the group's first on, and their circumstances.

    `until_ms` is the time until which the deadlines fired. `outages` are sorted by time.
    """

    group_id: str
    rows: Sequence[Row]
    configs: Configs
    until_ms: int
    outages: Sequence[Outage] = ()


class RunStep(NamedTuple):
    """A step of the group: its time, its request or deadline, and its effects."""

    at_ms: int
    event: AnyEvent
    effects: Effects


@dataclass(frozen=True)
class Run:
    """The steps of a group until a time. `senders` has the process (`operations.whatif.facts.Process.key`)
    that sent a request, by the request's id.
    """

    group_id: str
    steps: Sequence[RunStep]
    until_ms: int
    senders: dict[str, str] = field(default_factory=dict)

    def history(self) -> list[HistoryEntry]:
        """Return the history entries in order."""
        return [entry for step in self.steps for entry in step.effects.history]


class SimulatedCoordinator:
    """The core with one group, from before the group's first request on.

    `steps` are all steps so far. Methods return the new ones, and raise WhatIfError if a step raised or the
    group is not one of Kafka's protocol.
    """

    def __init__(self, group_id: str, configs: Configs, outages: Sequence[Outage] = ()) -> None:
        self.steps: list[RunStep] = []
        self._timeline = Timeline(
            group_id, None, configs.first, step=self._step, outages=outages, changes=configs.changes
        )

    def apply(self, row: Row) -> list[RunStep]:
        """Apply a row; the deadlines that are due at its time fire first."""
        if not isinstance(row.request, _KAFKA_REQUESTS):
            raise WhatIfError(
                f"{row.request_id} is a request of RocketMQ: its clients divide the queues by their own "
                "timers, which no log has, so what-if is for Kafka's groups only"
            )
        before = len(self.steps)
        self._timeline.apply(row)
        return self._since(before)

    def fire_until(self, until_ms: int) -> list[RunStep]:
        """Fire the deadlines that are due at `until_ms`."""
        before = len(self.steps)
        self._timeline.fire_until(until_ms)
        return self._since(before)

    def next_due_ms(self) -> int | None:
        """Return the time at which the next deadline fires unless a request comes before."""
        return self._timeline.next_due_ms()

    def _since(self, before: int) -> list[RunStep]:
        self._timeline.drain_effects()
        for fault in self._timeline.faults:
            head = visible(f"the coordinator's handling of {fault.cause} fails:")
            raise WhatIfError(visible_text([head, *fault.traceback.split("\n")]))
        return self.steps[before:]

    def _step(
        self, group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        effects = step(group, group_id, event, now_ms, config)
        assert isinstance(effects, Effects), "apply refuses other requests"
        self.steps.append(RunStep(now_ms, event, effects))
        return effects


def open_loop(log: GroupLog) -> Run:
    """Apply the log as it is. Raises WhatIfError."""
    coordinator = SimulatedCoordinator(log.group_id, log.configs, log.outages)
    for row in log.rows:
        coordinator.apply(row)
    coordinator.fire_until(log.until_ms)
    return Run(log.group_id, coordinator.steps, log.until_ms)
