"""The replay of a recording's log, without Spark, through the core: the group logic in `state`, step by step.

Each message of the log is admitted or refused by the query's rules. Then the group's `Timeline` applies it,
with the recording's configurations and outages (the times without a coordinator). After the last message,
deadlines fire until the time that the recording's clock records attest.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from checkpoints import codec
from kafka_why.contract.codec import Refusal, encode
from operations.replay.group_run import GroupRun, ReplayStep, answer_records
from operations.replay.recording import ClockLine, EventLine, Recording, RecordingHeader, ViewLine
from operations.replay.topic_contents import ReplayStart, TopicContents, find_starts
from state.dispatch import AnyGroup, step
from state.kafka.context import Reply
from state.timeline import Row, StepFunction
from streaming.query.admission import LogMessage
from streaming.query.output_values import dead_letter

K = TypeVar("K")


@dataclass(frozen=True)
class Until:
    """The end of a replay."""

    time_ms: int | None = None  # by the groups' clocks
    offset: int | None = None  # inclusive

    def includes(self, message: LogMessage) -> bool:
        """Return True if a message is not after the end."""
        if self.offset is not None and message.row.offset > self.offset:
            return False
        return self.time_ms is None or message.row.at_ms <= self.time_ms


@dataclass
class Replayed:
    """The result of a replay of one group."""

    group_id: str
    steps: list[ReplayStep[bytes]] = field(default_factory=list)
    group: AnyGroup | None = None  # at the end
    # The position at which the steps begin, if the beginning of the group's log is gone.
    start: ReplayStart = field(default_factory=ReplayStart)

    def group_after(self, number: int) -> AnyGroup | None:
        """Return the group after step `number`, from 0. Requires a replay `with_states`."""
        while number > 0 and isinstance(self.steps[number].event, Refusal):
            number -= 1  # a refused message does not reach the group
        return unpack_group(self.group_id, self.steps[number].captured)


def replay(
    recording: Recording, group_id: str, until: Until | None = None, *, with_states: bool = False
) -> Replayed:
    """Replay one group of a recording. The deadlines that were due until the end have fired.

    `with_states` captures the group after each step, compressed.
    """
    contents = TopicContents.of(
        line for line in recording.outputs() if isinstance(line, EventLine | ViewLine)
    )
    start = find_starts(recording, contents).get(group_id, ReplayStart())
    run = Replay(
        recording,
        lambda group: pack_group(group) if with_states else None,
        groups={group_id},
        late=contents.late,
        first={group_id: start.request} if start.is_cut else None,
    )
    return Replayed(group_id, list(run.steps(until)), run.groups.get(group_id), start)


class Replay(Generic[K]):
    """A replay of all or some groups of a recording. `capture` is called with the group after each step. Its
    result is the step's `captured`.

    A step is *handled* if the committed batches include it: a message before the end of the last committed
    batch, or a deadline before its watermark. These deadlines fire before the first message that is not
    handled.

    `late` has the delay in ms of each late request, by request id. A request is late if the query had already
    fired a deadline of a later time. So the replay fires deadlines up to this delay after the request's time,
    and then applies the request. The delays are from the history, because the log alone does not determine
    them.

    `first` has the groups whose beginning the log lacks. The replay of such a group begins with the request
    that created the group anew, which is the value. If the value is None, the log has no such request, and
    all messages of the group are left out.
    """

    def __init__(
        self,
        recording: Recording,
        capture: Callable[[AnyGroup | None], K | None],
        *,
        groups: set[str] | None = None,
        late: Mapping[str, int] | None = None,
        first: Mapping[str, str | None] | None = None,
        step: StepFunction = step,
    ) -> None:
        self._recording = recording
        self._capture = capture
        self._step = step
        self._selected_groups = groups
        self._late_by_ms = late or {}
        self._first_requests = dict(first or {})  # of the groups whose replay has not begun yet
        self._header = header = recording.header
        self._outages = [known_outage.outage for known_outage in header.outages]
        self._configs = header.configs
        self._admissions = header.admissions()
        # The last time of the recording, and the last time whose deadlines a committed batch has fired. Both
        # are inclusive.
        self._until_ms = sys.maxsize if header.until_ms is None else header.until_ms - 1
        handled_ms = header.handled.watermark_ms - 1 if header.handled is not None else -1
        self._handled_ms = min(handled_ms, self._until_ms)
        self._runs: dict[str, GroupRun[K]] = {}

    @property
    def groups(self) -> dict[str, AnyGroup]:
        """The groups that exist now."""
        return {
            name: run.timeline.group for name, run in self._runs.items() if run.timeline.group is not None
        }

    def steps(self, until: Until | None = None) -> Iterator[ReplayStep[K]]:
        """Run the replay once, up to `until`. Yield each group's steps in their order."""
        until = until or Until()
        for state in self._recording.states():
            if self._wants(state.group_id):
                self._run_of(state.group_id, state.decode())
        clock_ms = 0  # the greatest time of a clock record
        later_ms: dict[str, int] = {}  # by group, append time of its last message after `until`
        for line in self._recording.log():
            if isinstance(line, ClockLine):
                clock_ms = max(clock_ms, line.time_ms)
                continue
            message = line.message(self._header.identity.requests_topic)
            if until.includes(message):
                yield from self._apply_message(message)
            elif self._wants(group_id := named_group(message)):
                later_ms[group_id] = max(message.row.at_ms, later_ms.get(group_id, 0))
        if until.offset is not None:
            return  # a message is the end, and the remaining deadlines are after it
        for run in self._runs.values():
            # All deadlines have fired up to the latest of three times: of a clock record, of a message after
            # `until`, and of the last committed batch. The recording or `until` may end earlier.
            latest_ms = max(clock_ms, later_ms.get(run.group_id, 0), self._handled_ms)
            until_ms = min(latest_ms, self._until_ms, sys.maxsize if until.time_ms is None else until.time_ms)
            # The last committed batch has fired the deadlines before its watermark.
            yield from self._fire_handled(run, min(self._handled_ms, until_ms))
            yield from run.fire_until(until_ms, is_handled=False)

    def _wants(self, group_id: str) -> bool:
        return self._selected_groups is None or group_id in self._selected_groups

    def _apply_message(self, message: LogMessage) -> Iterator[ReplayStep[K]]:
        """Refuse a message, or apply its request. Yield the steps, first the steps of due deadlines."""
        # Treat every group as unknown, so that the admission checks that the message is in its partition.
        request = self._admissions[message.row.partition].admit(message, lambda _: False)
        is_handled = self._is_handled(message)
        if isinstance(request, Refusal):
            refused: ReplayStep[K] = _refused_step(request, message, is_handled, self._header)
            if self._wants(refused.group_id):
                yield refused
            return
        group_id = request.group_id
        if not self._wants(group_id) or not self._has_begun(group_id, message.id):
            return
        run = self._run_of(group_id)
        if not is_handled:
            yield from self._fire_handled(run, self._handled_ms)
        late_by_ms = self._late_by_ms.get(message.id)
        if late_by_ms is not None:
            yield from run.fire_until(message.row.at_ms + late_by_ms, is_handled)
        row = Row(message.row.at_ms, message.id, request, len(message.value))
        yield from run.apply(row, message, is_handled)

    def _has_begun(self, group_id: str, request_id: str) -> bool:
        """Return False for a request before the request that created its group anew (see `first`)."""
        if group_id not in self._first_requests:
            return True
        if self._first_requests[group_id] != request_id:
            return False
        del self._first_requests[group_id]
        return True

    def _fire_handled(self, run: GroupRun[K], until_ms: int) -> Iterator[ReplayStep[K]]:
        """Fire the deadlines that a committed batch has fired, but apply no takeover after the last of them.

        A takeover is the event at the end of an outage. Spark calls an idle group only at its next deadline,
        so the batch has not written a takeover or a new configuration after its last deadline.
        """
        while (due_ms := run.timeline.next_due_ms()) is not None and due_ms <= until_ms:
            yield from run.fire_until(due_ms, is_handled=True)

    def _run_of(self, group_id: str, group: AnyGroup | None = None) -> GroupRun[K]:
        """Return the run of this group. A new run starts with `group`, its recorded state, or None."""
        if group_id not in self._runs:
            self._runs[group_id] = GroupRun(
                group_id, group, self._header.layout, self._configs, self._outages, self._capture, self._step
            )
        return self._runs[group_id]

    def _is_handled(self, message: LogMessage) -> bool:
        """Return True if the last committed batch, or an earlier one, includes this message."""
        handled = self._header.handled
        return handled is not None and message.row.offset < handled.ends.get(message.row.partition, 0)


