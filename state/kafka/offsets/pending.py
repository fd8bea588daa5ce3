"""Pending offsets of partitions that are deleted, and their topic ids. Row TO17."""

from collections.abc import Callable

from msgspec.structs import replace

from kafka_why.contract.kafka.offsets import Offset
from state.kafka.context import StepContext
from state.kafka.effects import TransactionChange
from state.kafka.group import Group, PendingOffsets


def forget_pending(context: StepContext, is_gone: Callable[[str, int, Offset], bool]) -> dict[str, set[int]]:
    """Remove the pending offsets for which `is_gone(topic, partition, offset)` is true, and entries that have
    no others. Return the partitions of the removed offsets by topic.
    """
    gone: dict[str, set[int]] = {}
    kept: list[PendingOffsets] = []
    for entry in context.group.pending:
        left, is_changed = _without(entry, is_gone, gone)
        changed = replace(entry, offsets=left) if left else None
        if changed is not None:
            kept.append(changed)
        if is_changed:
            change = TransactionChange(entry.producer_id, entry.request, changed)
            context.transaction_changes.append(change)
    if gone:
        context.rule("TO17")
        context.retention_is_stale = True
        context.group.pending = kept
    return gone


def _without(
    entry: PendingOffsets, is_gone: Callable[[str, int, Offset], bool], gone: dict[str, set[int]]
) -> tuple[dict[str, dict[int, Offset]], bool]:
    """The offsets of an entry that stay, and whether any does not. The others are added to `gone`."""
    left: dict[str, dict[int, Offset]] = {}
    is_changed = False
    for topic, offsets in entry.offsets.items():
        out = {p for p, offset in offsets.items() if is_gone(topic, p, offset)}
        if out:
            gone.setdefault(topic, set()).update(out)
            is_changed = True
        if rest := {p: offset for p, offset in offsets.items() if p not in out}:
            left[topic] = rest
    return left, is_changed


def set_topic_id(context: StepContext, topic: str, topic_id: bytes) -> None:
    """Set the topic id of the topic's pending offsets that have none."""
    pending = context.group.pending
    for n, entry in enumerate(pending):
        known = entry.offsets.get(topic, {})
        if any(offset.topic_id is None for offset in known.values()):
            named = {
                p: offset if offset.topic_id is not None else replace(offset, topic_id=topic_id)
                for p, offset in known.items()
            }
            pending[n] = replace(entry, offsets=entry.offsets | {topic: named})


def pending_offsets(group: Group) -> dict[str, dict[int, int]]:
    """The offsets that are pending in transactions, by topic and partition, of each the last one."""
    found: dict[str, dict[int, int]] = {}
    for entry in group.pending:
        for topic, offsets in entry.offsets.items():
            found.setdefault(topic, {}).update({p: offset.offset for p, offset in offsets.items()})
    return found
