"""The run of one group through its log, step by step, on the same timeline as in the query
(`state.timeline`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kafka_why.contract.codec import Reason, Refusal, encode
from kafka_why.contract.history_reader import AnyHistoryEntry
from kafka_why.contract.layout import TopicLayout
from records.truncation import encode_event
from state.config import Configs, CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.kafka.context import Reply
from state.protocol import Failed, Outage, Received, cause_of
from state.rocketmq import context as rocketmq
from state.timeline import Row, StepFunction, Timeline
from streaming.query.admission import LogMessage
from streaming.query.output_values import dead_letter, response_value

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class SentRecord:
    """A record for a reply partition: an answer, or a message to a RocketMQ connection."""

    reply_partition: int
    value: bytes


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """A history entry, and its record."""

    entry: AnyHistoryEntry
    value: bytes


@dataclass(frozen=True, slots=True)
class ReplayStep(Generic[K]):
    """A step of a group, and its effects."""

    group_id: str
    at_ms: int  # the group's time
    # A request, a deadline, a takeover (the end of an outage), or the `Refusal` of a message, which then does
    # not reach the group.
    event: AnyEvent | Refusal
    # The message that was applied, also for a deadline that fired because of the message. None if a deadline
    # fired without a message.
    message: LogMessage | None
    is_handled: bool  # the recording's last committed batch includes the step
    sent: tuple[SentRecord, ...]
    history: tuple[HistoryRecord, ...]
    letters: tuple[bytes, ...]  # values of dead letters
    captured: K | None  # the result of `capture` (`GroupRun`) after the step

    @property
    def applies_message(self) -> bool:
        """True if the step applies its message. A deadline or takeover precedes a message."""
        return isinstance(self.event, Received | Failed | Refusal)

    @property
    def request_id(self) -> str | None:
        """The id of the step's request, or None."""
        return self.message.id if self.message is not None and self.applies_message else None


class GroupRun(Generic[K]):
    """The run of one group, whose `timeline` has the present group.

    `capture` is called with the group after each step. Its result is the step's `captured`.
    """

    def __init__(
        self,
        group_id: str,
        group: AnyGroup | None,
        layout: TopicLayout,
        configs: Configs,
        outages: Sequence[Outage],
        capture: Callable[[AnyGroup | None], K | None],
        step: StepFunction = step,
    ) -> None:
        self.group_id = group_id
        self._layout = layout
        self._capture = capture
        self._step = step
        self.timeline = Timeline(
            group_id,
            group,
            configs.first,
            step=self._record_step,
            outages=outages,
            changes=configs.changes,
        )
        # The timeline's steps since the last `_drain_steps`: (event, time in ms, effects, captured).
        self._steps: list[tuple[AnyEvent, int, AnyEffects, K | None]] = []

    def apply(self, row: Row, message: LogMessage, is_handled: bool) -> Iterator[ReplayStep[K]]:
        """Apply a request. Yield its step, and the steps of deadlines that are due before or after it."""
        self.timeline.apply(row)
        return self._drain_steps(message, is_handled)

    def fire_until(self, until_ms: int, is_handled: bool) -> Iterator[ReplayStep[K]]:
        """Fire the deadlines that are due until a time."""
        self.timeline.fire_until(until_ms)
        return self._drain_steps(message=None, is_handled=is_handled)

    def _record_step(
        self, group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        """Run a step for the timeline, and record it with the captured group."""
        effects = self._step(group, group_id, event, now_ms, config)
        self._steps.append((event, now_ms, effects, self._capture(effects.group)))
        return effects

    def _drain_steps(self, message: LogMessage | None, is_handled: bool) -> Iterator[ReplayStep[K]]:
        """Yield the timeline's steps since the last call, without the steps that it has repeated.

        `message` is the message that caused them, or None for deadlines that fired without one.
        """
        effective = {id(effects) for effects in self.timeline.drain_effects()}
        steps, self._steps = self._steps, []
        fault_letters = {
            fault.cause: self._fault_letter(fault.cause, fault.traceback, message)
            for fault in self.timeline.faults
        }
        self.timeline.faults.clear()
        for event, at_ms, effects, captured in steps:
            # To undo a failed step, the timeline repeats earlier steps. Their effects do not count again.
            if id(effects) not in effective:
                continue
            sent, too_large_letters = self._sent_records(effects, message)
            fault_letter = fault_letters.pop(cause_of(event), None) if fault_letters else None
            yield ReplayStep(
                self.group_id,
                at_ms,
                event,
                message,
                is_handled,
                sent,
                tuple(
                    HistoryRecord(entry, encode_event(entry, self._layout.view_max_bytes))
                    for entry in effects.history
                ),
                too_large_letters if fault_letter is None else (*too_large_letters, fault_letter),
                captured,
            )

    def _sent_records(
        self, effects: AnyEffects, message: LogMessage | None
    ) -> tuple[tuple[SentRecord, ...], tuple[bytes, ...]]:
        """Return the records that a step sends, and the dead letters of its answers that were too large."""
        answers = [answer_records(reply, message, self._layout) for reply in effects.replies]
        sent = [answer for answer, _ in answers]  # a too large answer is replaced by an error
        if isinstance(effects, rocketmq.Effects):
            sent += [SentRecord(p.reply_partition, encode(p.message)) for p in effects.pushes]
        return tuple(sent), tuple(letter for _, letter in answers if letter is not None)

    def _fault_letter(self, cause: str, traceback: str, message: LogMessage | None) -> bytes:
        """Return the dead letter of a step that raised. `cause` is the id of its request, or its deadline."""
        failed_message = message if message is not None and message.id == cause else None
        key = self.group_id.encode() if failed_message is None else failed_message.row.key
        # A message without an answer, such as TopicMetadata, is not answered if it fails either.
        text = f"{cause}\n{traceback}"
        return encode(dead_letter(Reason.HANDLER_FAILED, text, key, failed_message, answered=False))


def answer_records(
    reply: Reply | rocketmq.Reply, message: LogMessage | None, layout: TopicLayout
) -> tuple[SentRecord, bytes | None]:
    """Return the record of an answer, and a dead letter if the answer is too large."""
    value, letter = response_value(reply, layout.response_max_bytes, message)
    return SentRecord(reply.reply_partition, value), None if letter is None else encode(letter)
