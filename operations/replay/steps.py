"""The steps of a replay as text, and a browser that moves from one step to another."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from kafka_why.contract.codec import Refusal
from kafka_why.contract.messages import name_of
from kafka_why.wording import INDENT, Clock, VisibleText, duration_text, visible_text
from operations.replay.group_run import ReplayStep
from operations.replay.moment import moment_text, names_of
from operations.replay.replay import Replayed
from state.config import Configs
from state.protocol import Failed, Outage, Quarantine, Received

# Fields of requests and answers that say nothing about the group.
_OMITTED = frozenset(
    {"type", "version", "group_id", "correlation_id", "reply_partition", "api_version", "request", "rule"}
)
_MAX_FIELD_CHARS = 60


class StepBrowser:
    """A browser of the steps of one group. `at` is the number of the shown step, from 0."""

    def __init__(self, replayed: Replayed, configs: Configs, clock: Clock) -> None:
        self._replayed = replayed
        self._steps = replayed.steps
        self._configs = configs
        self._clock = clock
        self._names = names_of(replayed.steps)
        self.at = 0

    def __len__(self) -> int:
        return len(self._steps)

    def move(self, by: int) -> None:
        """Show another step, this number of steps later or earlier, at most the last or the first one."""
        self.at = max(0, min(len(self._steps) - 1, self.at + by))

    def next_history(self, direction: int) -> bool:
        """Show the next (1) or previous (-1) step with history. Return False if there is none."""
        return self._show_next(direction, lambda step: bool(step.history))

    def find(self, text: str, direction: int = 1) -> bool:
        """Show the next (1) or previous (-1) step whose `searchable` text contains this text. Return False if
        there is none.
        """
        return self._show_next(direction, lambda step: text in searchable(step))

    def _show_next(self, direction: int, matches: Callable[[ReplayStep[Any]], bool]) -> bool:
        """Show the next (1) or previous (-1) step that matches. Return False if there is none."""
        numbers = range(self.at + direction, len(self._steps) if direction > 0 else -1, direction)
        number = next((number for number in numbers if matches(self._steps[number])), None)
        if number is not None:
            self.at = number
        return number is not None

    def headline(self, number: int) -> str:
        """Return a line such as `03:11:07.120  Heartbeat of worker-1 -> NONE`."""
        step = self._steps[number]
        answers = ", ".join(_outcomes(step))
        text = f"{self._clock.time(step.at_ms)}  {self._names.put_in(event_text(step))}"
        return f"{text} -> {answers}" if answers else text

    def lines(self, number: int) -> list[str]:
        """Return a step's headline, and a line for each history entry."""
        history = [record.entry.type + ": " + record.entry.reason for record in self._steps[number].history]
        return [self.headline(number), *(INDENT + self._names.put_in(line) for line in history)]

    def detail(self) -> VisibleText:
        """Return the shown step in full: its request, answers and history."""
        step = self._steps[self.at]
        lines = self.lines(self.at)
        if step.message is not None:
            row = step.message.row
            delay_ms = step.at_ms - row.at_ms
            event = "appended" if step.applies_message else "fired with the request that was appended"
            delay = (
                f", applied {duration_text(delay_ms)} later" if step.applies_message and delay_ms > 0 else ""
            )
            lines += ["", f"{event} at {self._clock.time(row.at_ms)}: {step.message.id}{delay}"]
        if isinstance(step.event, Received | Failed):
            lines += [INDENT + line for line in fields_text(msgspec.to_builtins(step.event.request))]
        for answer in _answers(step):
            lines += ["", f"answer to {answer.get('request', '-')}: {_outcome(answer)}"]
            lines += [INDENT + line for line in fields_text(answer)]
        return visible_text(map(self._names.put_in, lines))

    def group(self) -> VisibleText:
        """Return the group after the shown step, as text."""
        step = self._steps[self.at]
        until_step = Replayed(
            self._replayed.group_id, self._steps[: self.at + 1], self._replayed.group_after(self.at)
        )
        return moment_text(until_step, step.at_ms, self._configs.at(step.at_ms), self._clock)


def event_text(step: ReplayStep[Any]) -> str:
    """Return a step's request or deadline as text, such as `JoinGroup of worker-1-4f0c...`."""
    match step.event:
        case Refusal(reason=reason, message=message):
            return f"refused: {reason}: {message}"
        case Quarantine(deadline=deadline, error=error):
            return f"the coordinator failed at {deadline}: {error}"
        case Outage(length_ms=length_ms):
            return f"takeover after {duration_text(length_ms)} without a coordinator"
        case Received(request=request) | Failed(request=request):
            failure = ", at which the coordinator failed" if isinstance(step.event, Failed) else ""
            sender = _sender(request)
            return f"{type(request).__name__}{f' of {sender}' if sender else ''}{failure}"
        case deadline:
            return str(deadline).rpartition(" at ")[0]  # without its time


def _sender(request: Any) -> str:
    """Return the members that a request names, or its client or connection, or "" if it names none."""
    members = getattr(request, "members", None)
    if members:
        return ", ".join(m.member_id or m.group_instance_id or "" for m in members)
    for name in ("member_id", "client_id", "connection"):
        if value := getattr(request, name, ""):
            return str(value)
    return ""


def _outcomes(step: ReplayStep[Any]) -> Iterator[str]:
    """Yield a text such as `NONE` for the answer to the step's request, and texts such as
    `2 x JoinGroup NONE` for answers to other requests and for messages to connections.
    """
    others: Counter[str] = Counter()
    for answer in _answers(step):
        if answer.get("request") == step.request_id and "connection" not in answer:
            yield _outcome(answer).partition(" ")[2]  # without the type, because it is the request's
        else:
            others[_outcome(answer)] += 1
    yield from (f"{number} x {outcome}" if number > 1 else outcome for outcome, number in others.items())


def _answers(step: ReplayStep[Any]) -> Iterator[dict[str, Any]]:
    """Yield the fields of the answers and messages that a step sends."""
    for sent in step.sent:
        yield msgspec.json.decode(sent.value)


def _outcome(answer: dict[str, Any]) -> str:
    """Return a text such as `JoinGroup REBALANCE_IN_PROGRESS`, or with RocketMQ's code."""
    kind = str(answer.get("type", "?"))
    if "error_code" in answer:
        code = int(answer["error_code"])
        return f"{kind} {name_of(code) or code}"
    return f"{kind} {answer['code']}" if "code" in answer else kind


def fields_text(fields: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each field that is not empty and not in `_OMITTED`. Long values are shortened."""
    for name, value in fields.items():
        if name not in _OMITTED and value not in (None, "", [], {}):
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            ellipsis = "..." if len(text) > _MAX_FIELD_CHARS else ""
            yield f"{name}: {text[:_MAX_FIELD_CHARS]}{ellipsis}"


def searchable(step: ReplayStep[Any]) -> str:
    """Return the text that `find` searches: the step, its request and its history."""
    value = (
        step.message.value.decode(errors="replace")
        if step.message is not None and step.applies_message
        else ""
    )
    history = " ".join(record.value.decode(errors="replace") for record in step.history)
    return f"{event_text(step)} {value} {history}"
