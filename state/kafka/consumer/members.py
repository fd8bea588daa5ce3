"""The members of a consumer group: joining, continuing, updates by requests, and removal."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import RegexResolution
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.kafka.snapshot import listed, names_change
from kafka_why.contract.messages import ErrorCode
from state.kafka.consumer.migration import maybe_downgrade
from state.kafka.consumer.regex import RegexChange, update_regex
from state.kafka.consumer.target import (
    Owned,
    forget_unused,
    maybe_update_target,
    preferred_assignor,
    reconcile,
)
from state.kafka.consumer_group import ClassicMember, ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext, new_member_id
from state.kafka.modern import (
    ClientIdentity,
    RequestRefused,
    bump,
    has_capacity,
    refresh_fingerprint,
    settle_emptied,
)

# Changes of a member by a heartbeat or a JoinGroup, and the group epoch. Rows HB48 to HB55.
#
# Source: GroupMetadataManager.consumerGroupHeartbeat, classicGroupJoinToConsumerGroup.


class Update(Struct, frozen=True, kw_only=True):
    """The fields of a member after the request.

    `subscribed_topic_names` is sorted. `resolution` has the topics that the pattern matches, or None if the
    sender does not know them. With `checks_topics`, the sender filters topics by ACLs.
    """

    client_id: str
    client_host: str
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str
    resolution: RegexResolution | None = None
    checks_topics: bool = False
    classic: ClassicMember | None = None


def update_member(context: StepContext, group: ConsumerGroup, member: ConsumerMember, update: Update) -> bool:
    """Update the member, and raise the group epoch if the group needs a new target.

    Return True if the member's subscription has changed. Raise RequestRefused for an invalid pattern.
    """
    names, regex = member.subscribed_topic_names, member.subscribed_topic_regex
    asks_for_other_assignor = update.classic is None and update.server_assignor != member.server_assignor
    was_preferred = preferred_assignor(group, context.config) if asks_for_other_assignor else ""
    names_changed = update.subscribed_topic_names != names
    change = _change_pattern(context, group, member, update)
    _set_fields(group, member, update)
    subscription_changed = names_changed or change in (RegexChange.UPDATED, RegexChange.UPDATED_AND_RESOLVED)
    if names_changed or change is not RegexChange.NONE:
        forget_unused(context)
        context.retention_is_stale = True
    reasons = []
    if names_changed:
        reasons.append(names_change(names, update.subscribed_topic_names))
    if change is RegexChange.UPDATED_AND_RESOLVED:
        new = update.subscribed_topic_regex
        reasons.append(f"subscribes to the pattern {new!r}" if new else f"gives up the pattern {regex!r}")
    is_preferred = preferred_assignor(group, context.config) if asks_for_other_assignor else ""
    if not reasons and is_preferred != was_preferred:
        reasons.append(f"changes the group's assignor from {was_preferred} to {is_preferred}")
    if not reasons and not group.metadata_stale:
        return subscription_changed
    topics_changed = refresh_fingerprint(group)
    if reasons:
        row = context.rule(
            "HB49" if names_changed else "HB52" if change is RegexChange.UPDATED_AND_RESOLVED else "HB62"
        )
        bump(context, row, f"member {member.member_id} {' and '.join(reasons)}", member_id=member.member_id)
    elif change is RegexChange.REFRESHED:
        bump(context, context.rule("RG8"), f"the topics of {regex!r} have changed")
    elif topics_changed:
        bump(context, context.rule("HB53"), "the topics that members subscribe to have changed")
    return subscription_changed


def _change_pattern(
    context: StepContext, group: ConsumerGroup, member: ConsumerMember, update: Update
) -> RegexChange:
    """Prepare the group for the member's pattern. Raise RequestRefused for an invalid pattern."""
    regex = update.subscribed_topic_regex
    is_new = regex != member.subscribed_topic_regex
    begins_checks = update.checks_topics and bool(regex) and regex not in group.checked_regexes
    if not is_new and update.resolution is None and not begins_checks:
        return RegexChange.NONE
    return update_regex(context, group, member, regex, update.resolution, checks_topics=update.checks_topics)


