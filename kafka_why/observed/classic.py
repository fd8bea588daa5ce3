"""Derives the rebalances of classic groups from successive generations (rows OB1 to OB14 of docs/observe.md).

The functions take an `Observation` (`seen`), which has the results of one record, and the generation in this
record (`now`). They change the observation's group and add history entries to it.

Kafka writes a generation when its leader has sent the assignment, or when the group has no members. The
record has the members, their assignments, and the time when the generation was formed. The log does not show
what happened between two generations, only the difference between them.

When a group changes its protocol, Kafka removes the records of the old protocol and writes the records of the
new protocol at the same time. A group with members is never deleted, so if the records of a group with
members are removed, the group was converted.
"""

from collections.abc import Sequence

from kafka_why.contract.kafka.history import CONSUMER, ConsumerGroupState, EntryType, GroupState
from kafka_why.contract.protocols.subscriptions import by_topic
from kafka_why.observed.group import CREATION, Classic, Epochs
from kafka_why.observed.observation import (
    Change,
    Observation,
    difference,
    open_rebalance,
    record_return,
    topics_of,
)
from kafka_why.observed.records import ClassicGeneration
from kafka_why.observed.sightings import claim_sighting, end_all_sightings, record_changes_since_sighting

# Parts of entries' reasons.
_SKIPPED = "left no record: each was superseded before its assignment, or its record was compacted"
_STATE_AT_FIRST_RECORD = "the group was in this state when its records were first read"
_CREATED_WITHOUT_RECORD = "the first generation of the group, whose creation left no record"


def observe_generation(seen: Observation, now: ClassicGeneration) -> None:
    """Apply the next generation of the group."""
    group = seen.group
    if group.classic is None:
        _begin(seen, now)
        return
    if now.generation > group.generation:
        _record_rebalance(seen, now)
    else:
        _replace_in_place(seen, now)


def begin_again(seen: Observation, now: ClassicGeneration) -> None:
    """Begin a new group with the same id. The records that ended the previous group are missing."""
    seen.skip_seq()
    seen.group.classic, seen.group.sightings = None, []
    _begin(seen, now)


def _begin(seen: Observation, now: ClassicGeneration) -> None:
    """Begin the history of a group with the first generation that is read.

    If it is certainly the group's first generation (rows OB1, OB14), the history begins with the creation.
    Otherwise (row OB2), it begins with the state that was read.
    """
    group = seen.group
    is_history_empty = group.seq == CREATION
    if _is_first(now) and is_history_empty:
        # Record the creation, then the rebalance from a group without members to this generation.
        seen.record("OB14", EntryType.GROUP_CREATED, _CREATED_WITHOUT_RECORD, at_ms=_formed_ms(seen, now))
        group.classic = Classic(protocol_name=None, leader_id=None, since_ms=0, members=[])
        _record_rebalance(seen, now)
        return
    # A group that has committed offsets existed before.
    is_created = now.generation == 0 and not now.members and is_history_empty and not group.offsets
    store_generation(seen, now)
    if is_created:
        seen.record("OB1", EntryType.GROUP_CREATED, "the group was created")
        return
    if not now.members:
        empty_since_ms = seen.at.time_ms if now.since_ms is None else min(now.since_ms, seen.at.time_ms)
        group.state, group.state_timestamp_ms = GroupState.EMPTY.value, empty_since_ms
        seen.record("OB2", EntryType.EMPTY, _STATE_AT_FIRST_RECORD)
        return
    group.state, group.state_timestamp_ms = GroupState.STABLE.value, seen.at.time_ms
    _record_stable(seen, "OB2", now, _STATE_AT_FIRST_RECORD)


def _is_first(now: ClassicGeneration) -> bool:
    """Return True if this is certainly the first record of a group, because it has generation 1.

    Kafka writes no record when a group is created by a member. A static member can be replaced within
    generation 1, which is then written again, so a record with static members may not be the first.
    """
    has_static = any(m.group_instance_id is not None for m in now.members)
    return now.generation == 1 and bool(now.members) and not has_static


def _record_rebalance(seen: Observation, now: ClassicGeneration) -> None:
    """Record the rebalance that led to `now`: the members that joined or left, and the assignment."""
    formed_ms = _formed_ms(seen, now)
    skipped = _skipped_text(seen.group.generation, now.generation)
    is_beginning_recorded = any(sighting.is_recorded for sighting in seen.group.sightings)
    sighting = claim_sighting(seen, now.members, formed_ms, also=skipped)
    change, awaited = _change_to(seen, now), None
    if sighting is None:  # polls did not see the rebalance, so its beginning is not recorded yet
        open_rebalance(seen, change, formed_ms, also=skipped)
    else:
        awaited = record_changes_since_sighting(seen, sighting, change, formed_ms)
    store_generation(seen, now)
    if not now.members:
        seen.record(
            "OB11",
            EntryType.EMPTY,
            "the last member is gone",
            to_state=GroupState.EMPTY.value,
            at_ms=formed_ms,
            waiting_for=awaited,
        )
        return
    by_member = {m.member_id: topics_of(now.protocol_type, m) for m in now.members}
    # If the beginning was recorded at an earlier poll, its entry lacks the skipped generations.
    also_skipped = skipped if is_beginning_recorded else ""
    seen.record(
        "OB10",
        EntryType.COMPLETING_REBALANCE,
        f"the generation was formed, and its leader made the assignment{also_skipped}",
        to_state=GroupState.COMPLETING_REBALANCE.value,
        at_ms=formed_ms,
        members=list(by_member),
        waiting_for=awaited,
        leader_id=now.leader_id,
        protocol_name=now.protocol_name,
        topics=_all_topics(list(by_member.values())),
        subscriptions=_differing_topics(by_member),
    )
    _record_stable(seen, "OB10", now, "the leader's assignment was stored")


