"""An administrator's requests: DescribeGroups (rows V1 to V3, AD8, AD9) and DeleteGroups (rows K1 to K3).

Source: GroupMetadataManager.describeGroups, ClassicGroup.describe, ClassicGroup.validateDeleteGroup.
"""

from msgspec import UNSET

from state.errors import ErrorCode
from state.kafka.classic_group import GroupState
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import StepContext, Verdict
from state.kafka.offsets.pending import pending_offsets
from state.kafka.requests import DeleteGroup, DescribeGroup, ReplyTo
from state.kafka.responses import DeleteGroupResponse, DescribedMember, DescribeGroupResponse

FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 6  # of DescribeGroups


def describe(context: StepContext, request: DescribeGroup, reply_to: ReplyTo) -> None:
    """Answer with the group as Kafka describes it. Protocol and members' metadata are shown only if the group
    is Stable.
    """
    if not context.has_group:
        context.reply(reply_to, DescribeGroupResponse, context.rule("V1"))
        return
    if isinstance(context.group, ConsumerGroup):
        return _describe_consumer_group(context, request, reply_to)
    group = context.classic
    stable = group.state is GroupState.STABLE
    row = context.rule("V2" if stable else "V3")
    members = [
        DescribedMember(
            member_id=m.member_id,
            group_instance_id=m.group_instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            member_metadata=m.metadata(group.protocol_name) if stable else b"",
            member_assignment=m.assignment,
        )
        for m in group.members.values()
    ]
    context.reply(
        reply_to,
        DescribeGroupResponse,
        row,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=members,
        pending_offsets=pending_offsets(group) if group.pending else UNSET,
    )


def _describe_consumer_group(context: StepContext, request: DescribeGroup, reply_to: ReplyTo) -> None:
    """Answer that no classic group has this id. As in Kafka, only a newer client gets an error."""
    if request.api_version < FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND:
        context.reply(reply_to, DescribeGroupResponse, context.rule("AD8"))
        return
    context.reply(
        reply_to,
        DescribeGroupResponse,
        context.rule("AD9"),
        ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {context.group_id} is not a classic group.",
    )


def delete_group(context: StepContext, _: DeleteGroup, reply_to: ReplyTo) -> None:
    """Delete an Empty group. Pending member ids do not prevent it."""
    row, error = _validate_delete(context)
    if error is ErrorCode.NONE:
        context.delete_group(row, "deleted by request")
    context.reply(reply_to, DeleteGroupResponse, row, error)


def _validate_delete(context: StepContext) -> Verdict:
    if not context.has_group:
        return context.rule("K1"), ErrorCode.GROUP_ID_NOT_FOUND
    if not context.group.is_empty:
        return context.rule("K2"), ErrorCode.NON_EMPTY_GROUP
    return context.rule("K3"), ErrorCode.NONE
