"""Kafka's protocols, by the type of their groups."""

from collections.abc import Mapping
from typing import Any

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import (
    DeleteGroup,
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OversizedRequest,
    ReplyTo,
    SyncGroup,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import (
    DeleteGroupResponse,
    DescribeGroupResponse,
    HeartbeatResponse,
    LeaveGroupResponse,
    LeftMember,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    SyncGroupResponse,
    TxnOffsetCommitResponse,
)
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from state.config import CoordinatorConfig
from state.kafka.classic import sync as classic_sync
from state.kafka.classic.join import join_no_group
from state.kafka.classic.protocol import CLASSIC
from state.kafka.classic.sync import oversized_no_group
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer.protocol import CONSUMER
from state.kafka.context import StepContext, deciding
from state.kafka.effects import KafkaGroup
from state.kafka.offsets import fetch
from state.kafka.offsets.transactions import FIRST_VERSION_WITH_ERRORS_OF_GROUPS
from state.kafka.protocol import KafkaProtocol
from state.kafka.settings import KEPT_SETTINGS, SettingBounds
from state.kafka.share.protocol import SHARE
from state.protocol import Handler

# A group id that has no group. Rows J4, J5, J9, S1, H1, L1, O1, O2, TO2, TO3, Q1, D1, V1, K1.
#
# The classic protocol's requests are answered here, and those that are the same in every protocol. Other
# protocols' own requests are among their `without_own_group`.


FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 9  # of OffsetCommit (KIP-848)


def sync(context: StepContext, request: SyncGroup, reply_to: ReplyTo) -> None:
    refusal = classic_sync.validate_request(context, request)
    refusal = refusal or (context.rule("S1"), ErrorCode.UNKNOWN_MEMBER_ID)
    context.reply(reply_to, SyncGroupResponse, *refusal)


def heartbeat(context: StepContext, _: Heartbeat, reply_to: ReplyTo) -> None:
    context.reply(reply_to, HeartbeatResponse, context.rule("H1"), ErrorCode.UNKNOWN_MEMBER_ID)


def leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    error = ErrorCode.UNKNOWN_MEMBER_ID
    verdicts = [(context.rule("L1"), error) for _ in request.members]
    members = [LeftMember(leaving.member_id, leaving.group_instance_id, error) for leaving in request.members]
    context.reply(reply_to, LeaveGroupResponse, deciding(verdicts), members=members)


def commit(context: StepContext, request: OffsetCommit, reply_to: ReplyTo) -> None:
    """A commit by no member creates a group without members, which is a classic one."""
    if request.generation_id >= 0:
        knows_error = request.api_version >= FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND
        error = ErrorCode.GROUP_ID_NOT_FOUND if knows_error else ErrorCode.ILLEGAL_GENERATION
        context.reply(reply_to, OffsetCommitResponse, context.rule("O1"), error)
        return
    reason = "first OffsetCommit for this group id, by no member"
    context.create_group(ClassicGroup, context.rule("O2"), reason)
    CLASSIC.commit(context, request, reply_to)


def txn_commit(context: StepContext, request: TxnOffsetCommit, reply_to: ReplyTo) -> None:
    """As `commit`, in a transaction."""
    if request.generation_id >= 0:
        knows_error = request.api_version >= FIRST_VERSION_WITH_ERRORS_OF_GROUPS
        error = ErrorCode.GROUP_ID_NOT_FOUND if knows_error else ErrorCode.ILLEGAL_GENERATION
        context.reply(reply_to, TxnOffsetCommitResponse, context.rule("TO2"), error)
        return
    reason = "first TxnOffsetCommit for this group id, by no member"
    context.create_group(ClassicGroup, context.rule("TO3"), reason)
    CLASSIC.txn_commit(context, request, reply_to)


def fetch_offsets(context: StepContext, request: OffsetFetch, reply_to: ReplyTo) -> None:
    """A missing group is not an error, and has no offsets. No group is created."""
    fetch.answer(context, request, reply_to, {}, {}, context.rule("Q1"))


def delete_offsets(context: StepContext, _: OffsetDelete, reply_to: ReplyTo) -> None:
    context.reply(reply_to, OffsetDeleteResponse, context.rule("D1"), ErrorCode.GROUP_ID_NOT_FOUND)


def describe(context: StepContext, _: DescribeGroup, reply_to: ReplyTo) -> None:
    context.reply(reply_to, DescribeGroupResponse, context.rule("V1"))


def delete(context: StepContext, _: DeleteGroup, reply_to: ReplyTo) -> None:
    context.reply(reply_to, DeleteGroupResponse, context.rule("K1"), ErrorCode.GROUP_ID_NOT_FOUND)


HANDLERS_WITHOUT_GROUP: Mapping[type, Handler] = {
    JoinGroup: join_no_group,
    SyncGroup: sync,
    OversizedRequest: oversized_no_group,
    Heartbeat: heartbeat,
    LeaveGroup: leave,
    OffsetCommit: commit,
    TxnOffsetCommit: txn_commit,
    OffsetFetch: fetch_offsets,
    OffsetDelete: delete_offsets,
    DescribeGroup: describe,
    DeleteGroup: delete,
}


PROTOCOLS: tuple[KafkaProtocol[Any], ...] = (CLASSIC, CONSUMER, SHARE)

SETTINGS = sorted(
    (setting for protocol in PROTOCOLS for setting in protocol.settings), key=lambda setting: setting.name
)
"""The settings of groups that have an effect, by name."""
GROUP_CONFIG_NAMES = sorted([s.name for s in SETTINGS] + [s.name for s in KEPT_SETTINGS])
"""All settings that a group can have."""

_OF_GROUP: dict[type, KafkaProtocol[Any]] = {protocol.group_class: protocol for protocol in PROTOCOLS}


def protocol_of(group: KafkaGroup) -> KafkaProtocol[Any]:
    """Return the protocol of the group."""
    return _OF_GROUP[type(group)]


def view_of(group: KafkaGroup) -> GroupSnapshot:
    """Return a copy of the group for readers."""
    return protocol_of(group).view(group)


def bounds_of(config: CoordinatorConfig) -> dict[str, SettingBounds]:
    """Return what the coordinator has for each setting of a group, by Kafka's name of the group's setting."""
    return {setting.name: setting.bounds(config) for setting in SETTINGS}


def handlers() -> dict[type, Mapping[type, Handler]]:
    """Return all handlers by the type of the group (the type of None without a group), and then by the
    type of the request.
    """
    without_own_group = {
        request: h for protocol in PROTOCOLS for request, h in protocol.without_own_group.items()
    }
    tables = {protocol.group_class: without_own_group | protocol.all_handlers() for protocol in PROTOCOLS}
    return {type(None): {**without_own_group, **HANDLERS_WITHOUT_GROUP}, **tables}
