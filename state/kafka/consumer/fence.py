"""The removal of members, whatever its cause. Rows HB43 to HB46.

Source: GroupMetadataManager.consumerGroupFenceMembers.
"""

from collections.abc import Mapping, Sequence

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.wording import listed
from state.kafka.consumer.downgrade import maybe_downgrade
from state.kafka.consumer.joining import remove_member
from state.kafka.consumer.topics import forget_unused
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.epochs import bump, come_to_rest
from state.kafka.modern.topics import look

_NO_REASONS: Mapping[str, str | None] = {}


def fence(
    context: StepContext,
    rule: RuleId,
    member_ids: Sequence[str],
    reason: str,
    *,
    client_reasons: Mapping[str, str | None] = _NO_REASONS,
) -> None:
    """Remove these members, of which there is one at the least, and raise the group epoch once. No target is
    computed: the next heartbeat or JoinGroup does it.

    `reason` is a part of a sentence, such as "left the group". `client_reasons` are the clients' own, by
    member id. A group that is left with members on the classic protocol alone may become a classic group.
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
    cause = f"{_who(member_ids)} removed: {reason}"
    if maybe_downgrade(context, cause):
        context.rule("HB43")
        return
    forget_unused(context)
    look(group)
    bump(context, context.rule("HB46"), cause)
    if not group.members:
        come_to_rest(context)  # row K5


def _who(member_ids: Sequence[str]) -> str:
    """`member a was`, `members a, b were`, the start of a sentence."""
    if len(member_ids) == 1:
        return f"member {member_ids[0]} was"
    return f"members {listed(list(member_ids), 'member')} were"
