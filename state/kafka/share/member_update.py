"""What a heartbeat changes in its member, and the group epoch. Rows SH21 to SH24.

Source: GroupMetadataManager.shareGroupHeartbeat.
"""

from collections.abc import Collection, Mapping

from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat
from kafka_why.contract.kafka.wording import names_change
from state.kafka.context import StepContext
from state.kafka.modern.epochs import bump
from state.kafka.modern.topics import look
from state.kafka.share.outcomes import in_words
from state.kafka.share.target import unassigned
from state.kafka.share.topics import forget_unused
from state.kafka.share_group import ShareGroup, ShareMember


def update_member(
    context: StepContext, member: ShareMember, request: ShareGroupHeartbeat, is_pending: bool
) -> bool:
    """Update the member, and raise the group epoch at most once if the group needs another target. Return
    whether it was raised. `is_pending`: partitions of before the request are not assigned.
    """
    group = context.group_of(ShareGroup)
    before, given = member.subscribed_topic_names, request.subscribed_topic_names
    names = before if given is None else sorted(set(given))
    member.client_id, member.client_host = request.client_id, request.client_host
    if request.rack_id is not None:
        member.rack_id = request.rack_id
    if names != before:
        group.subscribe(member, names)
        forget_unused(context)
    topics_changed = look(group) if names != before or is_pending or group.metadata_stale else False
    if names != before:
        reason = f"member {member.member_id} {names_change(before, names)}"
        bump(context, context.rule("SH21"), reason, member_id=member.member_id)
    elif is_pending:
        missing = unassigned(group)
        bump(context, context.rule("SH22"), _why_pending(missing), partitions=missing or None)
    elif topics_changed:
        bump(context, context.rule("SH23"), "the topics that members subscribe to have changed")
    else:
        return False
    return True


def _why_pending(missing: Mapping[str, Collection[int]]) -> str:
    if not missing:
        return "the target has partitions that are not initialized"
    return f"initialized and in no target: {in_words(missing)}"
