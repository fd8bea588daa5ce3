"""Invariants of a group between two steps. Tests check them after every step.

Those of a group of the consumer protocol are rows IV1 to IV7 (IV3 without what compares two states, which
tests do; IV8 is a property of a log).
"""

from collections import Counter
from itertools import pairwise

from msgspec import structs

from assignors.kafka.api import TopicPartition
from assignors.kafka.consumer_protocol import decode_assignment
from assignors.kafka.server_side import COORDINATOR_ASSIGNORS, PREFIX
from assignors.kafka.sticky.assignor import CooperativeStickyAssignor
from state.kafka.any_group import KafkaGroup
from state.kafka.classic_group import ClassicGroup, GroupState
from state.kafka.consumer_group import (
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from state.kafka.supported_protocols import SupportedProtocols

# A cooperative assignor omits partitions that their owner has to revoke first.
_EACH_ONCE = COORDINATOR_ASSIGNORS.keys() - {PREFIX + CooperativeStickyAssignor.name}


class InvariantError(AssertionError):
    """A fault of the coordinator: the group is in an illegal state."""


def check(group: KafkaGroup) -> None:
    """Raise InvariantError with the name of the first invariant that does not hold."""
    of_protocol = _of_classic(group) if isinstance(group, ClassicGroup) else _of_consumer(group)
    for name, holds in of_protocol + _of_every_group(group):
        if not holds:
            raise InvariantError(f"group {group.group_id!r}: {name}")


def _of_every_group(group: KafkaGroup) -> list[tuple[str, bool]]:
    pending = group.pending
    return [
        ("no topic has an empty set of offsets", all(group.offsets.values())),
        ("no entry of pending offsets is empty", all(e.offsets and all(e.offsets.values()) for e in pending)),
        (
            "pending offsets are in the log's order",
            all(before.position < entry.position for before, entry in pairwise(pending)),
        ),
        (
            "pending offsets have the position of their request",
            all(o.position == e.position for e in pending for of in e.offsets.values() for o in of.values()),
        ),
        ("the clock is not behind what has fired", group.clock_ms >= group.last_fired_ms),
    ]


def _of_consumer(group: ConsumerGroup) -> list[tuple[str, bool]]:
    members = group.members
    held = Counter(
        (topic_id, number)
        for member in members.values()
        for partitions in (member.assigned, member.pending_revocation)
        for topic_id, numbers in partitions.items()
        for number in numbers
    )
    targets = Counter(
        (topic_id, number)
        for partitions in group.target.values()
        for topic_id, numbers in partitions.items()
        for number in numbers
    )
    static = {m.instance_id: i for i, m in members.items() if m.instance_id is not None}
    return [
        ("IV1: a partition is held by one member", held.total() == len(held)),
        ("IV2: who holds a partition follows from the members", group.held == structs.replace(group).held),
        (
            "the subscriptions are those of the members",
            group.subscriptions == structs.replace(group).subscriptions,
        ),
        ("the progress is that of the members", group.progress == structs.replace(group).progress),
        ("IV3: the target is not ahead of the group", 1 <= group.assignment_epoch <= group.group_epoch),
        (
            "IV3: no member is ahead of the target",
            all(m.member_epoch <= group.assignment_epoch for m in members.values()),
        ),
        ("IV4: a member revokes in the state for it", all(map(_revokes_in_its_state, members.values()))),
        ("IV5: a partition is in the target of one member", targets.total() == len(targets)),
        ("IV5: only members have a target", group.target.keys() <= members.keys()),
        ("IV6: no partition is newer than its member", all(map(_has_nothing_newer, members.values()))),
        ("IV7: every member has a session", all(m.session_deadline_ms is not None for m in members.values())),
        ("IV7: a rebalance timer is that of a revocation", all(map(_is_timed_rightly, members.values()))),
        ("static ids map to members", group.static_members == static),
        ("members are kept by their ids", all(m.member_id == i for i, m in members.items())),
        (
            "subscribed topics are sorted",
            all(m.subscribed_topic_names == sorted(set(m.subscribed_topic_names)) for m in members.values()),
        ),
        (
            "no topic without partitions is kept",
            all(all(p.values()) for m in members.values() for p in (m.assigned, m.pending_revocation))
            and all(all(partitions.values()) for partitions in group.target.values()),
        ),
    ]


def _revokes_in_its_state(member: ConsumerMember) -> bool:
    revokes = member.state is MemberState.UNREVOKED_PARTITIONS
    return bool(member.pending_revocation) == revokes == (member.revoking_since_ms is not None)


def _has_nothing_newer(member: ConsumerMember) -> bool:
    """A static member that has left for a while has its partitions at epoch 0."""
    away = member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH
    most = 0 if away else member.member_epoch
    held = (member.assigned, member.pending_revocation)
    return all(
        at <= most for partitions in held for numbers in partitions.values() for at in numbers.values()
    )


def _is_timed_rightly(member: ConsumerMember) -> bool:
    revokes = member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None
    return member.rebalance_deadline_ms is None or revokes


def _of_classic(group: ClassicGroup) -> list[tuple[str, bool]]:
    members = group.members
    state = group.state
    preparing = state is GroupState.PREPARING_REBALANCE
    completing = state is GroupState.COMPLETING_REBALANCE
    formed = completing or state is GroupState.STABLE
    static = {m.group_instance_id: i for i, m in members.items() if m.group_instance_id is not None}
    awaiting = any(m.pending_sync for m in members.values())
    quarantined = group.quarantined is not None
    subscribed = group.subscribed_topics or []
    return [
        ("the leader is a member", group.leader_id in members if members else group.leader_id is None),
        ("Empty means no members", (state is GroupState.EMPTY) <= (not members)),
        ("a formed generation has members", bool(members) or not formed),
        ("a formed generation has a protocol all members offer", not formed or _protocol_is_shared(group)),
        ("static ids map to members", group.static_members == static),
        ("a pending id is no member", not members.keys() & group.pending_members.keys()),
        (
            "joins are parked in PreparingRebalance alone",
            preparing or not any(m.parked_join for m in members.values()),
        ),
        (
            "syncs are parked in CompletingRebalance alone",
            completing or not any(m.parked_sync for m in members.values()),
        ),
        (
            "the join timer runs in PreparingRebalance alone, and always there",
            preparing == (group.join_phase is not None),
        ),
        (
            "the sync timer runs while a member has not synced",
            (formed and awaiting) == (group.sync_deadline_ms is not None),
        ),
        (
            "only a member that waits for us has no session",
            quarantined or all(m.heartbeat_deadline_ms is not None or m.waits() for m in members.values()),
        ),
        ("a new member has its join parked", all(m.parked_join for m in members.values() if m.is_new)),
        ("subscribed topics are sorted", subscribed == sorted(subscribed)),
        (
            "an Empty group without offsets ends",
            state is not GroupState.EMPTY
            or not group.is_without_offsets()
            or group.retention_deadline_ms is not None,
        ),
        (
            "while members rebalance nothing expires",
            not (preparing or completing) or group.retention_deadline_ms is None,
        ),
        (
            "what the coordinator assigned is each known partition once",
            state is not GroupState.STABLE or group.protocol_name not in _EACH_ONCE or _is_dealt_once(group),
        ),
        (
            "the counts are those of the members",
            _counts(group) == _counts(structs.replace(group)),
        ),
    ]


def _counts(group: ClassicGroup) -> tuple[int, int, SupportedProtocols]:
    """The derived counts. A new copy of the group derives them anew."""
    return group.awaiting_join_response, group.pending_syncs, group.supported_protocols


def _is_dealt_once(group: ClassicGroup) -> bool:
    counts = group.partitions_per_topic
    known = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]
    dealt = [p for m in group.members.values() for p in decode_assignment(m.assignment).partitions]
    return sorted(dealt) == sorted(known)


def _protocol_is_shared(group: ClassicGroup) -> bool:
    return all(any(p.name == group.protocol_name for p in m.protocols) for m in group.members.values())