def _change_to(seen: Observation, now: ClassicGeneration) -> Change:
    """Return how the group's members change with this generation."""
    assert seen.group.classic is not None
    return difference(seen.group.classic.members, now.members, now.protocol_type)


def _skipped_text(last: int, new: int) -> str:
    """Return a clause about the generations between `last` and `new`, or ""."""
    skipped = range(last + 1, new)
    if not skipped:
        return ""
    numbers = (
        f"generation {skipped[0]}" if len(skipped) == 1 else f"generations {skipped[0]} to {skipped[-1]}"
    )
    return f"; {numbers} {_SKIPPED}"


def _record_stable(seen: Observation, rule: str, now: ClassicGeneration, reason: str) -> None:
    seen.record(
        rule,
        EntryType.STABLE,
        reason,
        to_state=GroupState.STABLE.value,
        leader_id=now.leader_id,
        protocol_name=now.protocol_name,
        members=[m.member_id for m in now.members],
        assignments={m.member_id: m.assignment for m in now.members},
    )


def _replace_in_place(seen: Observation, now: ClassicGeneration) -> None:
    """Apply another record of the same generation: a static member came back without a rebalance.

    A lower generation is that of a new group with the same id.
    """
    if now.generation < seen.group.generation:
        begin_again(seen, now)
        return
    end_all_sightings(seen)  # the rebalances that polls saw formed no generation
    for member, old_id in _change_to(seen, now).back:
        record_return(seen, "OB9", member, old_id, seen.at.time_ms)
    store_generation(seen, now)


def _formed_ms(seen: Observation, now: ClassicGeneration) -> int:
    """Return the time at which the generation was formed.

    The time is not before the group's last entry, and not after the record. Records of brokers before Kafka
    2.1 lack it; then return the record's time, when the assignment was stored.
    """
    if now.since_ms is None:
        return seen.at.time_ms
    return min(max(now.since_ms, seen.group.last_entry_ms), seen.at.time_ms)


def store_generation(seen: Observation, now: ClassicGeneration) -> None:
    """Store this generation as the group's current generation."""
    group = seen.group
    group.generation, group.protocol_type = now.generation, now.protocol_type or group.protocol_type
    group.classic = Classic(now.protocol_name, now.leader_id, seen.at.time_ms, list(now.members))
    seen.view_changed = True


def _all_topics(subscribed: Sequence[tuple[str, ...] | None]) -> list[str] | None:
    """Return the topics of all subscriptions, or None if a subscription is unknown."""
    if any(topics is None for topics in subscribed):
        return None
    return sorted({topic for topics in subscribed for topic in topics or ()})


def _differing_topics(by_member: dict[str, tuple[str, ...] | None]) -> dict[str, list[str]] | None:
    """Return each member's topics, or None if they are the same for all members, or unknown for one."""
    if len(set(by_member.values())) < 2 or None in by_member.values():
        return None
    return {member_id: list(topics or ()) for member_id, topics in by_member.items()}


# Kafka replaces a group without members if a member of another group type joins
# (GroupMetadataManager.getOrMaybeCreate*Group).
_REMOVED = (
    "its coordinator removed the records of the group: it was deleted, had expired, or was replaced by a "
    "group of another type"
)


def remove_classic(seen: Observation) -> None:
    """Apply the tombstone of a classic group: it was deleted or, if it has members, converted."""
    group = seen.group
    if group.classic is None and group.seq == CREATION:
        # No other record of the group was read. `removed_ms` shows later whether it was converted.
        seen.is_over, seen.removed_ms = True, seen.at.time_ms
        return
    if group.classic is None or not group.classic.members:
        seen.delete("OB12", _REMOVED)
        return
    partitions_by_member = {m.member_id: by_topic(group.held_by(m)) for m in group.classic.members}
    group.classic, group.epochs, group.sightings = None, Epochs(CONSUMER), []
    seen.record(
        "OB13",
        EntryType.GROUP_CONVERTED,
        "the group became a group of the consumer protocol",
        to_state=ConsumerGroupState.RECONCILING.value,
        members=list(partitions_by_member),
        targets=partitions_by_member,
    )


def remove_epochs(seen: Observation) -> None:
    """Apply the tombstone of the group epoch of a group with epochs.

    A group without members was deleted. One with members is being converted: a classic generation follows.
    """
    group = seen.group
    if group.epochs is None or not group.epochs.subscriptions:
        seen.delete("OB12", _REMOVED)


def convert_to_classic(seen: Observation, now: ClassicGeneration) -> None:
    """Convert a group of the consumer protocol to a classic group with this generation.

    A member that is not in the generation was the last one of the consumer protocol, and is gone.
    """
    group = seen.group
    old_subscriptions = {} if group.epochs is None else group.epochs.subscriptions
    group.epochs = None
    store_generation(seen, now)
    partitions_by_member = {m.member_id: by_topic(group.held_by(m)) for m in now.members}
    seen.record(
        "OB13",
        EntryType.GROUP_CONVERTED,
        "the group became a classic group",
        to_state=(GroupState.STABLE if now.members else GroupState.EMPTY).value,
        members=list(partitions_by_member),
        targets=partitions_by_member,
    )
    for member_id, subscription in old_subscriptions.items():
        if member_id not in partitions_by_member:
            seen.record(
                "OB3",
                EntryType.MEMBER_REMOVED,
                f"member {member_id} left or expired: the last one of the consumer protocol",
                member_id=member_id,
                client_id=subscription.client_id,
                client_host=subscription.client_host,
                group_instance_id=subscription.instance_id,
            )