def named_group(message: LogMessage) -> str:
    """Return the group of a message: its `group_id`, or else the key of its record."""
    try:
        return _group_field_decoder.decode(message.value).group_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The key of a record is a group id, except that of a pack (`message.n` is not None).
        return message.row.key.decode(errors="replace") if message.n is None else ""


class _GroupField(msgspec.Struct):
    """The field of every request that names its group."""

    group_id: str


_group_field_decoder = msgspec.json.Decoder(_GroupField)


def _refused_step(
    refusal: Refusal, message: LogMessage, is_handled: bool, header: RecordingHeader
) -> ReplayStep[K]:
    """Return the step of a refused message, with its dead letter, and its answer if it has an address."""
    response = refusal.response(message.id)
    letter = encode(
        dead_letter(refusal.reason, refusal.message, message.row.key, message, answered=response is not None)
    )
    answers = (
        []
        if response is None or refusal.address is None
        else [answer_records(Reply(refusal.address.reply_partition, response), message, header.layout)]
    )
    return ReplayStep(
        named_group(message),
        message.row.at_ms,
        refusal,
        message,
        is_handled,
        sent=tuple(answer for answer, _ in answers),
        history=(),
        letters=(
            *(too_large_letter for _, too_large_letter in answers if too_large_letter is not None),
            letter,
        ),
        captured=None,
    )


def pack_group(group: AnyGroup | None) -> bytes | None:
    """Return the group compressed, or None if there is no group."""
    if group is None:
        return None
    _, row = codec.write_row({group.group_id: codec.encode_group(group, next_deadline_ms=None)})
    return row


def unpack_group(group_id: str, captured: bytes | None) -> AnyGroup | None:
    """Return the group that `pack_group` compressed."""
    if captured is None:
        return None
    return codec.decode_group(group_id, codec.read_row(group_id, codec.STATE_VERSION, captured)[group_id])
