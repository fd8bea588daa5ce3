"""The invariants of a consumer group between two steps: rows IV1 to IV7.

The tests check the part of IV3 that compares two states, and IV8, which is a property of a log.
"""

from collections import Counter

from msgspec import structs

from kafka_why.contract.kafka.history import LEAVE_GROUP_STATIC_MEMBER_EPOCH, MemberState
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember


def invariants_of(group: ConsumerGroup) -> list[tuple[str, bool]]:
    """Return each invariant, and True if it holds."""
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
    return [
        ("IV1: a partition is held by one member", held.total() == len(held)),
        ("IV2: who holds a partition follows from the members", group.held == structs.replace(group).held),
        (
            "the subscriptions are those of the members",
            group.subscriptions == structs.replace(group).subscriptions,
        ),
        ("the progress is that of the members", group.progress == structs.replace(group).progress),
        ("IV4: a member revokes in the state for it", all(map(_revokes_in_its_state, members.values()))),
        ("IV5: a partition is in the target of one member", targets.total() == len(targets)),
        ("IV6: no partition is newer than its member", all(map(_has_nothing_newer, members.values()))),
        ("IV7: a rebalance timer is that of a revocation", all(map(_is_timed_rightly, members.values()))),
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
    """Return True if no partition has a later epoch than its member, or than 0 if the member is away."""
    is_away = member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH
    latest = 0 if is_away else member.member_epoch
    held = (member.assigned, member.pending_revocation)
    return all(
        epoch <= latest for partitions in held for epochs in partitions.values() for epoch in epochs.values()
    )


def _is_timed_rightly(member: ConsumerMember) -> bool:
    revokes = member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None
    return member.rebalance_deadline_ms is None or revokes
