"""OffsetCommit (key 8). The gateway refuses unknown partitions, the coordinator decides about the rest."""

import asyncio
from asyncio import Future
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.committed import Valid, refused, refused_at_once
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.guards import may_read_group
from gateway.apis.slices import at_once
from gateway.apis.topics import FIRST_VERSION_WITH_IDS, look_up, look_up_at_once
from gateway.authorization.acls import Operation
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import OffsetCommit
from kafka_why.contract.kafka.responses import OffsetCommitResponse


async def serve(context: RequestContext, request: Any) -> Fields | Deferred:
    """Commit the offsets of the existing partitions."""
    by_id = _is_by_id(context)
    if not may_read_group(context, request.group_id):
        return await refused(context, request, GatewayError.GROUP_AUTHORIZATION_FAILED, by_id=by_id)
    topics = await look_up(context, request.topics, Operation.READ, by_id=by_id)
    if topics is None:
        return await refused(context, request, ErrorCode.COORDINATOR_NOT_AVAILABLE, by_id=by_id)
    slices, valid = context.slices(), Valid()
    await slices.run(valid.sort(context, request, topics))
    if not valid.topics:
        return {"topics": valid.outcomes.fields()}
    await slices.run(valid.encode())
    merged = valid.merged(slices, _commit(context, request, valid))
    return Deferred(asyncio.create_task(merged), valid.all_fields)


def serve_at_once(context: RequestContext, request: Any) -> Fields | Deferred | None:
    """As `serve` for a small request, None if topics have to be looked up at a broker."""
    by_id = _is_by_id(context)
    if not may_read_group(context, request.group_id):
        return refused_at_once(request, GatewayError.GROUP_AUTHORIZATION_FAILED, by_id=by_id)
    topics = look_up_at_once(context, request.topics, Operation.READ, by_id=by_id)
    if topics is None:
        return None
    valid = Valid()
    at_once(valid.sort(context, request, topics))
    if not valid.topics:
        return {"topics": valid.outcomes.fields()}
    at_once(valid.encode())
    return Deferred(_commit(context, request, valid), valid.fields)


def _is_by_id(context: RequestContext) -> bool:
    return context.version >= FIRST_VERSION_WITH_IDS


def _commit(context: RequestContext, request: Any, valid: Valid) -> Future[OffsetCommitResponse]:
    return context.send(
        OffsetCommit(
            **context.to_group(request.group_id),
            generation_id=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            retention_time_ms=request.retention_time_ms,
            topics=valid.committed,
        )
    )


def _error_code(answer: OffsetCommitResponse) -> int:
    """A refused commit has the same error for all partitions."""
    if not answer.error_code and answer.topics:
        return answer.topics[0].partitions[0].error_code
    return answer.error_code


API = Api(key=ApiKey.OffsetCommit, serve=serve, serve_at_once=serve_at_once, error_code=_error_code)
