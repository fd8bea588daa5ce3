"""The log of a recording through the core, without Spark: the operator's rules, one step at a time.

Each message of the log is admitted or refused as the operator does it, and applied by the group's timeline
with the recording's configurations and outages. After the last message the deadlines fire that the
recording's clock records allow.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from checkpoints import codec
from kafka_why.contract.codec import Refusal, encode
from operations.replay.group_run import GroupRun, ReplayStep, SentRecord, answer_records
from operations.replay.recording import ClockLine, EventLine, Recording, RecordingHeader, ViewLine
from operations.replay.topic_contents import ReplayStart, TopicContents, starts_of
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
        """Return True if a message is before the end."""
        if self.offset is not None and message.row.offset > self.offset:
            return False
        return self.time_ms is None or message.row.at_ms <= self.time_ms


@dataclass
class Replayed:
    """The result of a replay of one group."""

    group_id: str
    entries: list[ReplayStep[bytes]] = field(default_factory=list)
    group: AnyGroup | None = None  # at the end
    # Where the entries begin if the beginning of the group's log is gone.
    start: ReplayStart = field(default_factory=ReplayStart)

    def group_after(self, number: int) -> AnyGroup | None:
        """Return the group after entry `number`, from 0. The replay must be `with_states`."""
        while number > 0 and isinstance(self.entries[number].event, Refusal):
            number -= 1  # a refused message does not reach the group
        return unpack_group(self.group_id, self.entries[number].kept)


def replay(
    recording: Recording, group_id: str, until: Until | None = None, *, with_states: bool = False
) -> Replayed:
    """Replay one group of a recording. The deadlines that were due until the end have fired.

    `with_states` keeps the group after each entry, compressed.
    """
    found = TopicContents.of(line for line in recording.outputs() if isinstance(line, EventLine | ViewLine))
    start = starts_of(recording, found).get(group_id, ReplayStart())
    run = Replay(
        recording,
        lambda group: pack_group(group) if with_states else None,
        groups={group_id},
        late=found.late,
        first={group_id: start.request} if start.is_cut else None,
    )
    return Replayed(group_id, list(run.entries(until)), run.groups.get(group_id), start)


class Replay(Generic[K]):
    """A replay of all or some groups of a recording. `keep` is that of `GroupRun`.

    `late` has the delays in ms of requests that were applied late, by request id, because a later deadline
    had fired before. They come from the history, because they depend on more than the log. `first` has the
    groups whose beginning the log lacks, with the request that created each of them anew. Earlier messages
    are left out, or all messages for None.
    """

    def __init__(
        self,
        recording: Recording,
        keep: Callable[[AnyGroup | None], K | None],
        *,
        groups: set[str] | None = None,
        late: Mapping[str, int] | None = None,
        first: Mapping[str, str | None] | None = None,
        step: StepFunction = step,
    ) -> None:
        self._recording = recording
        self._keep = keep
        self._step = step
        self._wanted = groups
        self._late = late or {}
        self._first = dict(first or {})
        self._header = header = recording.header
        self._outages = [known.outage for known in header.outages]
        self._configs = header.configs
        self._admissions = header.admissions()
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

    def entries(self, until: Until | None = None) -> Iterator[ReplayStep[K]]:
        """Run the replay once. Yield each group's entries in their order."""
        until = until or Until()
        for state in self._recording.states():
            if self._wants(state.group_id):
                self._run_of(state.group_id, state.decode())
        end_ms = 0
        later_ms: dict[str, int] = {}  # the last message after the end, by group
        for line in self._recording.log():
            if isinstance(line, ClockLine):
                end_ms = max(end_ms, line.time_ms)
                continue
            message = line.message(self._header.identity.requests_topic)
            if until.includes(message):
                yield from self._message(message)
            elif self._wants(group_id := named_group(message)):
                later_ms[group_id] = max(message.row.at_ms, later_ms.get(group_id, 0))
        if until.offset is not None:
            return
        for run in self._runs.values():
            # A later message of the group fires what is due before it.
            known_ms = max(end_ms, later_ms.get(run.group_id, 0), self._handled_ms)
            until_ms = min(known_ms, self._until_ms, sys.maxsize if until.time_ms is None else until.time_ms)
            # The last committed batch has fired the deadlines before its watermark.
            yield from self._fire_handled(run, min(self._handled_ms, until_ms))
            yield from run.fire_until(until_ms, is_handled=False)

    def _wants(self, group_id: str) -> bool:
        return self._wanted is None or group_id in self._wanted

    def _message(self, message: LogMessage) -> Iterator[ReplayStep[K]]:
        # No group is known to be of the partition, so that the admission computes the partition of each.
        request = self._admissions[message.row.partition].admit(message, lambda _: False)
        is_handled = self._is_handled(message)
        if isinstance(request, Refusal):
            entry: ReplayStep[K] = _refused(request, message, is_handled, self._header)
            if self._wants(entry.group_id):
                yield entry
            return
        group_id = request.group_id
        if not self._wants(group_id) or not self._has_begun(group_id, message.id):
            return
        run = self._run_of(group_id)
        if not is_handled:
            yield from self._fire_handled(run, self._handled_ms)
        late_by_ms = self._late.get(message.id)
        if late_by_ms is not None:
            yield from run.fire_until(message.row.at_ms + late_by_ms, is_handled)
        row = Row(message.row.at_ms, message.id, request, len(message.value))
        yield from run.apply(row, message, is_handled)

    def _has_begun(self, group_id: str, request_id: str) -> bool:
        """Return False for a request before the one with which its group begins, `first`."""
        if group_id not in self._first:
            return True
        if self._first[group_id] != request_id:
            return False
        del self._first[group_id]
        return True

    def _fire_handled(self, run: GroupRun[K], until_ms: int) -> Iterator[ReplayStep[K]]:
        """Fire the deadlines that a committed batch has fired.

        Spark calls an idle group only at its next deadline. Until then, the effects of a takeover or of a new
        configuration are not written.
        """
        while (due_ms := run.timeline.next_due_ms()) is not None and due_ms <= until_ms:
            yield from run.fire_until(due_ms, is_handled=True)

    def _run_of(self, group_id: str, group: AnyGroup | None = None) -> GroupRun[K]:
        if group_id not in self._runs:
            self._runs[group_id] = GroupRun(
                group_id, group, self._header.layout, self._configs, self._outages, self._keep, self._step
            )
        return self._runs[group_id]

    def _is_handled(self, message: LogMessage) -> bool:
        handled = self._header.handled
        return handled is not None and message.row.offset < handled.ends.get(message.row.partition, 0)


