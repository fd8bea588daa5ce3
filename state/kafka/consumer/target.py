"""The target assignment of a consumer group, and the steps by which its members reach it."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from assignors.kafka import BROKER_ASSIGNORS
from kafka_why.contract.kafka.history import EntryType, MemberState
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.kafka.snapshot import Partitions, listed, listed_partitions, named
from kafka_why.contract.protocols.subscriptions import MemberSubscription, Subscription, TopicPartition
from state.config import CoordinatorConfig
from state.kafka.consumer_group import AssignedPartitions, ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext
from state.kafka.group import Topic
from state.kafka.modern import (
    ModernSettings,
    by_topic_id,
    forget_topics,
    is_target_due,
    note_target,
    store_watched,
    topics_of_target,
    unused_topics,
)

# The settings that a group of the consumer protocol can have, and the session of a member.


SETTINGS = ModernSettings("consumer", session="CF19", heartbeat="CF20", assignment="CF21")


def arm_session(context: StepContext, member: ConsumerMember) -> None:
    """Arm the member's session timeout from now on (rows TM1, TM2)."""
    if member.classic is None:
        timeout_ms = SETTINGS.of(context).session_timeout_ms
    else:
        timeout_ms = member.classic.session_timeout_ms
    member.session_deadline_ms = context.deadline(timeout_ms)


# The target assignment: when it is computed, by which assignor, and from what. Rows TA1 to TA31.
#
# Source: GroupMetadataManager.maybeUpdateTargetAssignment, TargetAssignmentBuilder.java, ModernGroup.java.


def maybe_update_target(context: StepContext, group: ConsumerGroup) -> None:
    """Compute the target assignment if the group has changed since the last one and the assignment interval
    is over.
    """
    if not is_target_due(context, SETTINGS, current="TA1", too_early="TA2"):
        return
    last, name = group.target, preferred_assignor(group, context.config)
    topics, left_out = topics_of_target(context, group)
    group.target, group.target_assignor = by_topic_id(_run_assignor(group, name, topics), topics), name
    note_target(context, group, context.rule("TA3"), name, last, left_out)


def preferred_assignor(group: ConsumerGroup, config: CoordinatorConfig) -> str:
    """Rows TA9 to TA13: return the name of the configured assignor that most members request.

    In a tie, and without any request, the one that is configured first wins.
    """
    votes = Counter(member.server_assignor for member in group.members.values())
    return max(config.group_consumer_assignors, key=lambda name: votes[name])


def _run_assignor(
    group: ConsumerGroup, assignor: str, topics: Mapping[str, Topic]
) -> Mapping[str, list[TopicPartition]]:
    """Rows TA14 to TA19, TA28 and TA29: run the assignor by topic names.

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
    """Return the member's existing topics, and its last target as its owned partitions."""
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
    found = store_watched(context, group, images, names)
    if not found:
        return
    deleted = [name for name, topic in found.items() if topic is None]
    if deleted and context.config.regex_resolve_at_once:
        _leave_out_of_results(group, deleted)
        context.retention_is_stale = True
    forget_unused(context)


def _leave_out_of_results(group: ConsumerGroup, names: Collection[str]) -> None:
    # One new epoch covers the deletion and the new results.
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
    if not unused_topics(group):
        return
    used = {id_ for target in group.target.values() for id_ in target}
    for member in group.members.values():
        used.update(member.assigned, member.pending_revocation)
    forget_topics(context, group, used)


# Reconciliation: a member moves from its current to its target assignment. Rows RC0 to RC18, TM3.
#
# A member first revokes partitions, and moves to the target's epoch when it has shown that it did. It waits
# for partitions that another member still holds. Each of its heartbeats is one step; nothing is pushed.
# Source: CurrentAssignmentBuilder.java, GroupMetadataManager.maybeReconcile.


Owned = Mapping[bytes, Collection[int]]
"""The partitions that a client reports as its own, by topic id."""

C = TypeVar("C", bound=Collection[int])

# The maximum number of members that a sentence of the history names.
_NAMED_MEMBERS = 3


