"""The invariants of a consumer group between two steps: rows IV1 to IV7 (IV3 without what compares two
states, which tests do; IV8 is a property of a log).
"""

from collections import Counter

from msgspec import structs

from kafka_why.contract.kafka.history import LEAVE_GROUP_STATIC_MEMBER_EPOCH, MemberState
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember


def invariants_of(group: ConsumerGroup) -> list[tuple[str, bool]]:
    """Return what has to hold, and whether it does."""
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
    """Return True if a static member that is temporarily away has its partitions at epoch 0."""
    away = member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH
    most = 0 if away else member.member_epoch
    held = (member.assigned, member.pending_revocation)
    return all(
        at <= most for partitions in held for numbers in partitions.values() for at in numbers.values()
    )


def _is_timed_rightly(member: ConsumerMember) -> bool:
    revokes = member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None
    return member.rebalance_deadline_ms is None or revokes
