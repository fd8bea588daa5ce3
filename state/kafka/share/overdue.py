"""Tasks that the share coordinator has not ended for long. Row SP15.

Nobody is fenced: members go on with the partitions that they have. Kafka has no such note.
"""

from collections.abc import Iterator

from kafka_why.contract.kafka.history import EntryType
from state.kafka.context import StepContext
from state.kafka.share.outcomes import Numbers, in_words, ordered
from state.kafka.share_group import ShareGroup

OVERDUE_MS = 60_000
"""The age of an open task at which the history has an entry about it."""

_ENTRIES = {
    EntryType.SHARE_PARTITIONS_NOT_INITIALIZED: "initialized",
    EntryType.SHARE_PARTITIONS_NOT_DELETED: "deleted",
}
_OpenTask = tuple[str, int, str, int]
"""What a partition has still to be, the time of the asking, and the partition."""


def watch_tasks(context: StepContext) -> None:
    """A task is open: look at the tasks when they can be overdue, if nothing else will before."""
    group = context.group_of(ShareGroup)
    if group.overdue_deadline_ms is None:
        group.overdue_deadline_ms = context.deadline(OVERDUE_MS)


def stop_watching(group: ShareGroup) -> None:
    """Look no more if no task is open."""
    if next(_open_tasks(group), None) is None:
        group.overdue_deadline_ms = None


def tasks_overdue(context: StepContext) -> None:
    """Note the tasks that are overdue now, once. Those that are younger are looked at later."""
    group = context.group_of(ShareGroup)
    noted_until_ms, until_ms = group.noted_until_ms, context.now_ms - OVERDUE_MS
    group.overdue_deadline_ms, group.noted_until_ms = None, until_ms
    overdue: dict[str, Numbers] = {}
    later = []
    for what, at_ms, name, number in _open_tasks(group):
        if at_ms > until_ms:
            later.append(at_ms)
        elif at_ms > noted_until_ms:
            overdue.setdefault(what, {}).setdefault(name, []).append(number)
    if later:
        group.overdue_deadline_ms = context.deadline_at(min(later) + OVERDUE_MS)
    for entry, what in _ENTRIES.items():
        partitions = overdue.get(what)
        if partitions is None:
            continue
        reason = f"the share coordinator has not {what} {in_words(partitions)} within {OVERDUE_MS // 1_000} s"
        row = context.rule("SP15")
        context.record(row, entry, f"{reason}: it goes on trying", partitions=ordered(partitions))


def _open_tasks(group: ShareGroup) -> Iterator[_OpenTask]:
    for initializing in group.initializing.values():
        for number, asked in initializing.partitions.items():
            if asked.task:
                yield "initialized", asked.at_ms, initializing.name, number
    for deleting in group.deleting.values():
        for number, code in deleting.partitions.items():
            if deleting.task and not code:
                yield "deleted", deleting.at_ms, deleting.name, number
