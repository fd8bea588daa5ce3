"""The entries of a replay as text, and a position among them that moves: next, back, by member."""

from collections import Counter
from collections.abc import Iterator
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
    """A browser of the entries of one group. `at` is the number of the shown entry, from 0."""

    def __init__(self, replayed: Replayed, configs: Configs, clock: Clock) -> None:
        self._replayed = replayed
        self._entries = replayed.entries
        self._configs = configs
        self._clock = clock
        self._names = names_of(replayed.entries)
        self.at = 0

    def __len__(self) -> int:
        return len(self._entries)

    def move(self, by: int) -> None:
        """Go forward or back by a number of entries, at most to the first or the last one."""
        self.at = max(0, min(len(self._entries) - 1, self.at + by))

    def next_history(self, direction: int) -> bool:
        """Go to the next (1) or previous (-1) entry with history. Return True if there is one."""
        return self._go(direction, lambda entry: bool(entry.history))

    def find(self, text: str, direction: int = 1) -> bool:
        """Go to the next or previous entry with this text in a member, request or client."""
        return self._go(direction, lambda entry: text in searchable(entry))

    def _go(self, direction: int, matches: Any) -> bool:
        wanted = range(self.at + direction, len(self._entries) if direction > 0 else -1, direction)
        found = next((number for number in wanted if matches(self._entries[number])), None)
        if found is not None:
            self.at = found
        return found is not None

    def headline(self, number: int) -> str:
        """Return a line such as `03:11:07.120  Heartbeat of worker-1 -> NONE`."""
        entry = self._entries[number]
        answers = ", ".join(_outcomes(entry))
        text = f"{self._clock.time(entry.at_ms)}  {self._names.put_in(what_text(entry))}"
        return f"{text} -> {answers}" if answers else text

    def lines(self, number: int) -> list[str]:
        """Return a step's headline, and a line for each history entry."""
        history = [record.entry.type + ": " + record.entry.reason for record in self._entries[number].history]
        return [self.headline(number), *(INDENT + self._names.put_in(line) for line in history)]

    def detail(self) -> VisibleText:
        """Return the shown entry in full: its request, answers and history."""
        entry = self._entries[self.at]
        lines = self.lines(self.at)
        if entry.message is not None:
            row = entry.message.row
            waited = entry.at_ms - row.at_ms
            how = "appended" if entry.is_own else "fired with the request that was appended"
            late = f", applied {duration_text(waited)} later" if entry.is_own and waited > 0 else ""
            lines += ["", f"{how} at {self._clock.time(row.at_ms)}: {entry.message.id}{late}"]
        if isinstance(entry.event, Received | Failed):
            lines += [INDENT + line for line in fields_text(msgspec.to_builtins(entry.event.request))]
        for value in _answers(entry):
            lines += ["", f"answer to {value.get('request', '-')}: {_outcome(value)}"]
            lines += [INDENT + line for line in fields_text(value)]
        return visible_text(map(self._names.put_in, lines))

    def group(self) -> VisibleText:
        """Return the group after the entry that is shown."""
        entry = self._entries[self.at]
        until = Replayed(
            self._replayed.group_id, self._entries[: self.at + 1], self._replayed.group_after(self.at)
        )
        return moment_text(until, entry.at_ms, self._configs.at(entry.at_ms), self._clock)


def what_text(entry: ReplayStep[Any]) -> str:
    """Return a step's request or deadline as text, such as `JoinGroup of worker-1-4f0c...`."""
    event = entry.event
    if isinstance(event, Refusal):
        return f"refused: {event.reason}: {event.message}"
    if isinstance(event, Quarantine):
        return f"the coordinator failed at {event.deadline}: {event.error}"
    if isinstance(event, Outage):
        return f"takeover after {duration_text(event.length_ms)} without a coordinator"
    if isinstance(event, Received | Failed):
        failed = ", at which the coordinator failed" if isinstance(event, Failed) else ""
        request = event.request
        who = _who(request)
        return f"{type(request).__name__}{f' of {who}' if who else ''}{failed}"
    return str(event).rpartition(" at ")[0]


def _who(request: Any) -> str:
    members = getattr(request, "members", None)
    if members:
        return ", ".join(m.member_id or m.group_instance_id or "" for m in members)
    for name in ("member_id", "client_id", "connection"):
        if named := getattr(request, name, ""):
            return str(named)
    return ""


def _outcomes(entry: ReplayStep[Any]) -> Iterator[str]:
    """Yield `NONE` for the answer to the step's request, and `2 x JoinGroup NONE` for others."""
    others: Counter[str] = Counter()
    for value in _answers(entry):
        if value.get("request") == entry.request_id and "connection" not in value:
            yield _outcome(value).partition(" ")[2]
        else:
            others[_outcome(value)] += 1
    yield from (f"{number} x {outcome}" if number > 1 else outcome for outcome, number in others.items())


def _answers(entry: ReplayStep[Any]) -> Iterator[dict[str, Any]]:
    for sent in entry.sent:
        yield msgspec.json.decode(sent.value)


def _outcome(answer: dict[str, Any]) -> str:
    """Return a text such as `JoinGroup REBALANCE_IN_PROGRESS`, or with RocketMQ's code."""
    kind = str(answer.get("type", "?"))
    if "error_code" in answer:
        code = int(answer["error_code"])
        return f"{kind} {name_of(code) or code}"
    return f"{kind} {answer['code']}" if "code" in answer else kind


def fields_text(fields: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each field about the group. Long values are shortened."""
    for name, value in fields.items():
        if name not in _OMITTED and value not in (None, "", [], {}):
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            more = "..." if len(text) > _MAX_FIELD_CHARS else ""
            yield f"{name}: {text[:_MAX_FIELD_CHARS]}{more}"


def searchable(entry: ReplayStep[Any]) -> str:
    """Return the text that `find` searches: the step, its request and its history."""
    value = entry.message.value.decode(errors="replace") if entry.message is not None and entry.is_own else ""
    history = " ".join(record.value.decode(errors="replace") for record in entry.history)
    return f"{what_text(entry)} {value} {history}"
