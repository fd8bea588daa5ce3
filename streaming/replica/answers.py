"""The early answers that the replica has not appended yet."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kafka_why.contract.codec import (
    PACK_MAX_REQUESTS,
    AnyRequest,
    DeadLetter,
    encode,
    is_packed,
    pack,
    transaction_key,
)
from kafka_why.contract.early_answers import Commits
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.contract.kafka.responses import DescribeGroupResponse, ListedGroup
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.rocketmq.requests import NotifyConsumerIdsChanged
from state.dispatch import AnyEffects
from state.kafka.context import Effects, Reply
from state.rocketmq import context as rocketmq
from streaming.query.admission import LogMessage
from streaming.query.output_values import ANSWERS_MAX_BYTES, response_value, transaction_record


@dataclass(slots=True)
class EarlyRecord:
    """A record for a reply partition, the answers in it by their requests' ids, and the offsets that these
    requests have committed.
    """

    reply_partition: int
    value: bytes
    answers: dict[str, bytes]
    commits: Commits = field(default_factory=dict)


@dataclass(slots=True)
class _Pack:
    answers: dict[str, bytes] = field(default_factory=dict)
    commits: Commits = field(default_factory=dict)
    size_bytes: int = 0


class Answers:
    """A sink that collects only the answers, because the query writes history, views and offsets.

    It also collects the changes of pending transactions, because the service needs them early, and
    notifications for RocketMQ's clients, which may then get them twice. The query closes the clients'
    connections. While it `is_silent`, it collects no answers. `list_changed` lists the groups of a group's
    partition that have changed since the last committed batch.
    """

    def __init__(
        self, response_max_bytes: int, list_changed: Callable[[str], list[ListedGroup] | None]
    ) -> None:
        self.is_silent = True
        self._list_changed = list_changed
        self._response_max_bytes = response_max_bytes
        self._left_to_query: set[str] = set()
        self._packs: dict[int, _Pack] = {}
        self._records: list[EarlyRecord] = []
        self.size_bytes = 0
        self.is_incomplete = False
        """True if the query will write more than these answers."""
        self.transactions: list[tuple[bytes, bytes | None]] = []
        """Keys and values that the query will write to the transactions topic."""

    def reply(self, reply: Reply | rocketmq.Reply, message: LogMessage | None = None) -> None:
        self._answer(reply, [])

    def _answer(self, reply: Reply | rocketmq.Reply, committed: list[int]) -> None:
        request = reply.response.request
        if self._left_to_query and request in self._left_to_query:
            self._left_to_query.discard(request)
            return
        if self.is_silent:
            self.is_incomplete = True
            return
        value, _ = response_value(reply, self._response_max_bytes)
        self.size_bytes += len(value)
        if not is_packed(request):
            self._close(reply.reply_partition)
            commits = {0: committed} if committed else {}
            self._records.append(EarlyRecord(reply.reply_partition, value, {request: value}, commits))
            return
        waiting = self._packs.get(reply.reply_partition)
        if waiting is not None and waiting.size_bytes + len(value) > ANSWERS_MAX_BYTES:
            self._close(reply.reply_partition)  # with a large response it could exceed the topic's limit
            waiting = None
        if waiting is None:
            waiting = self._packs[reply.reply_partition] = _Pack()
        if committed:
            waiting.commits[len(waiting.answers)] = committed
        waiting.answers[request] = value
        waiting.size_bytes += len(value)
        if waiting.size_bytes >= ANSWERS_MAX_BYTES or len(waiting.answers) >= PACK_MAX_REQUESTS:
            self._close(reply.reply_partition)

    def effects(self, effects: AnyEffects, key: bytes, message: LogMessage | None) -> None:
        self.is_incomplete |= _has_more_than_replies(effects)
        if self.is_silent or isinstance(effects, rocketmq.Effects):
            for reply in effects.replies:
                self._answer(reply, [])
            if not self.is_silent and isinstance(effects, rocketmq.Effects):
                self._notify(effects)
            return
        committed = _committed(effects) if effects.offsets or effects.transactions else []
        for reply in effects.replies:
            is_sender = message is not None and reply.response.request == message.id
            self._answer(reply, committed if is_sender else [])
        for change in effects.transactions:
            record = transaction_record(effects, change)
            self.transactions.append(
                (
                    transaction_key(key.decode(), change.producer_id, change.request),
                    None if record is None else encode(record),
                )
            )

    def _notify(self, effects: rocketmq.Effects) -> None:
        for push in effects.pushes:
            if isinstance(push.message, NotifyConsumerIdsChanged):
                value = encode(push.message)
                self.size_bytes += len(value)
                self._close(push.reply_partition)
                self._records.append(EarlyRecord(push.reply_partition, value, {}))

    def waits_for_views(self, request: AnyRequest, request_id: str) -> None:
        self._left_to_query.add(request_id)
        self.is_incomplete = True
        if self.is_silent or not isinstance(request, DescribeGroup) or request.lists_changed is not True:
            return
        changed = self._list_changed(request.group_id)
        if changed is None:
            return
        answer = DescribeGroupResponse(
            group_id=request.group_id,
            correlation_id=request.correlation_id,
            request=request_id,
            error_code=ErrorCode.NONE,
            changed=changed,
        )
        self._close(request.reply_partition)
        # The query answers this request differently, so the audit does not compare the answers.
        self._records.append(EarlyRecord(request.reply_partition, encode(answer), {}))

    def dead_letter(self, letter: DeadLetter) -> None:
        """Leave it to the query."""
        self.is_incomplete = True

    def drain(self) -> list[EarlyRecord]:
        """Return and clear the records to append."""
        for reply_partition in list(self._packs):
            self._close(reply_partition)
        taken, self._records, self.size_bytes = self._records, [], 0
        return taken

    def _close(self, reply_partition: int) -> None:
        waiting = self._packs.pop(reply_partition, None)
        if waiting is not None:
            value = pack(waiting.answers.values())
            self._records.append(EarlyRecord(reply_partition, value, waiting.answers, waiting.commits))


def _has_more_than_replies(effects: AnyEffects) -> bool:
    if isinstance(effects, rocketmq.Effects):
        return bool(effects.history or effects.pushes)
    return bool(effects.history or effects.offsets or effects.transactions)


def _committed(effects: Effects) -> list[int]:
    """Return the offsets that a request has committed, or holds for its transaction, in its order."""
    if effects.offsets:
        return [change.offset.offset for change in effects.offsets if change.offset is not None]
    return [
        offset.offset
        for change in effects.transactions
        if change.pending is not None
        for offsets in change.pending.offsets.values()
        for offset in offsets.values()
    ]
