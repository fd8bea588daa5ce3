"""The members of a consumer group: how a request adds or updates a member, and how members are removed.

A row, such as HB49, is a rule of docs/rules-consumer.md. `context.cite` records that a row was applied.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import RegexResolution
from kafka_why.contract.kafka.snapshot import listed, names_change
from state.kafka.consumer.migration import maybe_downgrade
from state.kafka.consumer.regex import RegexChange, update_regex
from state.kafka.consumer.target import (
    forget_unused,
    maybe_update_target,
    preferred_assignor,
    reconcile,
)
from state.kafka.consumer_group import ClassicMember, ConsumerGroup, ConsumerMember, Owned
from state.kafka.context import RuleId, StepContext, new_member_id
from state.kafka.modern import ClientIdentity, bump, refresh_fingerprint
from state.kafka.modern_members import SenderIdentity, replace_member

# Changes of a member by a heartbeat or a JoinGroup, and the group epoch. Rows HB48 to HB55.
#
# Source: GroupMetadataManager.consumerGroupHeartbeat, classicGroupJoinToConsumerGroup.


class MemberUpdate(Struct, frozen=True, kw_only=True):
    """The fields of a member after its request.

    `subscribed_topic_names` is sorted. `resolution` has the topics that the pattern matches, or is None if
    the request does not have them. If `checks_topics` is True, the sender leaves out the topics that the
    client may not DESCRIBE. `classic` is None for a member on the consumer protocol.
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


def update_member(
    context: StepContext, group: ConsumerGroup, member: ConsumerMember, update: MemberUpdate
) -> bool:
    """Update the member, and raise the group epoch if the group needs a new target.

    Return True if the member's subscription has changed. Raise RequestRefused for an invalid pattern.
    """
    names_before, regex_before = member.subscribed_topic_names, member.subscribed_topic_regex
    # Only a member on the consumer protocol requests an assignor.
    requests_other_assignor = update.classic is None and update.server_assignor != member.server_assignor
    assignor_before = preferred_assignor(group, context.config) if requests_other_assignor else ""
    names_changed = update.subscribed_topic_names != names_before
    pattern_change = _update_group_patterns(context, group, member, update)
    _set_fields(group, member, update)
    subscription_changed = names_changed or pattern_change in (
        RegexChange.UPDATED,
        RegexChange.UPDATED_AND_RESOLVED,
    )
    if names_changed or pattern_change is not RegexChange.NONE:
        forget_unused(context)
        context.retention_is_stale = True
    reasons: dict[str, str] = {}  # why this member's request raises the group epoch, by row
    if names_changed:
        reasons["HB49"] = names_change(names_before, update.subscribed_topic_names)
    if pattern_change is RegexChange.UPDATED_AND_RESOLVED:
        regex = update.subscribed_topic_regex
        reasons["HB52"] = (
            f"subscribes to the pattern {regex!r}" if regex else f"gives up the pattern {regex_before!r}"
        )
    assignor = preferred_assignor(group, context.config) if requests_other_assignor else ""
    if not reasons and assignor != assignor_before:
        reasons["HB62"] = f"changes the group's assignor from {assignor_before} to {assignor}"
    if not reasons and not group.metadata_stale:
        return subscription_changed
    topics_changed = refresh_fingerprint(group)
    if reasons:
        row, predicates = context.cite(next(iter(reasons))), " and ".join(reasons.values())
        bump(context, row, f"member {member.member_id} {predicates}", member_id=member.member_id)
    elif pattern_change is RegexChange.REFRESHED:
        bump(context, context.cite("RG8"), f"the topics of {regex_before!r} have changed")
    elif topics_changed:
        bump(context, context.cite("HB53"), "the topics that members subscribe to have changed")
    return subscription_changed


def _update_group_patterns(
    context: StepContext, group: ConsumerGroup, member: ConsumerMember, update: MemberUpdate
) -> RegexChange:
    """Add the pattern of the update to the group, and return how the member's pattern changes. The member
    itself is not updated yet. Raise RequestRefused if the pattern is invalid.
    """
    regex = update.subscribed_topic_regex
    is_new = regex != member.subscribed_topic_regex
    begins_checks = update.checks_topics and bool(regex) and regex not in group.checked_regexes
    if not is_new and update.resolution is None and not begins_checks:
        return RegexChange.NONE
    return update_regex(context, group, member, regex, update.resolution, checks_topics=update.checks_topics)


def _set_fields(group: ConsumerGroup, member: ConsumerMember, update: MemberUpdate) -> None:
    """Row HB48: store the update in the member."""
    group.set_instance(member, update.instance_id)
    if update.classic is not None:
        member.rebalance_deadline_ms = None  # a classic member has a join timer instead (row TM4)
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
# The two requests differ only in how they identify the sender and in the changes that they request. These
# parts are in `heartbeat` and `classic_members`. Source: GroupMetadataManager.consumerGroupHeartbeat,
# classicGroupJoinToConsumerGroup, replaceMember.


class ConsumerSender(SenderIdentity[ConsumerMember], frozen=True):
    """The sender of a ConsumerGroupHeartbeat or of a JoinGroup."""


def generated_member_id(context: StepContext, client_id: str, instance_id: str | None) -> str:
    """Return the member id that the coordinator derives from the request for its sender."""
    prefix = client_id if instance_id is None else instance_id
    return new_member_id(prefix, context.cause, context.config.member_id_namespace)


def is_full(context: StepContext, member_id: str) -> bool:
    """Return True if the group has reached its maximum size and does not contain this member."""
    members = context.group_of(ConsumerGroup).members
    return len(members) >= context.config.group_consumer_max_size and member_id not in members


def admit(
    context: StepContext,
    sender: ConsumerSender,
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
    context.group_of(ConsumerGroup).add(member)
    context.record_member(sender.rule, EntryType.MEMBER_ADDED, member, reason, client_reason=client_reason)
    return member


def update_and_reconcile(
    context: StepContext,
    group: ConsumerGroup,
    member: ConsumerMember,
    update: MemberUpdate,
    owned: Owned | None,
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
    """Replace the static member `old` with a copy that has a new member id and the epoch 0."""
    group = context.group_of(ConsumerGroup)
    # If another member has the new id already, it is removed, and its partitions need a new target.
    displaced = group.members.get(member_id) if member_id != old.member_id else None
    if displaced is not None:
        group.remove(displaced)
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
    replace_member(context, group, rule, old, member, old.assigned, old.pending_revocation)
    if displaced is not None:
        forget_unused(context)
        refresh_fingerprint(group)
        reason = f"member {member_id} gave up its own place for that of instance {member.instance_id}"
        bump(context, rule, reason, member_id=member_id)
    return member


# The removal of members, for whatever reason. Rows HB43 to HB46.
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

    `reason` is a part of a sentence, such as "left the group". `client_reasons` has the reasons that clients
    sent, by member id.
    """
    group = context.group_of(ConsumerGroup)
    for member_id in member_ids:
        member = group.members[member_id]
        group.remove(member)
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
        context.cite("HB43")
        return
    forget_unused(context)
    refresh_fingerprint(group)
    bump(context, context.cite("HB46"), cause)


def _subject_of(member_ids: Sequence[str]) -> str:
    """Return the start of a sentence: `member a was` or `members a, b were`."""
    if len(member_ids) == 1:
        return f"member {member_ids[0]} was"
    return f"members {listed(list(member_ids), 'member')} were"
