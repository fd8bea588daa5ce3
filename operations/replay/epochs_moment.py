"""A group with epochs as it was at a moment, by its snapshot: its epochs, and what each member has, gives up
and waits for. Of a share group also how far its partitions are.
"""

from collections.abc import Iterator, Mapping, Sequence

from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    NamedPartitions,
    ShareSnapshot,
)
from kafka_why.contract.kafka.states import LEAVE_GROUP_STATIC_MEMBER_EPOCH, MemberState
from kafka_why.escaping import VisibleText
from kafka_why.groups.tables import Column, render_table
from kafka_why.partition_text import number_list
from kafka_why.why.names import Names
from kafka_why.why.share_state import asked_of
from kafka_why.why.share_text import asked_text
from kafka_why.why.wording import count

_STATES = {
    MemberState.STABLE: "has its target",
    MemberState.UNREVOKED_PARTITIONS: "has to give up partitions",
    MemberState.UNRELEASED_PARTITIONS: "waits for partitions",
}


def headline(view: GroupSnapshot, details: ConsumerGroupSnapshot) -> str:
    """`epoch 7, target assignment of epoch 6, 3 members, 1 of them classic, assignor uniform`."""
    parts = [f"epoch {view.generation}"]
    if details.assignment_epoch != view.generation:
        parts.append(f"target assignment of epoch {details.assignment_epoch}")
    parts.append(count(len(view.members), "member"))
    if classic := sum(m.consumer is not None and m.consumer.member_type == "classic" for m in view.members):
        parts.append(f"{classic} of them on the classic protocol")
    if details.assignor_name and not details.share:
        parts.append(f"assignor {details.assignor_name}")
    return ", ".join(parts)


def member_table(view: GroupSnapshot, details: ConsumerGroupSnapshot, names: Names) -> VisibleText:
    """Format the members with their epochs, what they hold, and what is missing to their targets. Of a share
    group, format what they fetch from and their targets.
    """
    columns = [Column("MEMBER"), Column("HOST", 10), Column("EPOCH", 5)]
    if details.share:
        columns += [Column("HAS"), Column("TARGET", 0)]
    else:
        columns += [Column("STATE", 10), Column("HOLDS"), Column("GIVES-UP"), Column("WAITS-FOR", 0)]
    rows = [
        [
            names.of(member.member_id),
            member.client_host or None,
            has.member_epoch,
            *(_share_cells(has) if details.share else _cells(has, details.assignment_epoch)),
        ]
        for member in view.members
        if (has := member.consumer) is not None
    ]
    return render_table(columns, rows)


def _share_cells(member: ConsumerMemberSnapshot) -> list[str | None]:
    return [partitions_text(member.assigned), partitions_text(member.target)]


def _cells(member: ConsumerMemberSnapshot, target_epoch: int) -> list[str | None]:
    shown = (member.assigned, member.revoking, member.awaited())
    return [_state(member, target_epoch), *map(partitions_text, shown)]


def _state(member: ConsumerMemberSnapshot, target_epoch: int) -> str:
    if member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        return "left for a while"
    if member.state == MemberState.STABLE and member.member_epoch < target_epoch:
        return "is not at its target yet"
    return _STATES[MemberState(member.state)]


def share_state_lines(share: ShareSnapshot, at_ms: int) -> Iterator[str]:
    """Yield a line for each kind of partitions that the group has, and for each open task."""
    kinds: Mapping[str, NamedPartitions] = {
        "Initialized": share.initialized,
        "Initializing": share.initializing,
        "Deleting": share.deleting,
    }
    for kind, partitions in kinds.items():
        if partitions:
            yield f"{kind}: {partitions_text(partitions)}"
    for asked in asked_of(share):
        yield f"Task: {asked_text(asked, at_ms)}"


def partitions_text(partitions: Mapping[str, Sequence[int]]) -> str | None:
    """Return `orders 0-3 7; prices 1`, None without partitions."""
    return "; ".join(f"{topic} {number_list(numbers)}" for topic, numbers in partitions.items()) or None
