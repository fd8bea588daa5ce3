"""DescribeGroups (key 15). The coordinator gets one request for each group."""

from functools import partial
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.batch import together
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.guards import group_operations, may_describe_group
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.contract.kafka.responses import DescribedMember, DescribeGroupResponse

_FIRST_VERSION_WITH_NOT_FOUND = 6  # KIP-1043
_DEAD = "Dead"


async def serve(context: RequestContext, request: Any) -> Deferred:
    """Return the states and members of the groups."""
    describe = partial(_describe, context, with_operations=request.include_authorized_operations)
    return together(context, describe, request.groups, lambda groups: {"groups": groups})


def _describe(context: RequestContext, group_id: str, *, with_operations: bool) -> Fields | Deferred:
    if not may_describe_group(context, group_id):
        return {"error_code": GatewayError.GROUP_AUTHORIZATION_FAILED, "group_id": group_id}
    response = context.send(DescribeGroup(**context.to_group(group_id)), ANSWER_TIMEOUT_MS)
    return Deferred(response, partial(_shown, context, with_operations=with_operations))


def _shown(context: RequestContext, answer: DescribeGroupResponse, *, with_operations: bool) -> Fields:
    described = _described(context.version, answer)
    if not with_operations or described["error_code"]:
        return described
    return {**described, "authorized_operations": group_operations(context, answer.group_id)}


def _described(version: int, answer: DescribeGroupResponse) -> Fields:
    described = {
        "error_code": answer.error_code,
        "group_id": answer.group_id,
        "group_state": answer.group_state,
        "protocol_type": answer.protocol_type,
        "protocol_data": answer.protocol_data,
        "members": [_member(member) for member in answer.members],
    }
    if answer.error_message:  # it is a group of the consumer protocol (row AD9)
        return {**described, "error_message": answer.error_message}
    if answer.error_code is not ErrorCode.NONE:
        return {**described, "group_state": ""}
    if answer.group_state == _DEAD and version >= _FIRST_VERSION_WITH_NOT_FOUND:
        not_found = {
            "error_code": ErrorCode.GROUP_ID_NOT_FOUND,
            "error_message": f"Group {answer.group_id} not found.",
        }
        return {**described, **not_found}
    return described


def _member(member: DescribedMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.member_metadata,
        "member_assignment": member.member_assignment,
    }


API = Api(key=ApiKey.DescribeGroups, serve=serve)
