"""The early answers that the replica has not appended to the responses topic yet. An early answer precedes
the query's answer to the same request.
"""

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
    """A record for a partition of the responses topic.

    `answers` are the answers in its value, by the ids of their requests, without those that the audit must
    not compare. `commits` are the offsets that the requests have committed, by the position of the answer in
    the record.
    """

    reply_partition: int
    value: bytes
    answers: dict[str, bytes]
    commits: Commits = field(default_factory=dict)


@dataclass(slots=True)
class _Pack:
    """An open pack, to which answers are added. It becomes one `EarlyRecord` with the same `answers` and
    `commits`.
    """

    answers: dict[str, bytes] = field(default_factory=dict)
    commits: Commits = field(default_factory=dict)
    size_bytes: int = 0


class Answers:
    """A `streaming.query.handling.Sink` that collects only the answers, because the query writes history,
    views and offsets.

    It also collects the changes of pending transactions, because the service needs them early, and the
    notifications of RocketMQ's clients, who may get them from the query again. It leaves to the query the
    pushes that close clients' connections. While `is_silent`, it collects nothing.
    `changed_in_partition_of` returns the groups in a group's partition that have changed since the last
    committed batch, or None if there are too many.
    """

    def __init__(
        self, response_max_bytes: int, changed_in_partition_of: Callable[[str], list[ListedGroup] | None]
    ) -> None:
        self.is_silent = True
        self._changed_in_partition_of = changed_in_partition_of
        self._response_max_bytes = response_max_bytes
        self._left_to_query: set[str] = set()  # ids of requests
        self._open_packs: dict[int, _Pack] = {}  # by reply partition
        self._records: list[EarlyRecord] = []
        self.size_bytes = 0  # of the answers since the last `drain`
        self.is_incomplete = False
        """True if the query will write more than these answers. The caller sets it back to False."""
        self.transactions: list[tuple[bytes, bytes | None]] = []
        """Keys and values that the query will write to the transactions topic until the caller takes them."""

    def add_reply(self, reply: Reply | rocketmq.Reply, message: LogMessage | None = None) -> None:
        self._add_answer(reply, committed_offsets=[])

    def _add_answer(self, reply: Reply | rocketmq.Reply, committed_offsets: list[int]) -> None:
        """Add an early answer, unless it is left to the query or `is_silent`.

        `committed_offsets` are the offsets that its request has committed. Their partitions are in the
        answer, in the same order.
        """
        request_id = reply.response.request
        if request_id in self._left_to_query:
            self._left_to_query.discard(request_id)
            return
        if self.is_silent:
            self.is_incomplete = True
            return
        value, _ = response_value(reply, self._response_max_bytes)
        self.size_bytes += len(value)
        if not is_packed(request_id):
            self._close_pack(reply.reply_partition)
            commits = {0: committed_offsets} if committed_offsets else {}
            self._records.append(EarlyRecord(reply.reply_partition, value, {request_id: value}, commits))
            return
        open_pack = self._open_packs.get(reply.reply_partition)
        if open_pack is not None and open_pack.size_bytes + len(value) > ANSWERS_MAX_BYTES:
            self._close_pack(reply.reply_partition)  # with a large response it could exceed the topic's limit
            open_pack = None
        if open_pack is None:
            open_pack = self._open_packs[reply.reply_partition] = _Pack()
        if committed_offsets:
            open_pack.commits[len(open_pack.answers)] = committed_offsets
        open_pack.answers[request_id] = value
        open_pack.size_bytes += len(value)
        if open_pack.size_bytes >= ANSWERS_MAX_BYTES or len(open_pack.answers) >= PACK_MAX_REQUESTS:
            self._close_pack(reply.reply_partition)

    def add_effects(self, effects: AnyEffects, key: bytes, message: LogMessage | None) -> None:
        self.is_incomplete |= _has_more_than_replies(effects)
        if isinstance(effects, rocketmq.Effects):
            for rocketmq_reply in effects.replies:
                self._add_answer(rocketmq_reply, committed_offsets=[])
            if not self.is_silent:
                self._add_notifications(effects)
            return
        committed_offsets = _committed_offsets(effects) if effects.offsets or effects.transactions else []
        for reply in effects.replies:
            # A step may also answer earlier requests that waited, but only the applied one commits offsets.
            answers_message = message is not None and reply.response.request == message.id
            self._add_answer(reply, committed_offsets if answers_message else [])
        if self.is_silent:
            return
        for change in effects.transactions:
            record = transaction_record(effects, change)
            self.transactions.append(
                (
                    transaction_key(key.decode(), change.producer_id, change.request),
                    None if record is None else encode(record),
                )
            )

    def _add_notifications(self, effects: rocketmq.Effects) -> None:
        """Add a record for each push that notifies a client of changed consumers of its group."""
        for push in effects.pushes:
            if isinstance(push.message, NotifyConsumerIdsChanged):
                value = encode(push.message)
                self.size_bytes += len(value)
                self._close_pack(push.reply_partition)
                self._records.append(EarlyRecord(push.reply_partition, value, {}))

    def leave_response_to_query(self, request: AnyRequest, request_id: str) -> None:
        """Leave the response to the query. If the request asks for changed groups (`lists_changed`), send
        these in a record of their own.
        """
        self._left_to_query.add(request_id)
        self.is_incomplete = True
        if self.is_silent or not isinstance(request, DescribeGroup) or request.lists_changed is not True:
            return
        changed = self._changed_in_partition_of(request.group_id)
        if changed is None:
            return
        answer = DescribeGroupResponse(
            group_id=request.group_id,
            correlation_id=request.correlation_id,
            request=request_id,
            error_code=ErrorCode.NONE,
            changed=changed,
        )
        self._close_pack(request.reply_partition)
        # The query answers this request differently, so the audit does not compare the answers.
        self._records.append(EarlyRecord(request.reply_partition, encode(answer), {}))

    def add_dead_letter(self, letter: DeadLetter) -> None:
        """Leave the dead letter to the query."""
        self.is_incomplete = True

    def drain(self) -> list[EarlyRecord]:
        """Return and clear the records to append."""
        for reply_partition in list(self._open_packs):
            self._close_pack(reply_partition)
        records, self._records, self.size_bytes = self._records, [], 0
        return records

    def _close_pack(self, reply_partition: int) -> None:
        """Add the record of the open pack for this reply partition, if there is one."""
        open_pack = self._open_packs.pop(reply_partition, None)
        if open_pack is not None:
            value = pack(open_pack.answers.values())
            self._records.append(EarlyRecord(reply_partition, value, open_pack.answers, open_pack.commits))


def _has_more_than_replies(effects: AnyEffects) -> bool:
    if isinstance(effects, rocketmq.Effects):
        return bool(effects.history or effects.pushes)
    return bool(effects.history or effects.offsets or effects.transactions)


def _committed_offsets(effects: Effects) -> list[int]:
    """Return the offsets that a request has committed or that wait for its transaction, in the order of the
    request.
    """
    if effects.offsets:
        return [change.offset.offset for change in effects.offsets if change.offset is not None]
    return [
        offset.offset
        for change in effects.transactions
        if change.pending is not None
        for offsets in change.pending.offsets.values()
        for offset in offsets.values()
    ]
