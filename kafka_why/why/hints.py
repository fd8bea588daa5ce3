"""Remarks on replaced static members, on members that share no topic, and on topics that have grown."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition
from kafka_why.partition_text import partition_list
from kafka_why.why.model import CauseKind, Rebalance
from kafka_why.why.wording import Clock, count, shortened


def hints_of_entries(entries: Sequence[HistoryEntry]) -> Iterator[str]:
    """Yield a sentence on static members that were replaced, and on members that share no topic."""
    replaced = [it for it in entries if it.type is EntryType.MEMBER_REPLACED and it.group_instance_id]
    times, last_ms = (
        Counter(it.group_instance_id for it in replaced),
        {it.group_instance_id: it.at_ms for it in replaced},
    )
    names = [
        f"{name} {count(times[name], 'time')}, last at {Clock(UTC).time(at_ms)} UTC"
        for name, at_ms in last_ms.items()
    ]
    if names:
        yield (
            f"another instance took the place of a static member: {shortened(names)}. A restart does that. "
            "If the former one still ran, two clients share its group.instance.id, and it was fenced "
            "(FENCED_INSTANCE_ID)"
        )
    formed = [it for it in entries if it.type is EntryType.COMPLETING_REBALANCE]
    parts = _unrelated((formed[-1].subscriptions or {}) if formed else {})
    if len(parts) > 1:
        listed = "; ".join(f"{shortened(parts[part])} to {shortened(sorted(part))}" for part in parts)
        yield (
            f"members subscribe to topics that the others do not: {listed}. Each rebalances the others; "
            "applications that share no topic should have a group.id each"
        )


def _unrelated(subscriptions: Mapping[MemberId, Sequence[str]]) -> dict[frozenset[str], list[MemberId]]:
    """Return the sets of topics that no member connects, each with its members."""
    parts: dict[frozenset[str], list[MemberId]] = {}
    for member_id, topics in subscriptions.items():
        touched = [part for part in parts if part & set(topics)]
        members = [it for part in touched for it in parts.pop(part)]
        if topics:
            parts[frozenset(topics).union(*touched)] = [*members, member_id]
    return parts


def new_partitions(r: Rebalance) -> str:
    """Return the partitions whose topics have likely grown: the members are the same, and nobody had those
    partitions before. "" if there are none.
    """
    again = (CauseKind.JOINED_AGAIN, CauseKind.LEADER_REJOINED, CauseKind.METADATA_CHANGED)
    if r.moves is None or not r.moves.fresh or r.cause.kind not in again:
        return ""
    gained, lost = (
        {(topic, number) for topics in side for topic, numbers in topics.items() for number in numbers}
        for side in zip(*((member.gained, member.lost) for member in r.moves.members), strict=True)
    )
    new = [TopicPartition(*partition) for partition in sorted(gained - lost)]
    # Others are handed over in two rebalances, by a cooperative assignor.
    return partition_list(new) if len(new) == r.moves.fresh else ""
