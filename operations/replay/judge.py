"""The verdict on a recording: its log is replayed, and the outcome is compared byte by byte with the records
on the topics.
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
    decode_event,
    find_starts,
    group_named_in,
    is_determined_by_log,
    is_recorded,
    letter_name,
    position_of,
)
from records.truncation import encode_view
from state.dispatch import AnyGroup, kind_of, step
from state.kafka.classic_group import ClassicGroup
from state.timeline import StepFunction

# The clocks of the brokers that stamp requests and outputs may differ by this much.
CLOCK_SKEW_MS = 10_000
DIFFERENCES_KEPT = 20

# The end of the text of a deadline or a scan: its time in ms.
_DUE = re.compile(r" at (?P<due_ms>\d+)$")

_KINDS = {
    AnswerName: RecordKind.ANSWER,
    EventName: RecordKind.HISTORY,
    LetterName: RecordKind.LETTER,
}
N = TypeVar("N", bound=AnswerName | EventName | LetterName)


def judge(
    recording: Recording,
    until: Until | None = None,
    *,
    groups: set[str] | None = None,
    step: StepFunction = step,
) -> ReplayVerdict:
    """Replay groups of a recording (None: all), and compare the outcome with the records on the topics.

    With `until`, only the outcome of the log up to that end is compared.
    """
    return _Judge(
        SelectedGroups(recording, groups) if groups is not None else recording, until, step
    ).verdict()


@dataclass
class _Judge:
    """The comparison of one replay with the topics. `verdict` is called once."""

    recording: Recording
    until: Until | None
    step: StepFunction
    # The next fields are as in `ReplayVerdict`.
    groups: dict[str, ComparedCounts] = field(default_factory=lambda: defaultdict(ComparedCounts))
    differences: list[ReplayDifference] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)
    unjudged: int = 0
    skipped: int = 0
    # By kind, group and partition, the number (`RecordCopy.number`) of the last record that was compared.
    _last_numbers: dict[tuple[RecordKind, str, int], int] = field(default_factory=dict)
    # By group, the name of its last view that a committed batch must have written.
    _handled_views: dict[str, EventName] = field(default_factory=dict)
    # The records that may occur several times (`_repeatable_id`) and were compared.
    _compared_repeatables: set[tuple[object, bytes]] = field(default_factory=set)

    def verdict(self) -> ReplayVerdict:
        """Replay the recording, compare its outcome with the topics, and return the verdict."""
        self.header = self.recording.header
        self._contents = contents = TopicContents.of(self.recording.outputs())
        self.starts = find_starts(self.recording, contents)
        for line in contents.unreadable:
            self._add_difference(RecordKind.ANSWER, DifferenceKind.UNREADABLE, "", type(line).__name__)
        for name, first, second in contents.contradictions:
            group_id = _group_of(name, first.value)
            self._add_difference(
                _KINDS[type(name)], DifferenceKind.TWICE, group_id, name, expected=first.value, found=second
            )
        first_requests = {group_id: start.request for group_id, start in self.starts.items() if start.is_cut}
        replay = Replay(
            self.recording, self._compare_views, late=contents.late, first=first_requests, step=self.step
        )
        for replay_step in replay.steps():
            self._compare(replay_step)
        # If the end of the log was cut, requests that are parked there may have an answer on the topics, but
        # not in the replay.
        is_end_cut = self.header.until_ms is not None
        self._parked_requests = _parked_in(replay.groups.values()) if is_end_cut else set()
        self._compare_rest()
        self._compare_last_views(replay.groups)
        return ReplayVerdict(
            groups=dict(self.groups),
            starts=self.starts,
            differences=self.differences,
            count=self.by_kind.total(),
            by_kind=dict(self.by_kind),
            duplicates=contents.duplicates,
            late=len(contents.late),
            unjudged=self.unjudged,
            skipped=self.skipped,
        )

    def _compare_views(self, group: AnyGroup | None) -> EventName | None:
        """Compare the views that the topics have of this state of the group. Return their name.

        It is called after each step, and the name becomes the step's `captured`. Equal views are removed, so
        that only different ones are left for `_compare_rest`.
        """
        if group is None:
            return None
        name = EventName(group.group_id, group.incarnation, group.seq)
        copies = self._contents.views.get(name)
        # Encoding is slow, so the view is encoded only if a copy has the group's time.
        if copies and any(decode_event(copy.value).at_ms == group.clock_ms for copy in copies):
            value = encode_view(kind_of(group).view(group), self.header.layout.view_max_bytes)
            different = [copy for copy in copies if copy.value != value]
            self.groups[group.group_id].views += len(copies) - len(different)
            self._contents.views[name] = different
        return name

    def _compare(self, step: ReplayStep[EventName]) -> None:
        """Compare the records that a step writes with those on the topics."""
        counts = self.groups[step.group_id]
        counts.entries += 1
        if step.is_handled and step.captured is not None:
            self._handled_views[step.group_id] = step.captured
        # Nothing is captured if the step has ended the group. A refused message does not reach the group.
        elif step.is_handled and not isinstance(step.event, Refusal):
            self._handled_views.pop(step.group_id, None)
        for sent in step.sent:
            name = answer_name(sent.value)
            self._compare_early(name, sent, step)
            counts.answers += self._match(
                self._contents.answers, name, sent.value, step, sent.reply_partition
            )
        for record in step.history:
            event = EventName(record.entry.group_id, record.entry.incarnation, record.entry.seq)
            counts.history += self._match(self._contents.events, event, record.value, step)
        for letter in step.letters:
            counts.letters += self._match(self._contents.letters, letter_name(letter), letter, step)

    def _compare_early(self, name: AnswerName, sent: SentRecord, step: ReplayStep[EventName]) -> None:
        """Compare the early answers of replicas, which are optional because a replica may be silent."""
        for copy in self._contents.early.pop(name, ()):
            if not self._is_compared(step):
                continue
            self.groups[step.group_id].early += 1
            if (copy.partition, copy.value) != (sent.reply_partition, sent.value):
                how = DifferenceKind.CHANGED if copy.value != sent.value else DifferenceKind.MISPLACED
                self._add_difference(RecordKind.EARLY, how, step.group_id, name, step, sent.value, copy)

    def _match(
        self,
        copies: dict[N, RecordCopy],
        name: N,
        value: bytes,
        step: ReplayStep[Any],
        partition: int | None = None,
    ) -> bool:
        """Compare an expected record with that of the same name on the topics, and remove that from `copies`.

        `partition` is the expected partition, or None if it does not matter. Return True if the record exists
        on the topics and was compared.
        """
        what, group_id = _KINDS[type(name)], step.group_id
        repeatable = _repeatable_id(name, value)
        if repeatable in self._compared_repeatables:
            return False
        copy = copies.pop(name, None)
        if not self._is_compared(step):
            return False
        if copy is None:
            self._report_missing(what, name, value, step, partition)
            return False
        if repeatable is not None:
            self._compared_repeatables.add(repeatable)
        if partition is not None and copy.partition != partition:
            self._add_difference(what, DifferenceKind.MISPLACED, group_id, name, step, value, copy)
        elif copy.value != value and is_determined_by_log(name):
            self._add_difference(what, DifferenceKind.CHANGED, group_id, name, step, value, copy)
        elif copy.number < self._last_numbers.get(ordered_by := (what, group_id, copy.partition), -1):
            self._add_difference(what, DifferenceKind.OUT_OF_ORDER, group_id, name, step, value, copy)
        else:
            self._last_numbers[ordered_by] = copy.number
        return True

    def _report_missing(
        self, what: RecordKind, name: object, value: bytes, step: ReplayStep[Any], partition: int | None
    ) -> None:
        """Report that an expected record is not on the topics, or count it if it need not be there."""
        if not step.is_handled:  # no committed batch had to write it yet
            self.groups[step.group_id].open += 1
        elif self._may_be_deleted(what, step.at_ms, partition):
            self.groups[step.group_id].gone += 1
        else:
            self._add_difference(what, DifferenceKind.MISSING, step.group_id, name, step, value)

    def _is_compared(self, step: ReplayStep[Any]) -> bool:
        """Return True if the step is not after `until`, by its group's time and by its message's offset.

        A deadline that fired without a message has no offset, so an `until` with an offset leaves it out.
        """
        until = self.until
        if until is None:
            return True
        if until.time_ms is not None and step.at_ms > until.time_ms:
            return False
        return until.offset is None or (step.message is not None and until.includes(step.message))

    def _may_be_deleted(self, what: RecordKind, at_ms: int, partition: int | None) -> bool:
        """Return True if retention may have deleted the record of a step at `at_ms`.

        `partition` is that of the record, or None if it may be in any partition of its topic.
        """
        topic = {
            RecordKind.ANSWER: self.header.layout.responses_topic,
            RecordKind.HISTORY: self.header.layout.events_topic,
            RecordKind.LETTER: self.header.layout.dead_letters_topic,
        }[what]
        by_partition = self.header.kept_since_ms.get(topic, {})
        # 0 for a partition that has lost no record.
        kept_since_ms = by_partition.values() if partition is None else [by_partition.get(partition, 0)]
        return any(kept_since_ms) and at_ms < max(kept_since_ms) + CLOCK_SKEW_MS

    def _compare_rest(self) -> None:
        """Report the records that are left on the topics, because the replay does not produce them."""
        contents = self._contents
        for answer, copy in contents.answers.items():
            self._report_unexpected(
                RecordKind.ANSWER, answer, copy, self._is_judged(answer.request, copy.value)
            )
        skipped = set(self.header.epochs[-1].skip)
        for answer, copies in contents.early.items():
            # A replica may have answered a request before the request, or its whole record, was skipped.
            if not skipped.isdisjoint((answer.request, answer.request.partition("#")[0])):
                self.skipped += len(copies)
                continue
            for copy in copies:
                self._report_unexpected(
                    RecordKind.EARLY, answer, copy, self._is_judged(answer.request, copy.value)
                )
        for event, copy in contents.events.items():
            self._report_unexpected(RecordKind.HISTORY, event, copy, self._is_event_judged(event, copy))
        for letter, copy in contents.letters.items():
            self._report_unexpected(
                RecordKind.LETTER, letter, copy, self._is_judged(letter.subject, copy.value)
            )
        for view, copies in contents.views.items():
            for copy in copies:
                self._report_unexpected(RecordKind.VIEW, view, copy, self._is_event_judged(view, copy))

    def _report_unexpected(self, what: RecordKind, name: Any, copy: RecordCopy, is_judged: bool) -> None:
        """Report that the replay does not produce a record, or count the record if it is not judged."""
        if not is_judged:
            self.unjudged += 1
            return
        self._add_difference(what, DifferenceKind.UNEXPECTED, _group_of(name, copy.value), name, found=copy)

    def _is_judged(self, request: str, value: bytes) -> bool:
        """Return True if an answer or dead letter is of a request or a deadline that the replay judges."""
        start = self.starts.get(group_named_in(value))
        position = position_of(request, self.header)
        if position is None:  # a deadline, a scan, or a request of another topic
            due = _DUE.search(request)
            until_ms = sys.maxsize if self.header.until_ms is None else self.header.until_ms
            # Its position is not known, so it is judged only if the replay has the group's whole log.
            return start is None and due is not None and int(due["due_ms"]) < until_ms
        is_replayed = is_recorded(position, self.header) and request not in self._parked_requests
        return is_replayed and (start is None or start.includes(position))

    def _is_event_judged(self, event: EventName, copy: RecordCopy) -> bool:
        """Return True if the replay judges a history entry or a view: by the request that began its
        incarnation.
        """
        until_ms = self.header.until_ms
        if until_ms is not None and decode_event(copy.value).at_ms >= until_ms:
            return False
        start = self.starts.get(event.group_id)
        if start is not None and start.incarnation == event.incarnation:
            return event.seq > start.seq
        position = position_of(event.incarnation, self.header)
        return (
            position is not None
            and is_recorded(position, self.header)
            and (start is None or start.includes(position))
        )

    def _compare_last_views(self, groups: dict[str, AnyGroup]) -> None:
        """Report each group whose last view is older than the group in the last committed batch."""
        if self.until is not None or self.header.until_ms is not None:
            return
        for group_id, handled_view in self._handled_views.items():
            last_view = self._contents.last_views.get(group_id)
            # The group may have ended or begun anew, after the recorded part of the log or in the same batch.
            has_ended = last_view is None and group_id in self._contents.last_views and group_id not in groups
            began_anew = last_view is not None and last_view.incarnation != handled_view.incarnation
            is_written = last_view is not None and last_view.seq >= handled_view.seq
            if not (has_ended or began_anew or is_written):
                self._add_difference(RecordKind.VIEW, DifferenceKind.MISSING, group_id, handled_view)

    def _add_difference(
        self,
        what: RecordKind,
        how: DifferenceKind,
        group_id: str,
        name: object,
        step: ReplayStep[Any] | None = None,
        expected: bytes | None = None,
        found: RecordCopy | None = None,
    ) -> None:
        """Count a difference, and store it unless DIFFERENCES_KEPT are stored already."""
        self.by_kind[f"{what} {how.partition(':')[0]}"] += 1  # such as "answer missing"
        if len(self.differences) < DIFFERENCES_KEPT:
            self.differences.append(
                ReplayDifference(
                    what=what,
                    how=how,
                    group_id=group_id,
                    name=str(name),
                    entry=None if step is None else _cause(step),
                    expected=None if expected is None else expected.decode(errors="replace"),
                    found=None if found is None else found.value.decode(errors="replace"),
                    place=None if found is None else f"{found.partition}-{found.offset}",
                )
            )


def _repeatable_id(name: object, value: bytes) -> tuple[object, bytes] | None:
    """Return the identity of a record that may occur several times, or None.

    One request may cause the same message to a connection several times. A deadline may fail again after its
    group was released.
    """
    if isinstance(name, AnswerName) and name.connection:
        return name, value
    return None if is_determined_by_log(name) else (name, b"")


def _parked_in(groups: Iterable[AnyGroup]) -> set[str]:
    """Return the ids of the requests that wait in a group for their answer."""
    classic_groups = (group for group in groups if isinstance(group, ClassicGroup))
    return {reply_to.request for group in classic_groups for reply_to in group.parked()}


def _cause(step: ReplayStep[Any]) -> str:
    """Return the id of the step's request, or its deadline as text."""
    return step.request_id or str(getattr(step.event, "deadline", step.event))


def _group_of(name: AnswerName | EventName | LetterName, value: bytes) -> str:
    """Return the group of a record, or "" if the record names none."""
    return name.group_id if isinstance(name, EventName) else group_named_in(value)
