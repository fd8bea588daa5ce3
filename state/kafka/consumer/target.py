"""The target assignment of a consumer group, and the steps by which its members reach it.

A row, such as TA3, is a rule of docs/rules-consumer.md. `context.cite` records that a row was applied.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeVar

from msgspec.structs import replace

from assignors.kafka import BROKER_ASSIGNORS
from kafka_why.contract.kafka.history import MemberState
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.kafka.snapshot import Partitions, listed, listed_partitions, named
from kafka_why.contract.protocols.subscriptions import MemberSubscription, Subscription, TopicPartition
from state.config import CoordinatorConfig
from state.kafka.consumer_group import AssignedPartitions, ConsumerGroup, ConsumerMember, Owned
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.modern import (
    ModernSettings,
    by_topic_id,
    forget_topics,
    is_target_due,
    record_target,
    store_watched_topics,
    topics_of_target,
    without,
)
from state.kafka.modern_members import NAMED_MEMBERS, NextState, store_next_state

# The settings that a group of the consumer protocol can have (rows TM1, TM2).


SETTINGS = ModernSettings("consumer", session="CF19", heartbeat="CF20", assignment="CF21")


# The target assignment: when it is computed, by which assignor, and from what. Rows TA1 to TA31.
#
# Source: GroupMetadataManager.maybeUpdateTargetAssignment, TargetAssignmentBuilder.java, ModernGroup.java.


def maybe_update_target(context: StepContext, group: ConsumerGroup) -> None:
    """Compute the target assignment if the group has changed since the last one and the assignment interval
    is over.
    """
    if not is_target_due(context, SETTINGS, current="TA1", too_early="TA2"):
        return
    last_target, assignor = group.target, preferred_assignor(group, context.config)
    topics, left_out = topics_of_target(context, group)
    group.target = by_topic_id(_run_assignor(group, assignor, topics), topics)
    group.target_assignor = assignor
    record_target(context, group, context.cite("TA3"), assignor, last_target, left_out)


def preferred_assignor(group: ConsumerGroup, config: CoordinatorConfig) -> str:
    """Rows TA9 to TA13: return the name of the configured assignor that most members request.

    In a tie, and without any request, the one that is configured first wins.
    """
    votes = Counter(member.server_assignor for member in group.members.values())
    return max(config.group_consumer_assignors, key=lambda name: votes[name])


def _run_assignor(
    group: ConsumerGroup, assignor: str, topics: Mapping[str, Topic]
) -> Mapping[str, list[TopicPartition]]:
    """Rows TA14 to TA19, TA28 and TA29: run the assignor, which identifies topics by name.

    Each member has an entry in the result.
    """
    counts = {name: topic.partitions for name, topic in topics.items()}
    names = {topic.topic_id: name for name, topic in topics.items()}
    subscriptions = {
        member.member_id: MemberSubscription(_subscription(group, member, topics, names), member.instance_id)
        for member in group.members.values()
    }
    return BROKER_ASSIGNORS[assignor].assign(counts, subscriptions)


def _subscription(
    group: ConsumerGroup, member: ConsumerMember, topics: Mapping[str, Topic], names: Mapping[bytes, str]
) -> Subscription:
    """Return the member's subscription for the assignor: its topics that exist, and as its owned partitions
    those of its last target.
    """
    subscribed = group.topics_of(member) & topics.keys()
    owned = [
        TopicPartition(name, number)
        for topic_id, numbers in group.target.get(member.member_id, {}).items()
        if (name := names.get(topic_id)) in subscribed
        for number in numbers
    ]
    return Subscription(
        tuple(sorted(subscribed)), owned_partitions=tuple(owned), generation_id=group.assignment_epoch
    )


# The topics of a consumer group: reports of the topic watcher, and unused topics. Rows MI8 to MI15, HB45.
#
# Source: GroupMetadataManager.onMetadataUpdate.


def topic_metadata(context: StepContext, group: ConsumerGroup, request: TopicMetadata) -> None:
    """Store the topic watcher's reports of topics that the group knows or subscribes to (row MI8)."""
    store_topic_images(context, group, request.topics, {*group.topics, *group.subscribed()})


def store_topic_images(
    context: StepContext, group: ConsumerGroup, images: TopicImages, names: Collection[str]
) -> None:
    """Store the topic watcher's reports of the topics with these names."""
    changed = store_watched_topics(context, group, images, names)
    if not changed:
        return
    deleted = [name for name, topic in changed.items() if topic is None]
    if deleted and context.config.regex_resolve_at_once:
        _leave_out_of_results(group, deleted)
        context.retention_is_stale = True
    forget_unused(context)


def _leave_out_of_results(group: ConsumerGroup, names: Collection[str]) -> None:
    """Remove deleted topics from the results of the group's patterns.

    Otherwise the group epoch would be raised twice: for the deletion, and for the patterns' next results,
    which do not have these topics.
    """
    group.resolved_regexes = {
        pattern: replace(resolved, topics=[topic for topic in resolved.topics if topic not in names])
        for pattern, resolved in group.resolved_regexes.items()
    }


