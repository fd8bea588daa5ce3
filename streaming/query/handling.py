"""The handling of one message of the log: its effects on its group, and its answer. The operator and the
replica (`streaming.replica`) share it, so they give the same answers.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from checkpoints import codec
from kafka_why.contract.codec import AnyRequest, DeadLetter, Reason, Refusal
from state.config import Configs
from state.dispatch import AnyEffects, AnyGroup
from state.kafka.context import Reply
from state.kafka.group import Group
from state.protocol import Outage
from state.rocketmq import context as rocketmq
from state.timeline import JOURNAL_MAX_BYTES, Row, StepFunction, Timeline
from streaming.query.admission import Admission, LogMessage
from streaming.query.output_values import dead_letter

Version = tuple[str, int] | None
"""`DecodedGroup.version`: the group's incarnation and the number of its last history entry."""


class OperatorError(RuntimeError):
    """The operator failed on a record and could not refuse it. The message names the record."""


class Sink(Protocol):
    """A receiver of the effects of messages and deadlines.

    `message` is the message that is being applied, or None while only deadlines fire.
    """

    def add_reply(self, reply: Reply | rocketmq.Reply, message: LogMessage | None = None) -> None:
        """Add a response."""

    def add_effects(self, effects: AnyEffects, key: bytes, message: LogMessage | None) -> None:
        """Add the effects of one step of the group. `key` is the group id, the key of the group's records."""

    def leave_response_to_query(self, request: AnyRequest, request_id: str) -> None:
        """Leave the response to this request to the query. The response promises that the views, the groups'
        latest records on the groups topic, are up to date, and only the query writes them.
        """

    def add_dead_letter(self, letter: DeadLetter) -> None:
        """Add a dead letter."""


class DecodedGroup:
    """A decoded group, or a group id that has no group yet, and the timeline that applies its messages and
    deadlines in time order. `entry` is the stored group, or None if there is none.
    """

    def __init__(
        self,
        group_id: str,
        entry: codec.StoredGroup | None,
        configs: Configs,
        outages: Sequence[Outage],
        step: StepFunction,
        *,
        journal_max_bytes: int = JOURNAL_MAX_BYTES,
    ) -> None:
        def decode_entry() -> AnyGroup | None:  # the timeline calls it again to undo a failed step
            return None if entry is None else codec.decode_group(group_id, entry)

        self.key = group_id.encode()
        self.is_unpublished = entry is not None and entry.next_deadline_ms == codec.UNPUBLISHED_DEADLINE_MS
        """True for an imported group that has no records on the compacted topics yet."""
        group = decode_entry()
        # Only Kafka's groups use the stored deadline. RocketMQ's deadlines depend on the configuration, which
        # may have changed since the entry was written. With 0 the timeline computes the first one again.
        due_ms = entry.next_deadline_ms if entry is not None and isinstance(group, Group) else 0
        self.timeline = Timeline(
            group_id,
            group,
            configs.first,
            restore=decode_entry,
            step=step,
            outages=outages,
            changes=configs.changes,
            due_ms=due_ms,
            journal_max_bytes=journal_max_bytes,
        )
        self.timeline.encoded_bytes = 0 if entry is None else len(entry.group)
        self._stored_version = self.version
        self.counted_bytes = 0
        """The memory of this group that `streaming.replica.groups.ReplicaGroups` has counted."""
        self.recorded_version = self.version
        """The last version recorded by `streaming.replica.state_machine.ChangedGroups`."""

    @property
    def version(self) -> Version:
        """The group's incarnation, which distinguishes it from an earlier group of the same name, and the
        number of its last history entry. None if there is no group.
        """
        group = self.timeline.group
        return None if group is None else (group.incarnation, group.seq)

    @property
    def has_new_history(self) -> bool:
        """True if the history has grown since the group was decoded, or a new group has begun."""
        return self.version != self._stored_version

    def fire_until(self, until_ms: int, sink: Sink) -> None:
        """Fire the deadlines that are due at `until_ms`, and pass their effects to the sink."""
        self.timeline.fire_until(until_ms)
        self.emit_effects(sink, None)

    def emit_effects(self, sink: Sink, message: LogMessage | None) -> None:
        """Pass to the sink the effects of the steps since the last call, and a dead letter for each step that
        raised.

        `message` is the message that was applied since then, or None if only deadlines have fired.
        """
        effects_of_steps = self.timeline.drain_effects()
        for effects in effects_of_steps:
            sink.add_effects(effects, self.key, message)
        if not self.timeline.faults:
            return
        answered_ids = {reply.response.request for effects in effects_of_steps for reply in effects.replies}
        for fault in self.timeline.faults:
            text = f"{fault.cause}\n{fault.traceback}"
            # A fault with another cause is that of a deadline.
            failed_message = message if message is not None and fault.cause == message.id else None
            is_answered = failed_message is not None and failed_message.id in answered_ids
            key = self.key if failed_message is None else failed_message.row.key
            sink.add_dead_letter(
                dead_letter(Reason.HANDLER_FAILED, text, key, failed_message, answered=is_answered)
            )
        self.timeline.faults.clear()


def handle(
    message: LogMessage,
    admission: Admission,
    is_known: Callable[[str], bool],
    decode_group: Callable[[str], DecodedGroup],
    sink: Sink,
) -> DecodedGroup | None:
    """Apply the next message of the log to its group, and return the group. If `admission` refuses the
    message, return None.

    `is_known` returns True for a group that exists in this shard. `decode_group` decodes a group by its id.
    The effects go to `sink`. Raises OperatorError.
    """
    request = admission.admit(message, is_known)
    if isinstance(request, Refusal):
        _refuse(request, message, sink)
        return None
    if getattr(request, "waits_for_views", False):
        sink.leave_response_to_query(request, message.id)
    try:
        group = decode_group(request.group_id)
        group.timeline.apply(Row(message.row.at_ms, message.id, request, len(message.value)))
        group.emit_effects(sink, message)
    except Exception as error:
        raise OperatorError(f"record {message.id} of group {request.group_id!r}: {error}") from error
    return group


def _refuse(refusal: Refusal, message: LogMessage, sink: Sink) -> None:
    """Add the dead letter of a refused message, and an error response if the message has a reply address."""
    response = refusal.response(message.id)
    if response is not None and refusal.address is not None:
        sink.add_reply(Reply(refusal.address.reply_partition, response), message)
    is_answered = response is not None
    sink.add_dead_letter(
        dead_letter(refusal.reason, refusal.message, message.row.key, message, answered=is_answered)
    )
