"""The progress of a share group's partitions at the share coordinator, from the group's view."""

from collections.abc import Iterator

from kafka_why.contract.kafka.snapshot import GroupSnapshot, NamedPartitions, ShareSnapshot
from kafka_why.contract.protocols.subscriptions import by_topic
from kafka_why.why.reconciling import flat
from kafka_why.why.share_state import asked_of, asked_text, error_text
from kafka_why.why.wording import count, duration_text, partitions_text

LONG_MS = 60_000
"""Tasks normally stay open this long while a share coordinator moves."""


def share_of(view: GroupSnapshot) -> ShareSnapshot | None:
    """Return the part of a view that only share groups have, or None for another type of group."""
    return (view.consumer.share or None) if view.consumer else None


def lines_of(view: GroupSnapshot, now_ms: int) -> list[str]:
    """Return lines about the numbers of partitions, the open tasks with their ages, and unassigned
    partitions.
    """
    share = share_of(view)
    return [] if share is None else [*_lines(view, share, now_ms)]


def _lines(view: GroupSnapshot, share: ShareSnapshot, now_ms: int) -> Iterator[str]:
    numbers = {kind: _number(getattr(share, kind)) for kind in ("initialized", "initializing", "deleting")}
    parts = [f"{number} {kind}" for kind, number in numbers.items() if number]
    yield f"{count(sum(numbers.values()), 'partition')}: {', '.join(parts)}" if parts else "none"
    for asked in asked_of(share):
        yield asked_text(asked, now_ms)
    held = (flat(member.consumer.assigned) for member in view.members if member.consumer is not None)
    idle = flat(share.initialized).difference(*held)
    if view.members and idle:
        yield f"no member has {partitions_text(by_topic(idle))}"


def overdue(view: GroupSnapshot, now_ms: int) -> tuple[str, int] | None:
    """Return a sentence about the oldest task that has been open too long, and its time, or None."""
    share = share_of(view)
    late = [one for one in asked_of(share) if now_ms - one.since_ms >= LONG_MS] if share is not None else []
    if not late:
        return None
    first = late[0]
    number = count(sum(_number(one.partitions) for one in late), "partition")
    what = "has not deleted the state of" if first.is_deletion else "has not initialized"
    error = "" if first.error_code is None else f", with {error_text(first.error_code)}"
    lasted = duration_text(now_ms - first.since_ms)
    sentence = (
        f"The share coordinator {what} {number} for {lasted}{error}: {partitions_text(first.partitions)}"
    )
    return sentence, first.since_ms


def _number(partitions: NamedPartitions) -> int:
    return sum(map(len, partitions.values()))