def forget_unused(context: StepContext) -> None:
    """Forget results of patterns without a subscriber (row HB45), and unused topics (row MI15)."""
    group = context.group_of(ConsumerGroup)
    if group.resolved_regexes or group.checked_regexes:
        patterns = {member.subscribed_topic_regex for member in group.members.values()}
        group.resolved_regexes = {p: r for p, r in group.resolved_regexes.items() if p in patterns}
        group.checked_regexes = {p: c for p, c in group.checked_regexes.items() if p in patterns}
    revoking = (topic_id for member in group.members.values() for topic_id in member.pending_revocation)
    forget_topics(context, group, revoking)


# Reconciliation: a member moves from its current to its target assignment. Rows RC0 to RC18, TM3.
#
# A member first revokes partitions. It moves to the target's epoch when a heartbeat no longer reports these
# partitions. It waits for partitions that another member still holds. Each of its heartbeats is one step;
# nothing is pushed.
# Source: CurrentAssignmentBuilder.java, GroupMetadataManager.maybeReconcile.


C = TypeVar("C", bound=Collection[int])

_NextState = NextState[AssignedPartitions, Partitions]


def reconcile(
    context: StepContext,
    group: ConsumerGroup,
    member: ConsumerMember,
    owned: Owned | None,
    subscription_changed: bool,
) -> None:
    """Move the member one step towards the group's target assignment.

    `owned` are the partitions that the request reports. If it is None, the client counts as owning all that
    was assigned to it.
    """
    if member.is_reconciled_to(group.assignment_epoch) and not subscription_changed:
        context.cite("RC0")
        return
    new = _next_state(context, group, member, owned, subscription_changed)
    if new is not None:
        _store_state(context, group, member, new)


def _next_state(
    context: StepContext,
    group: ConsumerGroup,
    member: ConsumerMember,
    owned: Owned | None,
    subscription_changed: bool,
) -> _NextState | None:
    """Return the member's next state, or None if it does not change."""
    match member.state:
        case MemberState.STABLE:
            if member.member_epoch != group.assignment_epoch:
                context.cite("RC1")
                return _advance(context, group, member, owned)
            context.cite("RC2")
            return _drop_unsubscribed(context, group, member, owned)
        case MemberState.UNREVOKED_PARTITIONS:
            if not _client_has_any(owned, member.pending_revocation):
                context.cite("RC5")
                return _advance(context, group, member, owned)
            if subscription_changed:
                context.cite("RC4")
                return _drop_unsubscribed(context, group, member, owned)
            context.cite("RC3")
            return None
        case MemberState.UNRELEASED_PARTITIONS:
            context.cite("RC6")
            return _advance(context, group, member, owned)


def _advance(
    context: StepContext, group: ConsumerGroup, member: ConsumerMember, owned: Owned | None
) -> _NextState:
    """Return the member's next state on its way to its target. The member stays at its epoch if it has to
    revoke partitions that its client still has, else it moves to the target's epoch.
    """
    target_epoch, last_state = group.assignment_epoch, member.state
    target = group.target.get(member.member_id, {})
    subscribed = group.ids_of(group.topics_of(member))
    keep: AssignedPartitions = {}
    revoke: AssignedPartitions = {}
    add: Partitions = {}
    waits_for: Partitions = {}
    for topic_id in sorted(target.keys() | member.assigned.keys()):
        current = member.assigned.get(topic_id, {})
        # A topic that the member does not subscribe to counts as absent from its target.
        wanted = target.get(topic_id, []) if topic_id in subscribed else []
        _set_unless_empty(keep, topic_id, {number: current[number] for number in wanted if number in current})
        kept = keep.get(topic_id, {})
        _set_unless_empty(revoke, topic_id, {n: epoch for n, epoch in current.items() if n not in kept})
        holders = group.held.get(topic_id, {})
        missing = [number for number in wanted if number not in kept]
        # A partition without a holder is free. The member itself is still the holder if this request
        # acknowledges the revocation of the partition.
        blocked = [number for number in missing if holders.get(number, member.member_id) != member.member_id]
        _set_unless_empty(waits_for, topic_id, blocked)
        _set_unless_empty(add, topic_id, sorted(set(missing).difference(blocked)))
    if revoke and _client_has_any(owned, revoke):
        if last_state is MemberState.UNREVOKED_PARTITIONS:
            context.cite("RC16")
        row, unrevoked = context.cite("RC9"), MemberState.UNREVOKED_PARTITIONS
        return NextState(row, member.member_epoch, unrevoked, keep, revoke, waits_for)
    if last_state is MemberState.UNRELEASED_PARTITIONS:
        if add:
            context.cite("RC18")
        elif waits_for:
            context.cite("RC17")
    state = MemberState.UNRELEASED_PARTITIONS if waits_for else MemberState.STABLE
    row_without_addition = "RC11" if waits_for else "RC12"
    row = context.cite("RC10" if add else row_without_addition)
    for topic_id, numbers in add.items():
        epoch_by_number = keep.get(topic_id, {}) | dict.fromkeys(numbers, target_epoch)
        keep[topic_id] = dict(sorted(epoch_by_number.items()))
    assigned = dict(sorted(keep.items()))
    return NextState(row, target_epoch, state, assigned, pending={}, waits_for=waits_for)


