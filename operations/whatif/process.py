"""A simulated process: the parts that do not depend on the group's protocol.

An event may occur in the simulation at a time when, in the log, the process was waiting to react to an event
of the same kind. Then it reacts at the same time as in the log. Otherwise it reacts after its usual time, but
not while it is paused.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from clients.coordinator_client import Header
from kafka_why.contract.kafka.requests import AnyAnsweredRequest, AnyRequest
from kafka_why.contract.kafka.responses import AnyResponse
from operations.whatif.changes import Changes
from operations.whatif.facts import ClientProcess, LogMoment, Reaction, SentRequest, TimeSpan

Action = Callable[[LogMoment, str], None]
"""An action of a client, called with its moment and the id of the same request in the recorded log, or ""."""


class SimulationEnvironment(Protocol):
    """The environment of a client. It runs the client's actions at their times, and sends its requests.

    `request_id` is the id of the same request in the recorded log, or "" if there is none.
    """

    def schedule(self, moment: LogMoment, request_id: str, action: Action) -> None: ...
    def send(
        self, client: "SimulatedProcess[Any]", moment: LogMoment, request_id: str, request: AnyRequest
    ) -> None: ...


@dataclass(slots=True)
class SeenReactions:
    """The reactions of one kind that the log shows, in order. A simulation uses each of them once."""

    reactions: Sequence[Reaction]
    first_unused: int = 0  # number of the first reaction that may still be used

    def in_progress_at(self, at_ms: int) -> int | None:
        """Return the number of the unused reaction that was in progress in the log at this time, or None.

        A reaction is in progress from its event to its request.
        """
        for number in range(self.first_unused, len(self.reactions)):
            reaction = self.reactions[number]
            if reaction.from_ms > at_ms:
                return None
            if reaction.to.at_ms > at_ms or reaction.from_ms == at_ms:
                return number
            self.first_unused = number + 1
        return None


P = TypeVar("P", bound=ClientProcess)


class SimulatedProcess(ABC, Generic[P]):
    """A simulated process in the closed loop. `member_id` is "" while it has none."""

    def __init__(self, process: P, changes: Changes, environment: SimulationEnvironment) -> None:
        self.key = process.key
        self.member_id = ""
        self._process = process
        self._changes = changes
        self._environment = environment
        self._has_stopped = False  # it has left or given up
        # A scheduled action cannot be cancelled. So each plan is an object, and an action does nothing if its
        # plan is no longer the current one of its kind. None: there is no current plan.
        self._heartbeat_plan: object | None = None  # to send the next heartbeat

    def begin(self) -> None:
        """Plan what the process does at fixed times."""
        process = self._process
        for join in (process.starts, *process.rejoins):
            self._schedule(join, self._join)
        for commit in process.commits:
            self._schedule(commit, partial(self._commit, commit))
        if process.leave is not None:
            self._schedule(process.leave, partial(self._leave, process.leave))

    def _schedule(self, sent: SentRequest, action: Action) -> None:
        """Schedule an action at the time of a request in the log."""
        self._environment.schedule(sent.moment, sent.request_id, action)

    @abstractmethod
    def _join(self, moment: LogMoment, request_id: str) -> None:
        """Join, at the start or by the process's own decision."""

    @abstractmethod
    def _commit(self, sent: SentRequest, moment: LogMoment, request_id: str) -> None:
        """Commit as in the log, if the process can commit at this time."""

    @abstractmethod
    def _leave(self, sent: SentRequest, moment: LogMoment, request_id: str) -> None:
        """Stop, and leave as in the log."""

    @abstractmethod
    def on_response(self, at_ms: int, response: AnyResponse) -> None:
        """Handle the response to one of the client's requests."""

    def _schedule_reaction(
        self,
        seen: SeenReactions | None,
        usual_ms: int | None,
        silent_spans: Sequence[TimeSpan],
        at_ms: int,
        action: Action,
        is_valid: Callable[[], bool],
    ) -> None:
        """Schedule a reaction to an event at `at_ms`. It is dropped if it is no longer valid at its time.

        `seen` are the reactions of its kind in the log, or None if they do not count. If none of them was in
        progress at `at_ms`, the process reacts after `usual_ms`, or never if that is None. It does not react
        in `silent_spans`: then it reacts at the end of the span, if the span has one.
        """
        number = None if seen is None else seen.in_progress_at(at_ms)

        def act(moment: LogMoment, request_id: str) -> None:
            if not is_valid() or self._is_over(moment):
                return
            if number is not None and seen is not None:
                seen.first_unused = number + 1
            action(moment, request_id)

        if number is not None and seen is not None:
            reaction = seen.reactions[number]
            self._environment.schedule(reaction.to, reaction.request_id, act)
            return
        react_at_ms = None if usual_ms is None else _first_time_outside(silent_spans, at_ms + usual_ms)
        if react_at_ms is not None:
            self._environment.schedule(LogMoment(react_at_ms), "", act)

    def _is_over(self, moment: LogMoment) -> bool:
        """Return True if the process no longer runs at this moment."""
        ends = self._process.ends
        return self._has_stopped or (ends is not None and moment > ends)


def header_of(recorded: AnyAnsweredRequest, api_version: int) -> Header:
    """Return the fields that all requests of the sender of `recorded` have."""
    return {
        "group_id": recorded.group_id,
        "correlation_id": recorded.correlation_id,
        "reply_partition": recorded.reply_partition,
        "api_version": api_version,
        "client_id": recorded.client_id,
        "client_host": recorded.client_host,
    }


def _first_time_outside(spans: Sequence[TimeSpan], at_ms: int) -> int | None:
    """Return the first time from `at_ms` on that is in none of the spans, or None if a span that holds it
    does not end.
    """
    for span in sorted(spans, key=lambda span: span.from_ms):
        if span.holds(at_ms):
            if span.to_ms is None:
                return None
            at_ms = span.to_ms
    return at_ms
