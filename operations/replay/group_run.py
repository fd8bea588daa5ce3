"""The run of one group through its log, step by step, by the operator's timeline."""

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
    # A request, deadline or takeover, or a `Refusal` before the message reached the group.
    event: AnyEvent | Refusal
    # The message that was being applied. Its time fires earlier deadlines. None after the last message.
    message: LogMessage | None
    is_handled: bool  # the recording's last committed batch includes the step
    sent: tuple[SentRecord, ...]
    history: tuple[HistoryRecord, ...]
    letters: tuple[bytes, ...]  # values of dead letters
    kept: K | None  # result of `GroupRun`'s `keep` after the step

    @property
    def is_own(self) -> bool:
        """True if the step applies its message. A deadline or takeover precedes a message."""
        return isinstance(self.event, Received | Failed | Refusal)

    @property
    def request_id(self) -> str | None:
        """The id of the step's request, or None."""
        return self.message.id if self.message is not None and self.is_own else None


class GroupRun(Generic[K]):
    """The run of one group, whose `timeline` has the present group.

    `keep` is called with the group after each step. Its result is the step's `kept`.
    """

    def __init__(
        self,
        group_id: str,
        group: AnyGroup | None,
        layout: TopicLayout,
        configs: Configs,
        outages: Sequence[Outage],
        keep: Callable[[AnyGroup | None], K | None],
        step: StepFunction = step,
    ) -> None:
        self.group_id = group_id
        self._layout = layout
        self._keep = keep
        self._step = step
        self.timeline = Timeline(
            group_id,
            group,
            configs.first,
            step=self._record_step,
            outages=outages,
            changes=configs.changes,
        )
        self._steps: list[tuple[AnyEvent, int, AnyEffects, K | None]] = []
        self._faults_reported = 0

    def apply(self, row: Row, message: LogMessage, is_handled: bool) -> Iterator[ReplayStep[K]]:
        """Apply a request. Yield the deadlines before it, the request, and the deadlines due with it."""
        self.timeline.apply(row)
        return self._entries(message, is_handled)

    def fire_until(self, until_ms: int, is_handled: bool) -> Iterator[ReplayStep[K]]:
        """Fire the deadlines that are due until a time."""
        self.timeline.fire_until(until_ms)
        return self._entries(None, is_handled)

    def _record_step(
        self, group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        effects = self._step(group, group_id, event, now_ms, config)
        self._steps.append((event, now_ms, effects, self._keep(effects.group)))
        return effects

    def _entries(self, message: LogMessage | None, is_handled: bool) -> Iterator[ReplayStep[K]]:
        """Yield the steps since the last call."""
        effective = {id(effects) for effects in self.timeline.drain_effects()}
        steps, self._steps = self._steps, []
        faults = self.timeline.faults[self._faults_reported :]
        self._faults_reported = len(self.timeline.faults)
        letters = {fault.cause: self._failed(fault.cause, fault.traceback, message) for fault in faults}
        for event, at_ms, effects, kept in steps:
            # The timeline repeated this step only to undo a failed one.
            if id(effects) not in effective:
                continue
            sent, too_large = self._sent(effects, message)
            failed = letters.pop(cause_of(event), None) if letters else None
            yield ReplayStep(
                self.group_id,
                at_ms,
                event,
                message,
                is_handled,
                sent,
                tuple(
                    HistoryRecord(record, encode_event(record, self._layout.view_max_bytes))
                    for record in effects.history
                ),
                too_large if failed is None else (*too_large, failed),
                kept,
            )

    def _sent(
        self, effects: AnyEffects, message: LogMessage | None
    ) -> tuple[tuple[SentRecord, ...], tuple[bytes, ...]]:
        answers = [answer_records(reply, message, self._layout) for reply in effects.replies]
        sent = [answer for answer, _ in answers]
        if isinstance(effects, rocketmq.Effects):
            sent += [SentRecord(p.reply_partition, encode(p.message)) for p in effects.pushes]
        return tuple(sent), tuple(letter for _, letter in answers if letter is not None)

    def _failed(self, cause: str, traceback: str, message: LogMessage | None) -> bytes:
        at_fault = message if message is not None and message.id == cause else None
        key = self.group_id.encode() if at_fault is None else at_fault.row.key
        # A message without an answer, such as TopicMetadata, is not answered if it fails either.
        text = f"{cause}\n{traceback}"
        return encode(dead_letter(Reason.HANDLER_FAILED, text, key, at_fault, answered=False))


def answer_records(
    reply: Reply | rocketmq.Reply, message: LogMessage | None, layout: TopicLayout
) -> tuple[SentRecord, bytes | None]:
    """Return the record of an answer, and a dead letter if the answer is too large."""
    request = reply.response.request
    value, too_large = response_value(reply, layout.response_max_bytes)
    sent = SentRecord(reply.reply_partition, value)
    if too_large is None:
        return sent, None
    at_hand = message if message is not None and message.id == request else None
    key = b"" if at_hand is None else at_hand.row.key
    letter = dead_letter(Reason.RESPONSE_TOO_LARGE, too_large, key, at_hand, request, answered=True)
    return sent, encode(letter)
