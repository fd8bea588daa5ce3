"""A group as it was at a moment: its state, its members, what each holds since when, and its timers."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kafka_why.contract.kafka.history import (
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    EntryType,
    GroupState,
    HistoryEntry,
    MemberState,
)
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    NamedPartitions,
    ShareSnapshot,
)
from kafka_why.contract.protocols.subscriptions import (
    ProtocolError,
    TopicPartition,
    by_topic,
    decode_assignment,
)
from kafka_why.groups.rocketmq import (
    client_table,
    rocketmq_remarks,
    rocketmq_row,
    rocketmq_state_table,
    topic_table,
)
from kafka_why.why.share_state import open_requests, request_text
from kafka_why.wording import (
    INDENT,
    Clock,
    Column,
    Names,
    VisibleText,
    clients_of,
    count,
    duration_text,
    is_bare,
    number_list,
    render_table,
    visible,
    visible_text,
)
from operations.replay.group_run import ReplayStep
from operations.replay.replay import Replayed
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import KafkaGroup
from state.kafka.group import ConfigsOnly, DeadlineReached, TimerKind
from state.kafka.protocols import protocol_of, view_of
from state.kafka.share_group import ShareGroup
from state.kafka.streams_group import StreamsGroup
from state.rocketmq.group import RocketMqGroup, next_scan
from state.rocketmq.protocol import snapshot

_MEMBER_STATE_TEXTS = {
    MemberState.STABLE: "has its target",
    MemberState.UNREVOKED_PARTITIONS: "has to give up partitions",
    MemberState.UNRELEASED_PARTITIONS: "waits for partitions",
}


def epochs_headline(view: GroupSnapshot, details: ConsumerGroupSnapshot) -> str:
    """Return a text such as `epoch 7, target assignment of epoch 6, 3 members`."""
    parts = [f"epoch {view.generation}"]
    if details.assignment_epoch != view.generation:
        parts.append(f"target assignment of epoch {details.assignment_epoch}")
    parts.append(count(len(view.members), "member"))
    classic_members = sum(
        m.consumer is not None and m.consumer.member_type == "classic" for m in view.members
    )
    if classic_members:
        parts.append(f"{classic_members} of them on the classic protocol")
    if details.assignor_name and not details.share:
        parts.append(f"assignor {details.assignor_name}")
    return ", ".join(parts)


def epochs_member_table(view: GroupSnapshot, details: ConsumerGroupSnapshot, names: Names) -> VisibleText:
    """Format the members with their epochs, their partitions, and the differences from their targets.

    For a share group, the columns are the partitions that members fetch from, and their targets.
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
            progress.member_epoch,
            *([] if details.share else [_epochs_member_state(progress, details.assignment_epoch)]),
            *map(partitions_text, _partitions_shown(progress, is_share=bool(details.share))),
        ]
        for member in view.members
        if (progress := member.consumer) is not None  # its epochs and partitions
    ]
    return render_table(columns, rows)


def _partitions_shown(member: ConsumerMemberSnapshot, *, is_share: bool) -> tuple[NamedPartitions, ...]:
    """Return the partitions of the table's last columns: 2 for a share group, else 3."""
    if is_share:
        return member.assigned, member.target
    return member.assigned, member.revoking, member.awaited()


def _epochs_member_state(member: ConsumerMemberSnapshot, target_epoch: int) -> str:
    if member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        return "left for a while"
    if member.state == MemberState.STABLE and member.member_epoch < target_epoch:
        return "is not at its target yet"
    return _MEMBER_STATE_TEXTS[MemberState(member.state)]


def share_state_lines(share: ShareSnapshot, at_ms: int) -> Iterator[str]:
    """Yield a line for each state of the group's partitions, and for each open request to the share
    coordinator.
    """
    kinds: Mapping[str, NamedPartitions] = {
        "Initialized": share.initialized,
        "Initializing": share.initializing,
        "Deleting": share.deleting,
    }
    for kind, partitions in kinds.items():
        if partitions:
            yield f"{kind}: {partitions_text(partitions)}"
    for request in open_requests(share):
        yield f"Task: {request_text(request, at_ms)}"