class _NextState(Struct, frozen=True):
    """A member's next state. `waits_for` are partitions of its target that other members hold."""

    rule: RuleId
    epoch: int
    state: MemberState
    assigned: AssignedPartitions
    pending: AssignedPartitions
    waits_for: Partitions = {}


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
        context.rule("RC0")
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
                context.rule("RC1")
                return _advance(context, group, member, owned)
            context.rule("RC2")
            return _shrink(context, group, member, owned)
        case MemberState.UNREVOKED_PARTITIONS:
            if not _has_any(owned, member.pending_revocation):
                context.rule("RC5")
                return _advance(context, group, member, owned)
            if subscription_changed:
                context.rule("RC4")
                return _shrink(context, group, member, owned)
            context.rule("RC3")
            return None
        case MemberState.UNRELEASED_PARTITIONS:
            context.rule("RC6")
            return _advance(context, group, member, owned)


def _advance(
    context: StepContext, group: ConsumerGroup, member: ConsumerMember, owned: Owned | None
) -> _NextState:
    """Return the member's next state on its way to its target."""
    epoch, was = group.assignment_epoch, member.state
    target = group.target.get(member.member_id, {})
    subscribed = _subscribed_ids(group, member)
    keep: AssignedPartitions = {}
    revoke: AssignedPartitions = {}
    add: Partitions = {}
    waits_for: Partitions = {}
    for topic_id in sorted(target.keys() | member.assigned.keys()):
        has = member.assigned.get(topic_id, {})
        # A topic that the member does not subscribe to counts as absent from its target.
        wanted = target.get(topic_id, []) if topic_id in subscribed else []
        _set_unless_empty(keep, topic_id, {number: has[number] for number in wanted if number in has})
        kept = keep.get(topic_id, {})
        _set_unless_empty(revoke, topic_id, {number: at for number, at in has.items() if number not in kept})
        holders = group.held.get(topic_id, {})
        missing = [number for number in wanted if number not in kept]
        # A partition whose revocation the member acknowledges by this request is free for it.
        taken = [number for number in missing if holders.get(number, member.member_id) != member.member_id]
        _set_unless_empty(waits_for, topic_id, taken)
        _set_unless_empty(add, topic_id, sorted(set(missing).difference(taken)))
    if revoke and _has_any(owned, revoke):
        if was is MemberState.UNREVOKED_PARTITIONS:
            context.rule("RC16")
        row, unrevoked = context.rule("RC9"), MemberState.UNREVOKED_PARTITIONS
        return _NextState(row, member.member_epoch, unrevoked, keep, revoke, waits_for)
    if was is MemberState.UNRELEASED_PARTITIONS:
        if add:
            context.rule("RC18")
        elif waits_for:
            context.rule("RC17")
    state = MemberState.UNRELEASED_PARTITIONS if waits_for else MemberState.STABLE
    row = context.rule("RC10" if add else "RC11" if waits_for else "RC12")
    for topic_id, numbers in add.items():
        numbered = keep.get(topic_id, {}) | dict.fromkeys(numbers, epoch)
        keep[topic_id] = dict(sorted(numbered.items()))
    return _NextState(row, epoch, state, dict(sorted(keep.items())), {}, waits_for)


def _shrink(
    context: StepContext, group: ConsumerGroup, member: ConsumerMember, owned: Owned | None
) -> _NextState | None:
    """Return the member's next state without the topics that it no longer subscribes to, or None."""
    subscribed = _subscribed_ids(group, member)
    dropped = [topic_id for topic_id in member.assigned if topic_id not in subscribed]
    if not dropped:
        context.rule("RC13")
        return None
    keep = {topic_id: numbers for topic_id, numbers in member.assigned.items() if topic_id in subscribed}
    pending = dict(member.pending_revocation)
    for topic_id in dropped:
        numbers = pending.get(topic_id, {}) | member.assigned[topic_id]
        pending[topic_id] = dict(sorted(numbers.items()))
    if _has_any(owned, pending):
        row, unrevoked = context.rule("RC14"), MemberState.UNREVOKED_PARTITIONS
        return _NextState(row, member.member_epoch, unrevoked, keep, dict(sorted(pending.items())))
    row = context.rule("RC15")
    return _NextState(row, member.member_epoch, member.state, keep, member.pending_revocation)


