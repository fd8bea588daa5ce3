"""A run of one group through the core, the coordinator's group logic: its log from a recording, and each step
with its time.

The open loop applies the requests of a log as they are. In the closed loop (`operations.whatif.text`),
simulated clients send requests in reaction to the answers to earlier ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, get_args

from kafka_why.contract.kafka.history import CLASSIC, CONSUMER, SHARE, STREAMS, HistoryEntry
from kafka_why.contract.kafka.requests import AnyRequest as KafkaRequest
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat
from kafka_why.errors import UserFacingError
from kafka_why.wording import visible, visible_text
from operations.replay.recording import ClockLine, Recording
from operations.replay.replay import Replay
from operations.replay.topic_contents import TopicContents, find_starts
from state.config import Configs, CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.kafka.context import Effects
from state.protocol import Outage, Received
from state.timeline import Row, Timeline

_KAFKA_REQUESTS = get_args(KafkaRequest)

PROTOCOLS: Final[Mapping[type, str]] = {
    ConsumerGroupHeartbeat: CONSUMER,
    ShareGroupHeartbeat: SHARE,
    StreamsGroupHeartbeat: STREAMS,
}
"""The protocols whose members send only heartbeats, by their request."""


class WhatIfError(UserFacingError, ValueError):
    """The error of a what-if that has no answer. Its message says why."""


@dataclass(frozen=True)
class GroupLog:
    """A group's requests in the order of the log, from its first one on, with the coordinator's
    configurations and outages, the times without a coordinator.

    Deadlines until `until_ms` belong to the log. `outages` are sorted by time.
    """

    group_id: str
    rows: Sequence[Row]  # the requests
    configs: Configs
    until_ms: int
    outages: Sequence[Outage] = ()

    @property
    def protocol(self) -> str:
        """The `group_type` of the first heartbeat in `PROTOCOLS`, or CLASSIC if the log has none."""
        protocols = (PROTOCOLS.get(type(row.request)) for row in self.rows)
        return next((protocol for protocol in protocols if protocol is not None), CLASSIC)


class RunStep(NamedTuple):
    """A step of the group: its time, its request or deadline, and its effects."""

    at_ms: int
    event: AnyEvent
    effects: Effects


@dataclass(frozen=True)
class Run:
    """The steps of a group until a time. `senders` has the key of the process
    (`operations.whatif.facts.ClientProcess`) that sent a request, by the request's id.
    """

    group_id: str
    steps: Sequence[RunStep]
    until_ms: int
    senders: dict[str, str] = field(default_factory=dict)

    def history(self) -> list[HistoryEntry]:
        """Return the history entries in order."""
        return [entry for step in self.steps for entry in step.effects.history]


class SimulatedCoordinator:
    """The core with one group. The group does not exist at first.

    `steps` are all steps so far. Methods return the new steps. They raise WhatIfError if a step raised an
    exception, or if the group is not a group of Kafka's protocols.
    """

    def __init__(self, group_id: str, configs: Configs, outages: Sequence[Outage] = ()) -> None:
        self.steps: list[RunStep] = []
        self.timeline = Timeline(
            group_id,
            group=None,
            config=configs.first,
            step=self._step,
            outages=outages,
            changes=configs.changes,
        )

    def apply(self, row: Row) -> list[RunStep]:
        """Apply a request of the log. The deadlines that are due at its time fire first."""
        if not isinstance(row.request, _KAFKA_REQUESTS):
            raise WhatIfError(
                f"{row.request_id} is a request of RocketMQ: its clients divide the queues by their own "
                "timers, which no log has, so what-if is for Kafka's groups only"
            )
        steps_before = len(self.steps)
        self.timeline.apply(row)
        return self._steps_after(steps_before)

    def fire_until(self, until_ms: int) -> list[RunStep]:
        """Fire the deadlines that are due at `until_ms`."""
        steps_before = len(self.steps)
        self.timeline.fire_until(until_ms)
        return self._steps_after(steps_before)

    def _steps_after(self, number: int) -> list[RunStep]:
        """Return the steps after the first `number` ones. Raise WhatIfError if one of them failed."""
        self.timeline.drain_effects()  # which `steps` has already
        for fault in self.timeline.faults:
            headline = visible(f"the coordinator's handling of {fault.cause} fails:")
            raise WhatIfError(visible_text([headline, *fault.traceback.split("\n")]))
        return self.steps[number:]

    def _step(
        self, group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        """Run a step for the timeline, and record it."""
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


def log_of(recording: Recording, group_id: str) -> GroupLog:
    """Return the group's requests, from the request that created it on. Raises WhatIfError.

    Requests that the coordinator refused unread are left out.
    """
    if any(state.group_id == group_id for state in recording.states()):
        raise WhatIfError(
            f"the recording begins while group {group_id} already exists; what-if needs the log from the "
            "group's first request on, because it finds the clients in it"
        )
    start = find_starts(recording, TopicContents.of(recording.outputs())).get(group_id)
    if start is not None and start.is_cut and start.request is None:
        raise WhatIfError(
            f"the beginning of the log of group {group_id} is gone, and the group was not created anew "
            "since; what-if needs the log from the group's first request on"
        )
    first = {group_id: start.request} if start is not None and start.is_cut else None
    steps = Replay[None](recording, lambda _: None, groups={group_id}, first=first).steps()
    rows = [
        Row(step.message.row.at_ms, step.event.request_id, step.event.request)
        for step in steps
        if isinstance(step.event, Received) and step.message is not None
    ]
    if not rows:
        raise WhatIfError(f"the log has no request of group {group_id}")
    clock_ms = max((line.time_ms for line in recording.log() if isinstance(line, ClockLine)), default=0)
    header = recording.header
    end_ms = clock_ms if header.until_ms is None else min(clock_ms, header.until_ms - 1)
    return GroupLog(
        group_id=group_id,
        rows=rows,
        configs=header.configs,
        until_ms=max(end_ms, rows[-1].at_ms),
        outages=[known_outage.outage for known_outage in header.outages],
    )