def partitions_text(partitions: Mapping[str, Sequence[int]]) -> str | None:
    """Return a text such as `orders 0-3 7; prices 1`, or None without partitions."""
    return "; ".join(f"{topic} {number_list(numbers)}" for topic, numbers in partitions.items()) or None


Held = dict[TopicPartition, tuple[str, int]]
"""By partition, the member that it is assigned to, and since when (in ms)."""

# What happens at a deadline, by the group's type. "{}" is the deadline's member.
_DEADLINE_TEXTS: Mapping[type, Mapping[TimerKind, str]] = {
    ConsumerGroup: {
        TimerKind.HEARTBEAT: "the session of {} ends",
        TimerKind.REBALANCE: "{} has to have given up its partitions",
        TimerKind.JOIN: "{}, on the classic protocol, has to have joined again",
        TimerKind.SYNC: "{}, on the classic protocol, has to have synced",
        TimerKind.RETENTION: "offsets are checked for expiry",
    },
    ShareGroup: {
        TimerKind.HEARTBEAT: "the session of {} ends",
        TimerKind.PARKED: "an administrator is answered, whatever the share coordinator has done",
        TimerKind.TASK: "tasks that the share coordinator has not done get an entry",
    },
    StreamsGroup: {
        TimerKind.INITIAL_DELAY: "the first tasks are assigned, whoever has joined",
        TimerKind.HEARTBEAT: "the session of {} ends",
        TimerKind.REBALANCE: "{} has to have given up its tasks",
        TimerKind.RETENTION: "offsets are checked for expiry",
    },
    ClassicGroup: {
        TimerKind.HEARTBEAT: "the session of {} ends",
        TimerKind.JOIN: "the round ends, whoever has joined",
        TimerKind.SYNC: "members without SyncGroup are removed",
        TimerKind.RETENTION: "offsets are checked for expiry",
    },
}


def moment_text(replayed: Replayed, at_ms: int, config: CoordinatorConfig, clock: Clock) -> VisibleText:
    """Return the text of the group at `at_ms`, the end of the replay."""
    group = replayed.group
    when = f"{clock.time(at_ms)} {clock.zone(at_ms)}"
    if group is None or isinstance(group, ConfigsOnly):  # settings alone are no group
        return visible(
            f"Group {replayed.group_id} did not exist at {when}.{_last_entry_text(replayed.steps, clock)}"
        )
    if isinstance(group, RocketMqGroup):
        return _rocketmq_text(group, at_ms, when, config, clock)
    armed = protocol_of(group).due_deadlines(group, sys.maxsize, config)  # all deadlines, of any time
    return _kafka_text(group, replayed.steps, at_ms, when, armed, clock)


def names_of(steps: Iterable[ReplayStep[Any]], group: KafkaGroup | None = None) -> Names:
    """Return names for all member ids in the history and in the group."""
    history = [record.entry for step in steps for record in step.history]
    clients = clients_of(entry for entry in history if isinstance(entry, HistoryEntry))
    ids = {member_id for entry in history if (member_id := getattr(entry, "member_id", None))}
    ids.update(group.members if group is not None else ())
    if isinstance(group, ClassicGroup):
        ids.update(group.pending_members)
    if isinstance(group, ConsumerGroup | ShareGroup | StreamsGroup):
        clients |= {
            m.member_id: m.instance_id or m.client_id for m in group.members.values() if is_bare(m.member_id)
        }
    return Names(ids, clients)


def _holders(steps: Iterable[ReplayStep[bytes]]) -> Held:
    """Return each partition's owner after the last assignment, and since when."""
    held: Held = {}
    for step in steps:
        for record in step.history:
            if isinstance(record.entry, HistoryEntry):
                held = _holders_after(record.entry, held)
    return held


