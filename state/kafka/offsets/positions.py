"""The positions of offsets in a group that moves to another requests topic."""

from msgspec.structs import replace

from kafka_why.contract.kafka.offsets import LogPosition, Offset
from state.kafka.group import Group


def precede_other_log(group: Group) -> None:
    """Renumber the positions of the group's offsets. They keep their order, and precede every request of
    another log, whose positions begin at 0 again.
    """
    committed = [offset.position for offsets in group.offsets.values() for offset in offsets.values()]
    ordered = sorted({*committed, *(entry.position for entry in group.pending)})
    renumbered = {position: (n - len(ordered), 0) for n, position in enumerate(ordered)}
    group.offsets = {topic: _moved(offsets, renumbered) for topic, offsets in group.offsets.items()}
    group.pending = [
        replace(
            entry,
            position=renumbered[entry.position],
            offsets={topic: _moved(offsets, renumbered) for topic, offsets in entry.offsets.items()},
        )
        for entry in group.pending
    ]


def _moved(offsets: dict[int, Offset], renumbered: dict[LogPosition, LogPosition]) -> dict[int, Offset]:
    return {p: replace(offset, position=renumbered[offset.position]) for p, offset in offsets.items()}
