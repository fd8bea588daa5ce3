"""The verdict on a recording: its log is replayed, and the topics are compared with the outcome
byte by byte.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kafka_why.contract.codec import Refusal
from operations.replay.collect import SelectedGroups
from operations.replay.group_run import ReplayStep, SentRecord
from operations.replay.recording import Recording
from operations.replay.replay import Replay, Until
from operations.replay.text import ComparedCounts, DifferenceKind, ReplayDifference, ReplayVerdict
from operations.replay.topic_contents import (
    AnswerName,
    EventName,
    LetterName,
    RecordCopy,
    RecordKind,
    TopicContents,
    answer_name,
    event_fields,
    group_named_in,
    is_determined_by_log,
    is_recorded,
    letter_name,
    position_of,
    starts_of,
)
from records.truncation import encode_view
from state.dispatch import AnyGroup, step, view_of
from state.kafka.classic_group import ClassicGroup
from state.timeline import StepFunction

# The clocks of the brokers that stamp requests and outputs may differ by this much.
CLOCK_SKEW_MS = 10_000
DIFFERENCES_KEPT = 20

# The end of the text of a deadline or a scan.
_DUE = re.compile(r" at (\d+)$")

N = TypeVar("N", bound=AnswerName | EventName | LetterName)


def judge(
    recording: Recording,
    until: Until | None = None,
    *,
    groups: set[str] | None = None,
    step: StepFunction = step,
) -> ReplayVerdict:
    """Replay groups of a recording (None: all), and compare the outcome with the records on the topics.

    With `until`, only the outcome of the log until then is compared.
    """
    return _Judge(
        SelectedGroups(recording, groups) if groups is not None else recording, until, step
    ).verdict()


@dataclass
class _Judge:
    recording: Recording
    until: Until | None
    step: StepFunction
    groups: dict[str, ComparedCounts] = field(default_factory=lambda: defaultdict(ComparedCounts))
    differences: list[ReplayDifference] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)
    unjudged: int = 0
    skipped: int = 0
    # The last number (`RecordCopy.number`) that was compared of each group and partition.
    _last: dict[tuple[RecordKind, str, int], int] = field(default_factory=dict)
    _handled: dict[str, EventName] = field(default_factory=dict)
    _repeated: set[tuple[object, bytes]] = field(default_factory=set)

    def verdict(self) -> ReplayVerdict:
        self.header = self.recording.header
        self.layout = self.header.layout
        self.found = found = TopicContents.of(self.recording.outputs())
        self.starts = starts_of(self.recording, found)
        for broken in found.unreadable:
            self._differ(RecordKind.ANSWER, DifferenceKind.UNREADABLE, "", type(broken).__name__)
        for name, first, second in found.contradictions:
            group_id = _group(name, first.value)
            self._differ(
                _what(name), DifferenceKind.TWICE, group_id, name, expected=first.value, found=second
            )
        cut = {group_id: start.request for group_id, start in self.starts.items() if start.is_cut}
        replay = Replay(self.recording, self._compare_views, late=found.late, first=cut, step=self.step)
        for entry in replay.entries():
            self._compare(entry)
        self._open = _parked_in(replay.groups.values()) if self.header.until_ms is not None else set()
        self._compare_rest()
        self._compare_last_views(replay.groups)
        return ReplayVerdict(
            groups=dict(self.groups),
            starts=self.starts,
            differences=self.differences,
            count=self.by_kind.total(),
            by_kind=dict(self.by_kind),
            duplicates=found.duplicates,
            late=len(found.late),
            unjudged=self.unjudged,
            skipped=self.skipped,
        )

    def _compare_views(self, group: AnyGroup | None) -> EventName | None:
        if group is None:
            return None
        name = EventName(group.group_id, group.incarnation, group.seq)
        waiting = self.found.views.get(name)
        if waiting and any(event_fields(copy.value).at_ms == group.clock_ms for copy in waiting):
            value = encode_view(view_of(group), self.layout.view_max_bytes)
            left = [copy for copy in waiting if copy.value != value]
            self.groups[group.group_id].views += len(waiting) - len(left)
            self.found.views[name] = left
        return name

    def _compare(self, entry: ReplayStep[EventName]) -> None:
        counts = self.groups[entry.group_id]
        counts.entries += 1
        if entry.is_handled and entry.kept is not None:
            self._handled[entry.group_id] = entry.kept
        elif entry.is_handled and not isinstance(entry.event, Refusal):
            self._handled.pop(entry.group_id, None)
        for sent in entry.sent:
            name = answer_name(sent.value)
            self._compare_early(name, sent, entry)
            counts.answers += self._match(self.found.answers, name, sent.value, entry, sent.reply_partition)
        for record in entry.history:
            event = EventName(record.entry.group_id, record.entry.incarnation, record.entry.seq)
            counts.history += self._match(self.found.events, event, record.value, entry)
        for letter in entry.letters:
            counts.letters += self._match(self.found.letters, letter_name(letter), letter, entry)

    def _compare_early(self, name: AnswerName, sent: SentRecord, entry: ReplayStep[EventName]) -> None:
        """Compare the early answers of replicas, which are optional because a replica may be silent."""
        for copy in self.found.early.pop(name, ()):
            if not self._is_compared(entry):
                continue
            self.groups[entry.group_id].early += 1
            if (copy.partition, copy.value) != (sent.reply_partition, sent.value):
                how = DifferenceKind.CHANGED if copy.value != sent.value else DifferenceKind.MISPLACED
                self._differ(RecordKind.EARLY, how, entry.group_id, name, entry, sent.value, copy)

    def _match(
        self,
        names: dict[N, RecordCopy],
        name: N,
        value: bytes,
        entry: ReplayStep[Any],
        partition: int | None = None,
    ) -> bool:
        """Compare an expected record with the one of this name on the topics, and remove that from `names`.

        Return True if there was such a record and it was compared.
        """
        what, group_id = _what(name), entry.group_id
        repeatable = _repeatable(name, value)
        if repeatable in self._repeated:
            return False
        copy = names.pop(name, None)
        if not self._is_compared(entry):
            return False
        if copy is None:
            self._miss(what, name, value, entry, partition)
            return False
        if repeatable is not None:
            self._repeated.add(repeatable)
        if partition is not None and copy.partition != partition:
            self._differ(what, DifferenceKind.MISPLACED, group_id, name, entry, value, copy)
        elif copy.value != value and is_determined_by_log(name):
            self._differ(what, DifferenceKind.CHANGED, group_id, name, entry, value, copy)
        elif copy.number < self._last.get(lane := (what, group_id, copy.partition), -1):
            self._differ(what, DifferenceKind.OUT_OF_ORDER, group_id, name, entry, value, copy)
        else:
            self._last[lane] = copy.number
        return True

    def _miss(
        self, what: RecordKind, name: object, value: bytes, entry: ReplayStep[Any], partition: int | None
    ) -> None:
        if not entry.is_handled:
            self.groups[entry.group_id].open += 1
        # The topic need not have the record any longer.
        elif self._is_gone(what, entry.at_ms, partition):
            self.groups[entry.group_id].gone += 1
        else:
            self._differ(what, DifferenceKind.MISSING, entry.group_id, name, entry, value)

    def _is_compared(self, entry: ReplayStep[Any]) -> bool:
        until = self.until
        if until is None:
            return True
        if until.time_ms is not None and entry.at_ms > until.time_ms:
            return False
        return until.offset is None or (entry.message is not None and until.includes(entry.message))

    def _is_gone(self, what: RecordKind, at_ms: int, partition: int | None) -> bool:
        """Return True if retention may have deleted a record of `at_ms` or later."""
        topic = {
            RecordKind.ANSWER: self.layout.responses_topic,
            RecordKind.HISTORY: self.layout.events_topic,
            RecordKind.LETTER: self.layout.dead_letters_topic,
        }[what]
        kept_ms = self.header.kept_since_ms.get(topic, {})
        since = kept_ms.values() if partition is None else [kept_ms.get(partition, 0)]
        return at_ms < max(since, default=0) + CLOCK_SKEW_MS if any(since) else False

    def _compare_rest(self) -> None:
        found = self.found
        for answer, copy in found.answers.items():
            self._unexpected(RecordKind.ANSWER, answer, copy, self._is_judged(answer.request, copy.value))
        skipped = set(self.header.epochs[-1].skip)
        for answer, copies in found.early.items():
            # A replica may have answered it before somebody decided to skip it.
            if not skipped.isdisjoint((answer.request, answer.request.partition("#")[0])):
                self.skipped += len(copies)
                continue
            for copy in copies:
                self._unexpected(RecordKind.EARLY, answer, copy, self._is_judged(answer.request, copy.value))
        for event, copy in found.events.items():
            self._unexpected(RecordKind.HISTORY, event, copy, self._is_event_judged(event, copy))
        for letter, copy in found.letters.items():
            self._unexpected(RecordKind.LETTER, letter, copy, self._is_judged(letter.subject, copy.value))
        for view, copies in found.views.items():
            for copy in copies:
                self._unexpected(RecordKind.VIEW, view, copy, self._is_event_judged(view, copy))

    def _unexpected(self, what: RecordKind, name: Any, copy: RecordCopy, is_judged: bool) -> None:
        if not is_judged:
            self.unjudged += 1
            return
        self._differ(what, DifferenceKind.UNEXPECTED, _group(name, copy.value), name, found=copy)

    def _is_judged(self, request: str, value: bytes) -> bool:
        """Return True if an answer or dead letter is of a request that the replay judges."""
        start = self.starts.get(group_named_in(value))
        place = position_of(request, self.header)
        if place is None:  # a deadline, a scan, or a request of another topic
            due = _DUE.search(request)
            until_ms = sys.maxsize if self.header.until_ms is None else self.header.until_ms
            return start is None and due is not None and int(due[1]) < until_ms
        is_known = is_recorded(place, self.header) and request not in self._open
        return is_known and (start is None or start.has(place))

    def _is_event_judged(self, event: EventName, copy: RecordCopy) -> bool:
        until_ms = self.header.until_ms
        if until_ms is not None and event_fields(copy.value).at_ms >= until_ms:
            return False
        start = self.starts.get(event.group_id)
        if start is not None and start.incarnation == event.incarnation:
            return event.seq > start.seq
        place = position_of(event.incarnation, self.header)
        return place is not None and is_recorded(place, self.header) and (start is None or start.has(place))

    def _compare_last_views(self, groups: dict[str, AnyGroup]) -> None:
        """Report each group whose last view is older than the last committed batch."""
        if self.until is not None or self.header.until_ms is not None:
            return
        for group_id, handled in self._handled.items():
            last = self.found.last_views.get(group_id)
            # After the end of a log that was cut, or in the same batch.
            is_ended = last is None and group_id in self.found.last_views and group_id not in groups
            is_other = last is not None and last.incarnation != handled.incarnation
            if not (is_ended or is_other or (last is not None and last.seq >= handled.seq)):
                self._differ(RecordKind.VIEW, DifferenceKind.MISSING, group_id, handled)

    def _differ(
        self,
        what: RecordKind,
        how: DifferenceKind,
        group_id: str,
        name: object,
        entry: ReplayStep[Any] | None = None,
        expected: bytes | None = None,
        found: RecordCopy | None = None,
    ) -> None:
        self.by_kind[f"{what} {how.partition(':')[0]}"] += 1
        if len(self.differences) < DIFFERENCES_KEPT:
            self.differences.append(
                ReplayDifference(
                    what=what,
                    how=how,
                    group_id=group_id,
                    name=str(name),
                    entry=None if entry is None else _cause(entry),
                    expected=None if expected is None else expected.decode(errors="replace"),
                    found=None if found is None else found.value.decode(errors="replace"),
                    place=None if found is None else f"{found.partition}-{found.offset}",
                )
            )


def _repeatable(name: object, value: bytes) -> tuple[object, bytes] | None:
    """Return the identity of a record that may occur several times, or None.

    One request may cause the same message to a connection several times. A deadline may fail again after its
    group was released.
    """
    if isinstance(name, AnswerName) and name.connection:
        return name, value
    return None if is_determined_by_log(name) else (name, b"")


def _parked_in(groups: Iterable[AnyGroup]) -> set[str]:
    """Return the requests that wait for their answer."""
    return {to.request for group in groups if isinstance(group, ClassicGroup) for to in group.parked()}


def _cause(entry: ReplayStep[Any]) -> str:
    """Return the id of the step's request, or its deadline as text."""
    return entry.request_id or str(getattr(entry.event, "deadline", entry.event))


def _what(name: AnswerName | EventName | LetterName) -> RecordKind:
    if isinstance(name, AnswerName):
        return RecordKind.ANSWER
    return RecordKind.HISTORY if isinstance(name, EventName) else RecordKind.LETTER


def _group(name: AnswerName | EventName | LetterName, value: bytes) -> str:
    return name.group_id if isinstance(name, EventName) else group_named_in(value)
