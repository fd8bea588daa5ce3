"""Requests of other protocols to a share group. Rows SD8, SD9, SO21, SO22.

Source: GroupMetadataManager (classicGroupJoin, classicGroupSync, classicGroupHeartbeat, classicGroupLeave),
OffsetMetadataManager.validateOffsetCommit.
"""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import (
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    ReplyTo,
    SyncGroup,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    LeftMember,
    OffsetDeleteResponse,
    SyncGroupResponse,
)
from state.kafka.context import StepContext, Verdict
from state.kafka.offsets import fetch


def join(context: StepContext, _: JoinGroup, reply_to: ReplyTo) -> None:
    """A share group never becomes a group of another protocol, not even an Empty one."""
    error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    context.reply(reply_to, JoinGroupResponse, context.rule("SD8"), error)


def sync(context: StepContext, _: SyncGroup, reply_to: ReplyTo) -> None:
    context.reply(reply_to, SyncGroupResponse, context.rule("SD9"), ErrorCode.UNKNOWN_MEMBER_ID)


def heartbeat(context: StepContext, _: Heartbeat, reply_to: ReplyTo) -> None:
    context.reply(reply_to, HeartbeatResponse, context.rule("SD9"), ErrorCode.UNKNOWN_MEMBER_ID)


def leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    error = ErrorCode.UNKNOWN_MEMBER_ID
    members = [LeftMember(member.member_id, member.group_instance_id, error) for member in request.members]
    context.reply(reply_to, LeaveGroupResponse, context.rule("SD9"), members=members)


def check_commit(context: StepContext, request: OffsetCommit | TxnOffsetCommit) -> Verdict:
    """A share group has no committed offsets, whoever commits."""
    return context.rule("SO21"), ErrorCode.GROUP_ID_NOT_FOUND


def delete_offsets(context: StepContext, _: OffsetDelete, reply_to: ReplyTo) -> None:
    context.reply(reply_to, OffsetDeleteResponse, context.rule("SO21"), ErrorCode.GROUP_ID_NOT_FOUND)


def fetch_offsets(context: StepContext, request: OffsetFetch, reply_to: ReplyTo) -> None:
    """A share group has no committed offsets, which is no error."""
    fetch.answer(context, request, reply_to, {}, {}, context.rule("SO22"))