def _drop_unsubscribed(
    context: StepContext, group: ConsumerGroup, member: ConsumerMember, owned: Owned | None
) -> _NextState | None:
    """Return the member's next state without the topics that it no longer subscribes to.

    Return None if the member has no such topic.
    """
    subscribed = group.ids_of(group.topics_of(member))
    dropped = [topic_id for topic_id in member.assigned if topic_id not in subscribed]
    if not dropped:
        context.cite("RC13")
        return None
    keep = {topic_id: numbers for topic_id, numbers in member.assigned.items() if topic_id in subscribed}
    pending = dict(member.pending_revocation)
    for topic_id in dropped:
        numbers = pending.get(topic_id, {}) | member.assigned[topic_id]
        pending[topic_id] = dict(sorted(numbers.items()))
    if _client_has_any(owned, pending):
        row, unrevoked = context.cite("RC14"), MemberState.UNREVOKED_PARTITIONS
        return NextState(
            row, member.member_epoch, unrevoked, keep, dict(sorted(pending.items())), waits_for={}
        )
    row = context.cite("RC15")
    return NextState(row, member.member_epoch, member.state, keep, member.pending_revocation, waits_for={})


def _store_state(context: StepContext, group: ConsumerGroup, member: ConsumerMember, new: _NextState) -> None:
    """Store the member's next state, with a history entry."""
    assigned_before, names = member.assigned, group.names_by_id()
    # By row RC14 the client has not revoked the pending partitions yet.
    revoked = {} if new.rule == "RC14" else member.pending_revocation
    store_next_state(
        context,
        group,
        member,
        new,
        (assigned_before, member.pending_revocation),
        timer="TM3" if member.classic is None else None,
        revoked=revoked,
        show=lambda partitions: named(partitions, names),
        reason=lambda: _reason(group, new, assigned_before, revoked, names),
    )


def _reason(
    group: ConsumerGroup,
    new: _NextState,
    assigned_before: AssignedPartitions,
    revoked: AssignedPartitions,
    names: dict[bytes, str],
) -> str:
    """Return a sentence about the member's change to its `new` state. `revoked` are the partitions that the
    client has revoked.
    """
    clauses = []
    if revoked:
        clauses.append(f"has revoked {listed_partitions(revoked, names)}")
    if new.rule == "RC9":
        move = f"from epoch {new.epoch} to epoch {group.assignment_epoch}"
        clauses.append(f"has to revoke {listed_partitions(new.pending, names)} before it moves {move}")
    elif new.rule == "RC14":
        revokes = listed_partitions(new.pending, names)
        clauses.append(f"has to revoke {revokes}, because its subscription has changed")
    else:
        if dropped := without(assigned_before, new.assigned):
            clauses.append(f"loses {listed_partitions(dropped, names)}, which its client does not have")
        if added := without(new.assigned, assigned_before):
            clauses.append(f"gets {listed_partitions(added, names)} at epoch {new.epoch}")
        elif new.rule != "RC15":
            clauses.append(f"is at epoch {new.epoch} and gets no new partition")
        if new.waits_for:
            clauses.append(f"waits for {_held_by_others(group, new.waits_for, names)}")
    return "the member " + "; it ".join(clauses)


def _held_by_others(group: ConsumerGroup, waits_for: Partitions, names: dict[bytes, str]) -> str:
    """Return a text that names the partitions and the members that still hold them."""
    by_holder: dict[str, Partitions] = {}
    for topic_id, numbers in waits_for.items():
        for number in numbers:
            holder = group.held[topic_id][number]
            by_holder.setdefault(holder, {}).setdefault(topic_id, []).append(number)
    texts = [f"{listed_partitions(held, names)} of member {holder}" for holder, held in by_holder.items()]
    return listed(texts, "member", NAMED_MEMBERS)


def _set_unless_empty(partitions: dict[bytes, C], topic_id: bytes, numbers: C) -> None:
    if numbers:
        partitions[topic_id] = numbers


def _client_has_any(owned: Owned | None, partitions: AssignedPartitions) -> bool:
    """Return True if the client still has one of `partitions`. A client that reports no `owned` partitions
    counts as having all.
    """
    if owned is None:
        return True
    return any(
        number in partitions.get(topic_id, {}) for topic_id, numbers in owned.items() for number in numbers
    )
