"""A call of the operator for the rows and deadlines of one shard's groups.

A group is decoded when a message or a deadline first touches it, and encoded at the end of the call. A group
that is not touched keeps its encoded bytes. Each group has its own timeline, so a fault in one group affects
no other.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from state.config import Configs
from state.inputs import Outage
from state.kafka.group import Group
from state.timeline import StepFunction
from streaming.query.admission import Admission, LogMessage
from streaming.query.handling import DecodedGroup, handle
from streaming.query.log_order import LogRow
from streaming.query.output import Output

# Notes of a Python worker's current request, in a file, because a killed worker leaves no error that names
# the request.
#
# Each request then costs a write, so a query has notes only after its workers have died.


WORKER_DIED = "Python worker exited unexpectedly"
"""The error text of a query whose worker ended without a Python error."""

Note = Callable[[str], None]


def no_note(text: str) -> None:
    """Do nothing, because notes are off."""


def note_writer(prefix: str | None, task: int) -> Note:
    """Return a function that writes the notes of a task to its own file, or `no_note` if `prefix` is None."""
    if prefix is None:
        return no_note
    path = Path(f"{prefix}-{task}")

    def note(text: str) -> None:
        path.write_text(text)

    return note


def take_unfinished_notes(prefix: str | None) -> list[str]:
    """Return the notes of tasks that did not finish, and remove all notes. No notes are found if the workers
    run on other machines.
    """
    if prefix is None:
        return []
    texts = []
    for path in sorted(Path(prefix).parent.glob(f"{Path(prefix).name}-*")):
        texts.append(path.read_text())
        path.unlink()
    return [text for text in texts if text]


class ShardCall:
    """A call of the operator. It decodes the shard's map of groups, applies its rows, and writes the map
    back.
    """

    def __init__(
        self,
        shard: int,
        admission: Admission,
        configs: Configs,
        state: SparkGroupState,
        *,
        outages: Sequence[Outage],
        step: StepFunction,
        note: Note = no_note,
    ) -> None:
        self._admission = admission
        self._configs = configs
        self._state = state
        self._outages = outages
        self._step = step
        self._note = note
        self._output = Output(admission.layout)
        self._entries: dict[str, codec.StoredGroup] = {}
        if state.exists:
            version, payload = state.get
            name = f"shard {shard % admission.shards} of partition {admission.partition}"
            self._entries = codec.read_row(name, int(version), bytes(payload))
        self._decoded: dict[str, DecodedGroup] = {}

    def apply(self, rows: Iterable[LogRow]) -> Iterator[pd.DataFrame]:
        """Apply or refuse every message of every row, in the log's order."""
        for row in rows:
            for message in self._admission.messages(row):
                self._apply(message)
                if self._output.is_full:
                    yield from self._output.frame()

    def _apply(self, message: LogMessage) -> None:
        self._note(f"record {message.id}")
        handle(message, self._admission, self._is_known, self._decode_group, self._output)

    def _is_known(self, group_id: str) -> bool:
        return group_id in self._decoded or group_id in self._entries

    def _decode_group(self, group_id: str) -> DecodedGroup:
        """Return the group, decoded at its first use in this call. An unknown group is empty."""
        group = self._decoded.get(group_id)
        if group is None:
            entry = self._entries.get(group_id)
            group = DecodedGroup(group_id, entry, self._configs, self._outages, self._step)
            self._decoded[group_id] = group
        return group

    def finish(self, watermark_ms: int) -> Iterator[pd.DataFrame]:
        """Fire the deadlines that the watermark allows, and write the state, at the end of every call. A call
        that writes state has to set Spark's timeout again, because writing clears it.
        """
        for group_id, entry in self._entries.items():
            if entry.next_deadline_ms is not None and entry.next_deadline_ms <= watermark_ms:
                self._decode_group(group_id)
        for group_id, group in self._decoded.items():
            self._note(f"the deadlines of group {group_id!r}")
            group.fire_until(watermark_ms, self._output)
            self._encode_group(group)
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

    def _encode_group(self, awake: DecodedGroup) -> None:
        """Encode a group that the call has changed, and write its records of compacted topics."""
        group, key = awake.timeline.group, awake.key
        if awake.is_unpublished and isinstance(group, Group):
            self._output.all_offsets(group)
            self._output.all_transactions(group)
        self._output.compacted(awake.timeline.group_id)
        if group is not None:
            if awake.has_news or awake.is_unpublished:
                self._output.snapshot(group)
            entry = codec.encode_group(group, awake.timeline.next_deadline_ms())
            self._entries[group.group_id] = entry
        elif self._entries.pop(awake.timeline.group_id, None) is not None:
            self._output.group_tombstone(key)
