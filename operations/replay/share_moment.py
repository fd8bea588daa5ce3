"""A share group as it was at a moment: its epochs, what each member has, and how far its partitions are."""

from collections.abc import Iterator, Mapping

from kafka_why.contract.kafka.snapshot import named
from kafka_why.escaping import VisibleText
from kafka_why.groups.tables import Column, render_table
from kafka_why.why.names import Names
from kafka_why.why.share_state import asked_of
from kafka_why.why.share_text import asked_text
from kafka_why.why.wording import count
from operations.replay.consumer_moment import partitions_text
from state.kafka.share.view import share_snapshot
from state.kafka.share_group import ShareGroup
from state.kafka.timers import TimerKind

WHATS: Mapping[TimerKind, str] = {
    TimerKind.HEARTBEAT: "the session of {} ends",
    TimerKind.PARKED: "an administrator is answered, whatever the share coordinator has done",
    TimerKind.TASK: "tasks that the share coordinator has not done get an entry",
}
"""What happens at a deadline of a share group."""


def share_headline(group: ShareGroup) -> str:
    """`epoch 7, target assignment of epoch 6, 3 members`."""
    parts = [f"epoch {group.group_epoch}"]
    if group.assignment_epoch != group.group_epoch:
        parts.append(f"target assignment of epoch {group.assignment_epoch}")
    return ", ".join([*parts, count(len(group.members), "member")])


def share_member_table(group: ShareGroup, names: Names) -> VisibleText:
    """Format the members with their epochs, and what they fetch from."""
    topics = group.names_by_id()
    columns = [Column("MEMBER"), Column("HOST", 10), Column("EPOCH", 5), Column("HAS"), Column("TARGET", 0)]
    rows = [
        [
            names.of(member.member_id),
            member.client_host or None,
            member.member_epoch,
            partitions_text(named(member.assigned, topics)),
            partitions_text(named(group.target.get(member.member_id, {}), topics)),
        ]
        for member in group.members.values()
    ]
    return render_table(columns, rows)


def share_state_lines(group: ShareGroup, at_ms: int) -> Iterator[str]:
    """Yield a line for each kind of partitions that the group has, and for what is still asked for."""
    kinds = {
        "Initialized": {topic.name: topic.partitions for topic in group.initialized.values()},
        "Initializing": {topic.name: sorted(topic.partitions) for topic in group.initializing.values()},
        "Deleting": {topic.name: sorted(topic.partitions) for topic in group.deleting.values()},
    }
    for kind, partitions in kinds.items():
        if partitions:
            yield f"{kind}: {partitions_text(partitions)}"
    for asked in asked_of(share_snapshot(group)):
        yield f"Task: {asked_text(asked, at_ms)}"