def _holders_after(entry: HistoryEntry, held: Held) -> Held:
    """Return the holders after a history entry. Before the entry, the holders were `held`."""
    if entry.type is EntryType.MEMBER_REPLACED and entry.replaced_member_id is not None:
        # A static member has a new id and keeps its partitions.
        return {
            p: (entry.member_id or m, since) if m == entry.replaced_member_id else (m, since)
            for p, (m, since) in held.items()
        }
    if entry.type in (EntryType.EMPTY, EntryType.GROUP_DELETED):
        return {}
    if entry.type is not EntryType.STABLE or entry.assignments is None:
        return held
    held_after: Held = {}
    for member_id, assignment in entry.assignments.items():
        for partition in _partitions_in(assignment) or ():
            owner, since = held.get(partition, ("", 0))
            held_after[partition] = (member_id, since if owner == member_id else entry.at_ms)
    return held_after


def _partitions_in(assignment: bytes) -> list[TopicPartition] | None:
    """Return the partitions of an assignment, or None if it is not in the format of Kafka's consumer."""
    if not assignment:
        return []
    try:
        return list(decode_assignment(assignment).partitions)
    except ProtocolError:
        return None


def _kafka_text(
    group: KafkaGroup,
    steps: Sequence[ReplayStep[bytes]],
    at_ms: int,
    when: str,
    armed: Sequence[DeadlineReached],
    clock: Clock,
) -> VisibleText:
    """Return the text of a Kafka group. `when` is `at_ms` as text, and `armed` are its deadlines."""
    state_duration = duration_text(max(at_ms - group.state_timestamp_ms, 0))
    names = names_of(steps, group)
    view = view_of(group)
    details = view.consumer
    if isinstance(group, ClassicGroup):
        headline = _classic_headline(group, names)
        table = _classic_member_table(group, _holders(steps), names, clock)
    else:
        assert details, "a group with epochs"
        headline, table = epochs_headline(view, details), epochs_member_table(view, details, names)
    lines = [f"Group {group.group_id} at {when}: {group.state} for {state_duration}, {headline}"]
    if group.last_rebalance_at_ms is not None:
        began = clock.time(group.last_rebalance_at_ms)
        lines.append(f"Last rebalance: began {began}, because {names.put_in(group.last_rebalance_reason)}")
    if group.quarantined is not None:
        lines.append(f"Quarantined: {group.quarantined}")
    if group.members:
        lines += ["", table]
    if details and details.share:
        lines += ["", *share_state_lines(details.share, at_ms)]
    if committed := sum(map(len, group.offsets.values())):
        lines += [
            "",
            f"Committed offsets: {count(committed, 'partition')} of {count(len(group.offsets), 'topic')}",
        ]
    if group.pending:
        pending = sum(map(len, group.pending_partitions().values()))
        transactions = {(entry.producer_id, entry.txn_position) for entry in group.pending}
        lines += [
            "",
            f"Pending offsets: {count(pending, 'partition')} in {count(len(transactions), 'transaction')}",
        ]
    lines += ["", "Timers:", *(INDENT + line for line in _timer_lines(group, names, at_ms, armed, clock))]
    return visible_text(lines)


def _classic_headline(group: ClassicGroup, names: Names) -> str:
    """Return a text such as `generation 7, 3 members, leader worker-1, protocol range`."""
    leader = f", leader {names.of(group.leader_id)}" if group.leader_id else ""
    protocol = f", protocol {group.protocol_name}" if group.protocol_name else ""
    return f"generation {group.generation}, {count(len(group.members), 'member')}{leader}{protocol}"


