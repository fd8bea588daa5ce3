"""How long partitions had no consumer during a rebalance.

With an eager protocol a member revokes all its partitions when it rejoins, and has partitions again when the
group is Stable. With the cooperative protocol a member keeps them. Idle are then only the partitions of a
removed member, and those that the rebalance before revoked and did not assign. A member that was removed
because it was silent may have stopped earlier; the history does not say when.
"""

from collections.abc import Iterable, Mapping

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition
from kafka_why.why.assignments import Holdings
from kafka_why.why.model import Idle

COOPERATIVE = "cooperative-sticky"

_JOINS = (EntryType.MEMBER_REJOINED, EntryType.MEMBER_REPLACED)


def idle(
    held: Holdings,
    released: Mapping[TopicPartition, MemberId],
    entries: Iterable[HistoryEntry],
    span_ms: tuple[int, int],
    *,
    protocol_name: str | None,
    settled: bool,
) -> Idle:
    """`held` is the assignment before, `entries` are the rebalance's, `span_ms` its beginning and end.

    `settled`: the group was Stable before. If it was not, members of an eager protocol hold nothing from the
    beginning on.
    """
    began_ms, ended_ms = span_ms
    cooperative = protocol_name == COOPERATIVE
    stops = (EntryType.MEMBER_REMOVED,) if cooperative else (*_JOINS, EntryType.MEMBER_REMOVED)
    stopped_ms: dict[MemberId, int] = {}
    for event in entries:
        if event.type in stops and event.member_id is not None:
            stopped_ms.setdefault(event.member_id, event.at_ms)
    if not settled and not cooperative:
        stopped_ms = dict.fromkeys(held, began_ms)
    times = [(len(released), ended_ms - began_ms)]
    seen = set(released)
    for member_id in reversed([m for m in held if m in stopped_ms]):
        # Of several owners, which only a faulty leader assigns, the last counts.
        times.append((len(held[member_id] - seen), ended_ms - stopped_ms[member_id]))
        seen |= held[member_id]
    times = [(number, ms) for number, ms in times if number and ms > 0]
    return Idle(
        sum(number for number, _ in times),
        sum(number * ms for number, ms in times),
        max((ms for _, ms in times), default=0),
    )