def _store_state(context: StepContext, group: ConsumerGroup, member: ConsumerMember, new: _NextState) -> None:
    """Store the member's new state, arm or disarm its rebalance timer (TM3), and add a history entry."""
    member.previous_epoch = member.member_epoch
    if (new.epoch, new.state, new.assigned, new.pending) == (
        member.member_epoch,
        member.state,
        member.assigned,
        member.pending_revocation,
    ):
        return
    had, revoked = member.assigned, member.pending_revocation
    since_ms = member.revoking_since_ms
    group.assign(member, new.assigned, new.pending)
    member.member_epoch, member.state = new.epoch, new.state
    revokes = new.state is MemberState.UNREVOKED_PARTITIONS
    member.revoking_since_ms = context.now_ms if revokes else None
    member.rebalance_deadline_ms = None
    if revokes and member.classic is None:
        context.rule("TM3")
        member.rebalance_deadline_ms = context.deadline(member.rebalance_timeout_ms)
    names = group.names_by_id()
    acknowledged = bool(revoked) and new.rule != "RC14"
    context.record_member(
        new.rule,
        EntryType.MEMBER_RECONCILED,
        member,
        _reason(group, member, new, had, revoked if acknowledged else {}, names),
        member_epoch=member.member_epoch,
        member_state=member.state.value,
        assigned=named(member.assigned, names),
        revoking=named(member.pending_revocation, names) or None,
        awaiting=named(new.waits_for, names) or None,
        deadline_ms=member.rebalance_deadline_ms,
        took_ms=context.now_ms - since_ms if acknowledged and since_ms is not None else None,
    )


def _reason(
    group: ConsumerGroup,
    member: ConsumerMember,
    new: _NextState,
    had: AssignedPartitions,
    revoked: AssignedPartitions,
    names: dict[bytes, str],
) -> str:
    """Return a sentence about the change. `revoked` are the partitions that the client has revoked."""
    does = []
    if revoked:
        does.append(f"has revoked {listed_partitions(revoked, names)}")
    if new.rule == "RC9":
        move = f"from epoch {new.epoch} to epoch {group.assignment_epoch}"
        does.append(f"has to revoke {listed_partitions(new.pending, names)} before it moves {move}")
    elif new.rule == "RC14":
        revokes = listed_partitions(new.pending, names)
        does.append(f"has to revoke {revokes}, because its subscription has changed")
    else:
        if dropped := _difference(had, new.assigned):
            does.append(f"loses {listed_partitions(dropped, names)}, which its client does not have")
        if added := _difference(new.assigned, had):
            does.append(f"gets {listed_partitions(added, names)} at epoch {new.epoch}")
        elif new.rule != "RC15":
            does.append(f"is at epoch {new.epoch} and gets no new partition")
        if new.waits_for:
            does.append(f"waits for {_held_by_others(group, new.waits_for, names)}")
    return "the member " + "; it ".join(does)


def _held_by_others(group: ConsumerGroup, waits_for: Partitions, names: dict[bytes, str]) -> str:
    by_holder: dict[str, Partitions] = {}
    for topic_id, numbers in waits_for.items():
        for number in numbers:
            holder = group.held[topic_id][number]
            by_holder.setdefault(holder, {}).setdefault(topic_id, []).append(number)
    texts = [f"{listed_partitions(held, names)} of member {holder}" for holder, held in by_holder.items()]
    return listed(texts, "member", _NAMED_MEMBERS)


def _difference(of: AssignedPartitions, other: AssignedPartitions) -> Partitions:
    partitions: Partitions = {}
    for topic_id, numbers in of.items():
        _set_unless_empty(partitions, topic_id, [n for n in numbers if n not in other.get(topic_id, {})])
    return partitions


def _set_unless_empty(partitions: dict[bytes, C], topic_id: bytes, numbers: C) -> None:
    if numbers:
        partitions[topic_id] = numbers


def _subscribed_ids(group: ConsumerGroup, member: ConsumerMember) -> set[bytes]:
    topics = (group.topics.get(name) for name in group.topics_of(member))
    return {topic.topic_id for topic in topics if topic is not None}


def _has_any(owned: Owned | None, partitions: AssignedPartitions) -> bool:
    if owned is None:
        # A client that does not report its partitions counts as having them.
        return True
    return any(
        number in partitions.get(topic_id, {}) for topic_id, numbers in owned.items() for number in numbers
    )
