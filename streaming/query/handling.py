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
from state.timeline import JOURNAL_MAX_BYTES, JOURNAL_MAX_STEPS, Row, StepFunction, Timeline
from streaming.query.admission import Admission, LogMessage
from streaming.query.output_values import dead_letter

Version = tuple[str, int] | None


class OperatorError(RuntimeError):
    """The operator failed on a record and could not refuse it. The message names the record."""


class Sink(Protocol):
    """A receiver of the effects of messages and deadlines."""

    def reply(self, reply: Reply | rocketmq.Reply, message: LogMessage | None = None) -> None:
        """Receive a response. `message` is the message that is being applied."""

    def effects(self, effects: AnyEffects, key: bytes, message: LogMessage | None) -> None:
        """Receive the effects of one step of the group with this key.

        `message` is the request that is applied, or None if the step follows the last request.
        """

    def waits_for_views(self, request: AnyRequest, request_id: str) -> None:
        """Leave the response to the query, because it promises that the views on the topics are up to
        date.
        """

    def dead_letter(self, letter: DeadLetter) -> None:
        """Receive a dead letter."""


class DecodedGroup:
    """A decoded group and its timeline, at a position in the log."""

    def __init__(
        self,
        group_id: str,
        entry: codec.StoredGroup | None,
        configs: Configs,
        outages: Sequence[Outage],
        step: StepFunction,
        *,
        journal_max_steps: int = JOURNAL_MAX_STEPS,
        journal_max_bytes: int = JOURNAL_MAX_BYTES,
    ) -> None:
        def restore() -> AnyGroup | None:
            return None if entry is None else codec.decode_group(group_id, entry)

        self.key = group_id.encode()
        self.is_unpublished = entry is not None and entry.next_deadline_ms == codec.UNPUBLISHED_DEADLINE_MS
        group = restore()
        # RocketMQ's deadlines depend on the configuration, which may have changed since the entry was
        # written. So the timeline computes their first deadline again.
        due_ms = entry.next_deadline_ms if entry is not None and isinstance(group, Group) else 0
        self.timeline = Timeline(
            group_id,
            group,
            configs.first,
            restore=restore,
            step=step,
            outages=outages,
            changes=configs.changes,
            due_ms=due_ms,
            journal_max_steps=journal_max_steps,
            journal_max_bytes=journal_max_bytes,
        )
        self._version_before = self.version
        self.version_noted = self.version
        """The last version recorded by `streaming.replica.state_machine.ChangedGroups`."""
        self._faults_reported = 0

    @property
    def version(self) -> Version:
        """The group's incarnation and the number of its last history entry, None if there is no group."""
        group = self.timeline.group
        return None if group is None else (group.incarnation, group.seq)

    @property
    def has_news(self) -> bool:
        """Return True if the group's history has grown since it was decoded."""
        return self.version != self._version_before

    def fire_until(self, until_ms: int, sink: Sink) -> None:
        """Fire the deadlines until a time."""
        self.timeline.fire_until(until_ms)
        self.emit_effects(sink, None)

    def emit_effects(self, sink: Sink, message: LogMessage | None) -> None:
        """Pass the effects and the faults of the steps since the last call to the sink.

        `message` is the message that is being applied, or None after the last one.
        """
        taken = self.timeline.drain_effects()
        for effects in taken:
            sink.effects(effects, self.key, message)
        if len(self.timeline.faults) == self._faults_reported:
            return
        answered = {reply.response.request for effects in taken for reply in effects.replies}
        for fault in self.timeline.faults[self._faults_reported :]:
            text = f"{fault.cause}\n{fault.traceback}"
            is_message = message is not None and fault.cause == message.id  # else an earlier deadline failed
            at_fault = message if is_message else None
            is_answered = at_fault is not None and at_fault.id in answered
            key = self.key if at_fault is None else at_fault.row.key
            sink.dead_letter(dead_letter(Reason.HANDLER_FAILED, text, key, at_fault, answered=is_answered))
            self._faults_reported += 1


def handle(
    message: LogMessage,
    admission: Admission,
    is_known: Callable[[str], bool],
    decode_group: Callable[[str], DecodedGroup],
    sink: Sink,
) -> DecodedGroup | None:
    """Apply or refuse the next message of the log. Raises OperatorError.

    Return its group, or None if the message is refused. `is_known` is as in `Admission.admit`. `decode_group`
    decodes a group by its id.
    """
    request = admission.admit(message, is_known)
    if isinstance(request, Refusal):
        _refuse(request, message, sink)
        return None
    if getattr(request, "waits_for_views", False):
        sink.waits_for_views(request, message.id)
    try:
        group = decode_group(request.group_id)
        group.timeline.apply(Row(message.row.at_ms, message.id, request, len(message.value)))
        group.emit_effects(sink, message)
    except Exception as error:
        raise OperatorError(f"record {message.id} of group {request.group_id!r}: {error}") from error
    return group


def _refuse(refusal: Refusal, message: LogMessage, sink: Sink) -> None:
    response = refusal.response(message.id)
    if response is not None and refusal.address is not None:
        sink.reply(Reply(refusal.address.reply_partition, response), message)
    is_answered = response is not None
    sink.dead_letter(
        dead_letter(refusal.reason, refusal.message, message.row.key, message, answered=is_answered)
    )