def _classic_member_table(group: ClassicGroup, held: Held, names: Names, clock: Clock) -> VisibleText:
    """Format the members with their partitions, and with the times from `held` at which they got these."""
    columns = [
        *(Column("MEMBER"), Column("HOST", 10), Column("STATE", 10), Column("#PARTITIONS", 11)),
        *(Column("HOLDS"), Column("SINCE", 0)),
    ]
    rows = []
    for member in group.members.values():
        partitions = _partitions_in(member.assignment)
        if partitions is None:
            text: str | None = f"{len(member.assignment)} bytes"
        else:
            text = partitions_text(by_topic(partitions))
        assigned_at_ms = [
            held[p][1] for p in partitions or () if p in held and held[p][0] == member.member_id
        ]
        rows.append(
            [
                names.of(member.member_id),
                member.client_host or None,
                _classic_member_state(member, group),
                None if partitions is None else len(partitions),
                text,
                _since_text(assigned_at_ms, clock),
            ]
        )
    return render_table(columns, rows)


def _classic_member_state(member: ClassicGroupMember, group: ClassicGroup) -> str:
    if member.parked_join is not None:
        return "joined, waits for the others"
    if member.parked_sync is not None:
        return "waits for its assignment"
    if group.state is GroupState.PREPARING_REBALANCE:
        return "has to join again"
    if group.state is GroupState.COMPLETING_REBALANCE:
        return "has to sync"
    return "has not synced" if member.pending_sync else "holds"


def _since_text(times_ms: list[int], clock: Clock) -> str | None:
    """Return the times of the oldest and the youngest assignment, or None if there is no time."""
    if not times_ms:
        return None
    first, last = clock.time(min(times_ms)), clock.time(max(times_ms))
    return first if first == last else f"{first} to {last}"


def _timer_lines(
    group: KafkaGroup, names: Names, at_ms: int, armed: Sequence[DeadlineReached], clock: Clock
) -> Iterator[str]:
    """Yield a line for each armed deadline: its time, the time left, and what happens then."""
    texts = _DEADLINE_TEXTS[type(group)]
    for deadline in armed:
        what = texts[deadline.kind].format(names.of(deadline.member_id))
        yield f"{clock.time(deadline.deadline_ms)}  {_time_left_text(deadline.deadline_ms - at_ms)}  {what}"
    if not armed:
        yield "none"


def _time_left_text(ms: int) -> str:
    return f"in {duration_text(ms)}" if ms >= 0 else f"{duration_text(-ms)} overdue"


def _rocketmq_text(
    group: RocketMqGroup, at_ms: int, when: str, config: CoordinatorConfig, clock: Clock
) -> VisibleText:
    row = rocketmq_row(snapshot(group))
    lines = [f"Group {group.group_id} at {when}", "", rocketmq_state_table(row)]
    if row.topics:
        lines += ["", topic_table(row)]
    if row.consumers or row.producers:
        lines += ["", client_table(row)]
    for connection, info in group.channels():
        heartbeat_age = duration_text(max(at_ms - info.last_update_ms, 0))
        lines.append(f"{INDENT}{info.client_id} ({connection}): last heartbeat {heartbeat_age} ago")
    if group.locks:
        columns = [Column("TOPIC"), Column("QUEUE", 5), Column("LOCKED-BY"), Column("LAST-LOCKED", 0)]
        locks = [
            [queue.topic, queue.queue_id, lock.client_id, clock.time(lock.last_update_ms)]
            for queue, lock in group.locks.items()
        ]
        lines += ["", render_table(columns, locks)]
    remarks = [*rocketmq_remarks(row)]
    scan = next_scan(group, config.rocketmq)
    if scan is not None:
        due_text = f"{clock.time(scan.deadline_ms)}  {_time_left_text(scan.deadline_ms - at_ms)}"
        remarks.append(f"Timers: {due_text}  a scan for silent connections and expired locks")
    lines += ["", *remarks] if remarks else []
    return visible_text(lines)


def _last_entry_text(steps: list[ReplayStep[bytes]], clock: Clock) -> str:
    """Return a sentence with the group's last history entry, after a space, or "" without history."""
    for step in reversed(steps):
        if step.history:
            last = step.history[-1].entry
            return f" Its last history entry: {clock.time(last.at_ms)}, {last.reason}."
    return ""
