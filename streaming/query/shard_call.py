"""One call of the operator: the rows and deadlines of one shard's groups.

A group is decoded when a message or a deadline first touches it, and encoded at the end of the call. A group
that rests keeps its bytes. Each group has a timeline of its own, so a fault in one touches no other.
"""

from collections.abc import Iterable, Iterator, Sequence

import pandas as pd
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from records.codec import Reason, Refusal
from state.config import CoordinatorConfig
from state.dispatch import AnyGroup
from state.inputs import Outage
from state.kafka.effects import Reply
from state.kafka.group import Group
from state.timeline import Row, Step, Timeline
from streaming.query.admission import Admission, Message
from streaming.query.log_order import LogRow
from streaming.query.output import Output
from streaming.query.under_way import Note, nothing


class OperatorError(RuntimeError):
    """The operator failed on a record and could not refuse it. The message names the record."""


class ShardCall:
    """One call: decodes the shard's map of groups, applies its rows, and writes the map back."""

    def __init__(
        self,
        shard: int,
        admission: Admission,
        config: CoordinatorConfig,
        state: SparkGroupState,
        *,
        outages: Sequence[Outage],
        step: Step,
        note: Note = nothing,
    ) -> None:
        self._admission = admission
        self._config = config
        self._state = state
        self._outages = outages
        self._step = step
        self._note = note
        self._output = Output(admission.layout)
        self._entries: dict[str, codec.Entry] = {}
        if state.exists:
            version, payload = state.get
            name = f"shard {shard % admission.shards} of partition {admission.partition}"
            self._entries = codec.read_row(name, int(version), bytes(payload))
        self._awake: dict[str, _AwakeGroup] = {}

    def apply(self, rows: Iterable[LogRow]) -> Iterator[pd.DataFrame]:
        """Apply or refuse every message of every row, in the log's order."""
        for row in rows:
            for message in self._admission.messages(row):
                self._apply(message)
                if self._output.is_full:
                    yield from self._output.frame()

    def _apply(self, message: Message) -> None:
        request = self._admission.admit(message, self._is_known)
        if isinstance(request, Refusal):
            self._refuse(request, message)
            return
        self._note(f"record {message.id}")
        try:
            group = self._awaken(request.group_id)
            group.timeline.apply(Row(message.row.at_ms, message.id, request, len(message.value)))
            group.take_effects(self._output, message)
        except Exception as error:
            text = f"record {message.id} of group {request.group_id!r}: {error}"
            raise OperatorError(text) from error

    def _is_known(self, group_id: str) -> bool:
        return group_id in self._awake or group_id in self._entries

    def _refuse(self, refusal: Refusal, message: Message) -> None:
        response = refusal.response(message.id)
        if response is not None and refusal.address is not None:
            self._output.reply(Reply(refusal.address.reply_partition, response), message)
        self._output.dead_letter(
            refusal.reason, refusal.message, message.row.key, message, answered=response is not None
        )

    def _awaken(self, group_id: str) -> "_AwakeGroup":
        """Decode a group, or make room for a new one, once in a call."""
        group = self._awake.get(group_id)
        if group is None:
            entry = self._entries.get(group_id)
            group = _AwakeGroup(group_id, entry, self._config, self._outages, self._step)
            self._awake[group_id] = group
        return group

    def finish(self, watermark_ms: int) -> Iterator[pd.DataFrame]:
        """Fire the deadlines that the watermark allows, and write the state. Every call ends here.

        Spark's Python timeouts stay set until the next call sets one. A call that writes state without
        setting a timeout clears it.
        """
        for group_id, entry in self._entries.items():
            if entry.next_deadline_ms is not None and entry.next_deadline_ms <= watermark_ms:
                self._awaken(group_id)
        for group_id, group in self._awake.items():
            self._note(f"the deadlines of group {group_id!r}")
            group.timeline.fire_until(watermark_ms)
            group.take_effects(self._output, None)
            self._put_to_rest(group)
            if self._output.is_full:
                yield from self._output.frame()
        self._note("")
        payload = b""
        if self._entries:
            version, payload = codec.write_row(self._entries)
            self._state.update((version, payload))
            deadline_ms = codec.earliest_deadline_ms(self._entries)
            if deadline_ms is not None:
                self._state.setTimeoutTimestamp(max(deadline_ms, watermark_ms + 1))
        elif self._state.exists:
            self._state.remove()
        yield from self._output.frame(len(payload))

    def _put_to_rest(self, awake: "_AwakeGroup") -> None:
        """Write what the call has changed of a group: its records of compacted topics, and its entry."""
        group, key = awake.timeline.group, awake.key
        if awake.is_unpublished and isinstance(group, Group):
            self._output.all_offsets(group)
            self._output.all_transactions(group)
        self._output.offsets(awake.timeline.group_id)
        self._output.transactions(awake.timeline.group_id)
        if group is not None:
            if awake.has_news or awake.is_unpublished:
                self._output.snapshot(group)
            entry = codec.encode_group(group, awake.timeline.next_deadline_ms())
            self._entries[group.group_id] = entry
        elif self._entries.pop(awake.timeline.group_id, None) is not None:
            self._output.group_tombstone(key)


class _AwakeGroup:
    """A group that this call has touched."""

    def __init__(
        self,
        group_id: str,
        entry: codec.Entry | None,
        config: CoordinatorConfig,
        outages: Sequence[Outage],
        step: Step,
    ) -> None:
        def restore() -> AnyGroup | None:
            return None if entry is None else codec.decode_group(group_id, entry)

        self.key = group_id.encode()
        self.is_unpublished = entry is not None and entry.next_deadline_ms == codec.UNPUBLISHED_DEADLINE_MS
        # The deadline in the entry is of an earlier call, maybe under another configuration, and RocketMQ's
        # deadlines depend on it. So the timeline searches its first deadline anew.
        self.timeline = Timeline(group_id, restore(), config, restore=restore, step=step, outages=outages)
        self._seq_before = self._seq()
        self._faults_reported = 0

    def _seq(self) -> tuple[str, int] | None:
        group = self.timeline.group
        return None if group is None else (group.incarnation, group.seq)

    @property
    def has_news(self) -> bool:
        """Whether the group's history has grown in this call."""
        return self._seq() != self._seq_before

    def take_effects(self, output: Output, message: Message | None) -> None:
        """Put the effects of the steps since the last time, and their faults, into the output.

        `message` is the message at hand, None after the last.
        """
        answered: set[str] = set()
        for effects in self.timeline.take_effects():
            output.effects(effects, self.key, message)
            if self.timeline.faults:
                answered.update(reply.response.request for reply in effects.replies)
        for fault in self.timeline.faults[self._faults_reported :]:
            text = f"{fault.cause}\n{fault.traceback}"
            is_message = message is not None and fault.cause == message.id  # else an earlier deadline failed
            at_fault = message if is_message else None
            is_answered = at_fault is not None and at_fault.id in answered
            key = self.key if at_fault is None else at_fault.row.key
            output.dead_letter(Reason.HANDLER_FAILED, text, key, at_fault, answered=is_answered)
            self._faults_reported += 1
