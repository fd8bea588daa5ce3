"""A simulated process: the parts that do not depend on the group's protocol.

At the time a simulated reaction begins, the process may have been waiting to react in the log. Then the
reaction ends at the end of that wait. Any other reaction takes the process's usual time, and is postponed
while the process is paused.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from clients.coordinator_client import Header
from kafka_why.contract.kafka.requests import AnyAnswered, AnyRequest
from kafka_why.contract.kafka.responses import AnyResponse
from operations.whatif.changes import Changes
from operations.whatif.facts import ClientProcess, LogMoment, Reaction, TimeSpan

Action = Callable[[LogMoment, str], None]


class SimulationEnvironment(Protocol):
    """The environment of a client, which runs its actions at their times, and sends its requests."""

    def at(self, moment: LogMoment, request_id: str, action: Action) -> None: ...
    def send(
        self, client: "SimulatedProcess", moment: LogMoment, request_id: str, request: AnyRequest
    ) -> None: ...


@dataclass(slots=True)
class SeenReactions:
    """The reactions of one kind that the log shows, in order. Each is used once."""

    seen: Sequence[Reaction]
    first: int = 0  # the first that is not used

    def at(self, at_ms: int) -> int | None:
        """Return the number of the reaction that was in progress in the log at this time, or None."""
        for number in range(self.first, len(self.seen)):
            reaction = self.seen[number]
            if reaction.from_ms > at_ms:
                return None
            if reaction.to.at_ms > at_ms or reaction.from_ms == at_ms:
                return number
            self.first = number + 1
        return None


class SimulatedProcess(ABC):
    """A simulated process in the closed loop. `member_id` is "" while it has none."""

    def __init__(self, process: ClientProcess, changes: Changes, environment: SimulationEnvironment) -> None:
        self.key = process.key
        self.member_id = ""
        self._changes = changes
        self._environment = environment
        self._over = False
        self._plans = 0
        self._ends = process.ends

    @abstractmethod
    def begin(self) -> None:
        """Plan what the process does at fixed times."""

    @abstractmethod
    def on_response(self, at_ms: int, response: AnyResponse) -> None:
        """Handle the response to one of the client's requests."""

    def _new_plan(self) -> int:
        self._plans += 1
        return self._plans

    def _react(
        self,
        reactions: SeenReactions | None,
        usual_ms: int | None,
        silent: Sequence[TimeSpan],
        at_ms: int,
        action: Action,
        is_valid: Callable[[], bool],
    ) -> None:
        """Schedule a reaction to a current event. It is dropped if it is no longer valid at its time.

        `reactions` are those of its kind in the log, or None if they do not count. Otherwise it takes
        `usual_ms`, outside the times in `silent`, or does not happen if `usual_ms` is None.
        """
        number = None if reactions is None else reactions.at(at_ms)

        def act(moment: LogMoment, request_id: str) -> None:
            if not is_valid() or self._is_over(moment):
                return
            if number is not None and reactions is not None:
                reactions.first = number + 1
            action(moment, request_id)

        if number is not None and reactions is not None:
            self._environment.at(reactions.seen[number].to, reactions.seen[number].request_id, act)
            return
        when_ms = None if usual_ms is None else _postponed(at_ms + usual_ms, silent)
        if when_ms is not None:
            self._environment.at(LogMoment(when_ms), "", act)

    def _is_over(self, moment: LogMoment) -> bool:
        """Return True if the process no longer runs."""
        return self._over or (self._ends is not None and moment > self._ends)


def header_of(recorded: AnyAnswered, api_version: int) -> Header:
    """Return the fields that all requests of the sender of `recorded` have."""
    return {
        "group_id": recorded.group_id,
        "correlation_id": recorded.correlation_id,
        "reply_partition": recorded.reply_partition,
        "api_version": api_version,
        "client_id": recorded.client_id,
        "client_host": recorded.client_host,
    }


def _postponed(at_ms: int, spans: Sequence[TimeSpan]) -> int | None:
    """Return the first time from `at_ms` on that is in none of the spans, or None if such a span does not
    end.
    """
    for span in sorted(spans, key=lambda span: span.from_ms):
        if span.holds(at_ms):
            if span.to_ms is None:
                return None
            at_ms = span.to_ms
    return at_ms
