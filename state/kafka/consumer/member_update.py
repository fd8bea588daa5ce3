"""What a heartbeat or a JoinGroup changes in its member, and the group epoch. Rows HB48 to HB55.

Source: GroupMetadataManager.consumerGroupHeartbeat, classicGroupJoinToConsumerGroup.
"""

from msgspec import Struct

from kafka_why.contract.kafka.requests import RegexResolution
from kafka_why.contract.kafka.wording import names_change
from state.kafka.consumer.regex import Change, update_regex
from state.kafka.consumer.target import preferred_assignor
from state.kafka.consumer.topics import forget_unused
from state.kafka.consumer_group import ClassicMember, ConsumerGroup, ConsumerMember
from state.kafka.context import StepContext
from state.kafka.modern.epochs import bump
from state.kafka.modern.topics import look


class Update(Struct, frozen=True, kw_only=True):
    """The fields of a member after the request. `subscribed_topic_names` is sorted. `resolution` is what the
    pattern matches, None if the sender does not know it. With `checks_topics` it filters what patterns match.
    Times are in ms.
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


def update_member(context: StepContext, member: ConsumerMember, update: Update) -> bool:
    """Update the member, and raise the group epoch if the group needs another target. Return whether the
    member's subscription has changed. Raise Refused for an invalid pattern.
    """
    group = context.group_of(ConsumerGroup)
    names, regex = member.subscribed_topic_names, member.subscribed_topic_regex
    asks_for_another = update.classic is None and update.server_assignor != member.server_assignor
    was_preferred = preferred_assignor(group, context.config) if asks_for_another else ""
    names_changed = update.subscribed_topic_names != names
    change = _change(context, member, update)
    _set_fields(group, member, update)
    subscription_changed = names_changed or change in (Change.UPDATED, Change.UPDATED_AND_RESOLVED)
    if names_changed or change is not Change.NONE:
        forget_unused(context)
        context.retention_is_stale = True
    reasons = []
    if names_changed:
        reasons.append(names_change(names, update.subscribed_topic_names))
    if change is Change.UPDATED_AND_RESOLVED:
        reasons.append(_regex_change(regex, update.subscribed_topic_regex))
    is_preferred = preferred_assignor(group, context.config) if asks_for_another else ""
    if not reasons and is_preferred != was_preferred:
        reasons.append(f"changes the group's assignor from {was_preferred} to {is_preferred}")
    if not reasons and not group.metadata_stale:
        return subscription_changed
    topics_changed = look(group)
    if reasons:
        row = context.rule(_row_of(names_changed, change))
        bump(context, row, f"member {member.member_id} {' and '.join(reasons)}", member_id=member.member_id)
    elif change is Change.REFRESHED:
        bump(context, context.rule("RG8"), f"the topics of {regex!r} have changed")
    elif topics_changed:
        bump(context, context.rule("HB53"), "the topics that members subscribe to have changed")
    return subscription_changed


def _row_of(names_changed: bool, change: Change) -> str:
    """The first row that asks for the new epoch."""
    if names_changed:
        return "HB49"
    return "HB52" if change is Change.UPDATED_AND_RESOLVED else "HB62"


def _change(context: StepContext, member: ConsumerMember, update: Update) -> Change:
    """How the member's pattern, or what it matches, changes. Raise Refused for an invalid pattern."""
    regex = update.subscribed_topic_regex
    is_new = regex != member.subscribed_topic_regex
    checked = context.group_of(ConsumerGroup).checked_regexes
    begins_checks = update.checks_topics and bool(regex) and regex not in checked
    if not is_new and update.resolution is None and not begins_checks:
        return Change.NONE
    return update_regex(context, member, regex, update.resolution, checks_topics=update.checks_topics)


def _set_fields(group: ConsumerGroup, member: ConsumerMember, update: Update) -> None:
    """Row HB48. Timers of a phase in which the member was on the classic protocol go with `classic`."""
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
    member.classic = update.classic


def _regex_change(before: str, after: str) -> str:
    return f"subscribes to the pattern {after!r}" if after else f"gives up the pattern {before!r}"
