"""An administrator's requests as most protocols answer them: DescribeGroups, which is for classic groups
(rows AD8, AD9), and DeleteGroups (rows K2, K3).

Source: GroupMetadataManager.describeGroups, ClassicGroup.validateDeleteGroup.
"""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import DeleteGroup, DescribeGroup, ReplyTo
from kafka_why.contract.kafka.responses import DeleteGroupResponse, DescribeGroupResponse
from state.kafka.context import StepContext

FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 6  # of DescribeGroups


def describe_as_not_classic(context: StepContext, request: DescribeGroup, reply_to: ReplyTo) -> None:
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
    if not context.group.is_empty:
        context.reply(reply_to, DeleteGroupResponse, context.rule("K2"), ErrorCode.NON_EMPTY_GROUP)
        return
    row = context.rule("K3")
    context.delete_group(row, "deleted by request")
    context.reply(reply_to, DeleteGroupResponse, row)
