"""OffsetDelete (key 47, KIP-496). The gateway refuses unknown partitions. The coordinator gets the request
even if no partition is left, because an unknown group takes precedence over unknown partitions.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.guards import GROUP_REFUSED, may_delete_group, may_read_topic
from gateway.apis.slices import Slices
from gateway.apis.topics import NamedTopic, Outcomes, look_up
from gateway.authorization.acls import Operation
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import OffsetDelete, TopicPartitions
from kafka_why.contract.kafka.responses import OffsetDeleteResponse

_PARTITION_INDEX = attrgetter("partition_index")


async def serve(context: RequestContext, request: Any) -> Fields | Deferred:
    """Delete the offsets of the existing partitions."""
    if not may_delete_group(context, request.group_id):
        return GROUP_REFUSED
    topics = await look_up(context, request.topics, Operation.READ, by_id=False)
    if topics is None:
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    slices, outcomes = context.slices(), Outcomes()
    valid: list[tuple[NamedTopic, list[int]]] = []
    for named, topic in zip(topics, request.topics, strict=True):
        indexes = await slices.each(_PARTITION_INDEX, topic.partitions)
        if not may_read_topic(context, named.name):
            outcomes.add_all(named, indexes, GatewayError.TOPIC_AUTHORIZATION_FAILED)
            continue
        there = [index for index in indexes if named.has(index)]
        if len(there) < len(indexes):
            outcomes.add_all(named, (index for index in indexes if not named.has(index)), named.missing)
        if there:
            valid.append((named, there))
    response = context.send(
        OffsetDelete(
            **context.to_group(request.group_id),
            topics=[TopicPartitions(named.name, indexes) for named, indexes in valid],
        ),
        ANSWER_TIMEOUT_MS,
    )
    return Deferred(
        asyncio.create_task(_merged(slices, valid, outcomes, response)), partial(_fields, outcomes)
    )


async def _merged(
    slices: Slices,
    valid: Sequence[tuple[NamedTopic, list[int]]],
    outcomes: Outcomes,
    response: Awaitable[OffsetDeleteResponse],
) -> OffsetDeleteResponse:
    answer = await response
    if answer.error_code is ErrorCode.NONE:
        decided = ((named, topic.partitions) for (named, _), topic in zip(valid, answer.topics, strict=True))
        await slices.run(outcomes.merge(decided))
    return answer


def _fields(outcomes: Outcomes, answer: OffsetDeleteResponse) -> Fields:
    if answer.error_code is not ErrorCode.NONE:
        return {"error_code": answer.error_code}
    return {"error_code": ErrorCode.NONE, "topics": outcomes.fields()}


API = Api(key=ApiKey.OffsetDelete, serve=serve)