def _set_fields(group: ConsumerGroup, member: ConsumerMember, update: Update) -> None:
    """Row HB48: store the update in the member."""
    if update.instance_id != member.instance_id:
        if member.instance_id is not None:
            del group.static_members[member.instance_id]
        if update.instance_id is not None:
            group.static_members[update.instance_id] = member.member_id
        member.instance_id = update.instance_id
    if update.classic is not None:
        member.rebalance_deadline_ms = None
    member.client_id = update.client_id
    member.client_host = update.client_host
    member.rack_id = update.rack_id
    member.rebalance_timeout_ms = update.rebalance_timeout_ms
    member.server_assignor = update.server_assignor
    group.subscribe(member, update.subscribed_topic_names, update.subscribed_topic_regex)
    # The timers of the classic protocol are in `classic`, so they end here.
    member.classic = update.classic


# Joining and continuing, by a ConsumerGroupHeartbeat or by a JoinGroup. Rows HB20, HB44, CV4, TA31.
#
# Only the sender's identity and the requested changes differ between the two: `heartbeat` and
# `classic_members`. Source: GroupMetadataManager.consumerGroupHeartbeat, classicGroupJoinToConsumerGroup,
# replaceMember.


class SenderIdentity(Struct, frozen=True):
    """The member that a request comes from.

    `member` is None if the sender is new. `replaced` is the static member whose place the sender takes.
    `rule` is the row that decided this.
    """

    rule: RuleId
    member_id: str
    member: ConsumerMember | None = None
    replaced: ConsumerMember | None = None

    @property
    def predecessor(self) -> ConsumerMember | None:
        """The replaced member or the sender's own, None if the sender is new."""
        return self.member or self.replaced


def generated_member_id(context: StepContext, client_id: str, instance_id: str | None) -> str:
    """Return the member id that the coordinator derives from the request for its sender."""
    prefix = client_id if instance_id is None else instance_id
    return new_member_id(prefix, context.cause, context.config.member_id_namespace)


def is_full(context: StepContext, member_id: str) -> bool:
    """Return True if the group has reached its maximum size and does not contain this member."""
    members = context.group_of(ConsumerGroup).members
    return len(members) >= context.config.group_consumer_max_size and member_id not in members


def check_capacity(
    context: StepContext,
    sender: SenderIdentity,
    topics: Collection[str],
    reported: TopicImages | None,
    message: str,
    event: EntryType | None,
) -> None:
    """Row TA31: raise RequestRefused if the group would have more partitions than the coordinator assigns to
    one group.

    `reported` are the topics that the request reports. `message` and `event` belong to the refusal.
    """
    before = sender.predecessor
    member_id = sender.member_id if before is None else before.member_id
    group = context.group_of(ConsumerGroup)
    if not has_capacity(context.config, group, member_id, topics, reported):
        raise RequestRefused(context.rule("TA31"), ErrorCode.GROUP_MAX_SIZE_REACHED, message, event)


def admit(
    context: StepContext,
    sender: SenderIdentity,
    client: ClientIdentity,
    reason: str,
    *,
    client_reason: str | None = None,
) -> ConsumerMember:
    """Add the sender as a new member, or replace the member with its instance id.

    `reason` goes into the history entry of a new member.
    """
    if sender.replaced is not None:
        return _replace_member(context, sender.rule, sender.replaced, sender.member_id, client)
    member = ConsumerMember(
        member_id=sender.member_id,
        instance_id=client.instance_id,
        client_id=client.client_id,
        client_host=client.client_host,
    )
    group = context.group_of(ConsumerGroup)
    group.add(member)
    if client.instance_id is not None:
        group.static_members[client.instance_id] = member.member_id
    context.record_member(sender.rule, EntryType.MEMBER_ADDED, member, reason, client_reason=client_reason)
    return member


