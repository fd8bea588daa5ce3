"""The effects of a step, as data.

Ordering contract: replies and history entries of one step are published in their order here, and steps in
the order in which they ran. Nothing is published before the group's new state is as durable as its log.
The micro-batch guarantees this: a batch whose state was not committed runs again with byte-identical
output. A reader that drops duplicates (by `Response.request`, by `(group_id, incarnation, seq)`)
therefore never sees two different outcomes.
"""

from collections.abc import Iterable

from msgspec import Struct

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.offsets import OffsetChange
from kafka_why.contract.kafka.responses import AnyResponse
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.group import ConfigsOnly, PendingOffsets
from state.kafka.share_group import ShareGroup

KafkaGroup = ClassicGroup | ConsumerGroup | ShareGroup


class Reply(Struct, frozen=True):
    """An answer, and the partition of the responses topic for it."""

    reply_partition: int
    response: AnyResponse


class TransactionChange(Struct, frozen=True):
    """The pending offsets of a request of a producer, as they are now, None if they are no longer pending."""

    producer_id: int
    request: str
    pending: PendingOffsets | None


class Effects(Struct, frozen=True):
    """The outcome of one step: the group after it, and the messages.

    Without a group there may be settings for it. It is None if there is neither.

    `rules` are the rows of docs/rules.md that were applied, in order, for the tests of these rows: those that
    decided an answer or an entry are in it, too. `earliest_armed_ms` is the earliest
    deadline that the step armed, in ms, None if it armed none. The timeline uses it instead of a search.
    """

    group: KafkaGroup | ConfigsOnly | None
    replies: list[Reply]
    history: list[HistoryEntry]
    offsets: list[OffsetChange]
    rules: list[str]
    earliest_armed_ms: int | None
    transactions: list[TransactionChange] = []


def unchanged(group: KafkaGroup | ConfigsOnly, answers: Iterable[tuple[int, AnyResponse]]) -> Effects:
    """Return the effects of a step that changes nothing and gives these answers, each with its partition."""
    return Effects(group, [Reply(*answer) for answer in answers], [], [], [], None)
