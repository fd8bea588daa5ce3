"""LeaveGroup (key 13): one member up to version 2, any number from version 3 on (KIP-345)."""

from functools import partial
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.guards import GROUP_REFUSED, may_read_group
from gateway.wire.codec import Fields
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import LeaveGroup, LeavingMember
from kafka_why.contract.kafka.responses import LeaveGroupResponse

_FIRST_VERSION_WITH_MEMBERS = 3


def serve(context: RequestContext, request: Any) -> Fields | Deferred:
    """Remove members from the group."""
    if not may_read_group(context, request.group_id):
        return GROUP_REFUSED
    response = context.send(
        LeaveGroup(**context.to_group(request.group_id), members=_members(context, request))
    )
    return Deferred(response, partial(_fields, context.version))


def _fields(version: int, answer: LeaveGroupResponse) -> Fields:
    if version < _FIRST_VERSION_WITH_MEMBERS:
        return {"error_code": _only_error(answer)}
    return {
        "error_code": answer.error_code,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "error_code": member.error_code,
            }
            for member in answer.members
        ],
    }


def _members(context: RequestContext, request: Any) -> list[LeavingMember]:
    if context.version < _FIRST_VERSION_WITH_MEMBERS:
        return [LeavingMember(request.member_id)]
    return [LeavingMember(m.member_id, m.group_instance_id, m.reason) for m in request.members]


def _only_error(answer: LeaveGroupResponse) -> ErrorCode:
    if answer.error_code is not ErrorCode.NONE or not answer.members:
        return answer.error_code
    return answer.members[0].error_code


API = Api(key=ApiKey.LeaveGroup, serve_at_once=serve)
