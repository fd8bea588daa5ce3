"""What a step wants done, as data.

Ordering contract: the replies and history entries of one step are published in the order they stand here,
steps in the order they were taken, and none before the group's new state is as durable as the log it came
from. The micro-batch gives that: a batch whose state was not committed runs again and says the same, byte for
byte, so a reader who drops what it has already seen (by `Response.request`, by `(group_id, incarnation,
seq)`) never sees two different truths.
"""

from msgspec import Struct

from state.kafka.group import Group, Offset
from state.kafka.history import HistoryEntry
from state.kafka.responses import AnyResponse


class Reply(Struct, frozen=True):
    """An answer, and the partition of the responses topic it goes to."""

    reply_partition: int
    response: AnyResponse


class OffsetChange(Struct, frozen=True):
    """A partition's committed offset is another one now; None: there is none any more."""

    topic: str
    partition: int
    offset: Offset | None


class Effects(Struct, frozen=True):
    """The outcome of one step: the group after it (None where there is none), and what it said.

    `rules` are the rows of docs/rules.md that were applied, in order. `earliest_armed_ms` is the earliest
    deadline the step armed, None where it armed none: whoever keeps time need not search for it.
    """

    group: Group | None
    replies: list[Reply]
    history: list[HistoryEntry]
    offsets: list[OffsetChange]
    rules: list[str]
    earliest_armed_ms: int | None