def update_and_reconcile(
    context: StepContext, group: ConsumerGroup, member: ConsumerMember, update: Update, owned: Owned | None
) -> None:
    """Update the member and the group epoch, compute a due target, and move the member one step towards it.

    `owned` are the partitions that the request reports, or None. Raise RequestRefused for an invalid pattern.
    """
    subscription_changed = update_member(context, group, member, update)
    maybe_update_target(context, group)
    reconcile(context, group, member, owned, subscription_changed)


def _replace_member(
    context: StepContext, rule: RuleId, old: ConsumerMember, member_id: str, client: ClientIdentity
) -> ConsumerMember:
    """Replace a static member with a copy at epoch 0, under a new member id."""
    group = context.group_of(ConsumerGroup)
    target = group.target.get(old.member_id)
    member = ConsumerMember(
        member_id=member_id,
        instance_id=old.instance_id,
        rack_id=old.rack_id,
        client_id=client.client_id,
        client_host=client.client_host,
        rebalance_timeout_ms=old.rebalance_timeout_ms,
        server_assignor=old.server_assignor,
        subscribed_topic_names=old.subscribed_topic_names,
        subscribed_topic_regex=old.subscribed_topic_regex,
        previous_epoch=0,
        state=old.state,
        classic=old.classic,
        revoking_since_ms=old.revoking_since_ms,
    )
    assigned, pending = old.assigned, old.pending_revocation
    remove_member(group, old)
    # If the new id already has a member, its partitions are lost, and the group needs a new target.
    other = group.members.get(member_id)
    if other is not None:
        remove_member(group, other)
    group.add(member)
    group.assign(member, assigned, pending)
    if target is not None:
        group.target[member_id] = target
    if member.instance_id is not None:
        group.static_members[member.instance_id] = member_id
    context.record_member(
        rule,
        EntryType.MEMBER_REPLACED,
        member,
        f"the static member came back, {old.member_id} is fenced",
        replaced_member_id=old.member_id,
    )
    if other is not None:
        forget_unused(context)
        refresh_fingerprint(group)
        reason = f"member {member_id} gave up its own place for that of instance {member.instance_id}"
        bump(context, rule, reason, member_id=member_id)
    return member


def remove_member(group: ConsumerGroup, member: ConsumerMember) -> None:
    """Remove a member with its target, its instance id and its timers, and free its partitions (row HB44)."""
    group.assign(member, {}, {})
    group.remove(member)
    group.target.pop(member.member_id, None)
    if member.instance_id is not None:
        del group.static_members[member.instance_id]


# The removal of members, whatever its cause. Rows HB43 to HB46.
#
# Source: GroupMetadataManager.consumerGroupFenceMembers.


_NO_REASONS: Mapping[str, str | None] = {}


def fence(
    context: StepContext,
    rule: RuleId,
    member_ids: Sequence[str],
    reason: str,
    *,
    client_reasons: Mapping[str, str | None] = _NO_REASONS,
) -> None:
    """Remove the members with these ids (at least one), and raise the group epoch once.

    No target is computed: the next heartbeat or JoinGroup does it. If only classic members remain, the group
    may become a classic group.

    `reason` is a part of a sentence, such as "left the group". `client_reasons` are the clients' own, by
    member id.
    """
    group = context.group_of(ConsumerGroup)
    for member_id in member_ids:
        member = group.members[member_id]
        remove_member(group, member)
        context.record_member(
            rule,
            EntryType.MEMBER_REMOVED,
            member,
            reason,
            client_reason=client_reasons.get(member_id),
            member_epoch=member.member_epoch,
        )
    context.retention_is_stale = True
    cause = f"{_subject_of(member_ids)} removed: {reason}"
    if maybe_downgrade(context, group, cause):
        context.rule("HB43")
        return
    forget_unused(context)
    refresh_fingerprint(group)
    bump(context, context.rule("HB46"), cause)
    if not group.members:
        settle_emptied(context)  # row K5


def _subject_of(member_ids: Sequence[str]) -> str:
    """Return the start of a sentence: `member a was` or `members a, b were`."""
    if len(member_ids) == 1:
        return f"member {member_ids[0]} was"
    return f"members {listed(list(member_ids), 'member')} were"