def named_group(message: LogMessage) -> str:
    """Return the group of a message: its `group_id`, or else the key of its record."""
    try:
        return _named.decode(message.value).group_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return message.row.key.decode(errors="replace") if message.n is None else ""


class _Named(msgspec.Struct):
    group_id: str


_named = msgspec.json.Decoder(_Named)


def _refused(
    refusal: Refusal, message: LogMessage, is_handled: bool, header: RecordingHeader
) -> ReplayStep[K]:
    response = refusal.response(message.id)
    letter = encode(
        dead_letter(refusal.reason, refusal.message, message.row.key, message, answered=response is not None)
    )
    sent: tuple[SentRecord, ...] = ()
    letters: tuple[bytes, ...] = (letter,)
    if response is not None and refusal.address is not None:
        reply = Reply(refusal.address.reply_partition, response)
        answer, too_large = answer_records(reply, message, header.layout)
        sent, letters = (answer,), letters if too_large is None else (too_large, letter)
    at_ms = message.row.at_ms
    return ReplayStep(named_group(message), at_ms, refusal, message, is_handled, sent, (), letters, None)


def pack_group(group: AnyGroup | None) -> bytes | None:
    """Return the group compressed, or None for None."""
    return None if group is None else codec.write_row({group.group_id: codec.encode_group(group, None)})[1]


def unpack_group(group_id: str, kept: bytes | None) -> AnyGroup | None:
    """Return the group that `pack_group` compressed."""
    if kept is None:
        return None
    return codec.decode_group(group_id, codec.read_row(group_id, codec.STATE_VERSION, kept)[group_id])
