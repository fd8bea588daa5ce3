"""OffsetFetch (key 9): one group up to version 7, several from 8 on (KIP-709), topic ids from 10 on.

With `require_stable` (from version 7 on, KIP-447) a partition with an offset that is pending in a transaction
has UNSTABLE_OFFSET_COMMIT. Only groups of KIP-848 use the member id and epoch of version 9 and later.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any
from uuid import UUID

from kafka.protocol.api_key import ApiKey
from msgspec.structs import asdict

from gateway.apis.api import Api, may_describe_group, may_describe_topic
from gateway.apis.batch import map_items
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.slices import Slices
from gateway.apis.topics import FIRST_VERSION_WITH_IDS, Codes, RequestedTopic, ids_of, look_up
from gateway.authorization.acls import Operation
from gateway.upstream.connections import UpstreamLost
from gateway.wire.codec import Fields, GatewayError
from kafka_why.contract.kafka.requests import OffsetFetch, TopicPartitions
from kafka_why.contract.kafka.responses import FetchedTopic, OffsetFetchResponse
from kafka_why.contract.messages import ErrorCode

_FIRST_VERSION_WITH_ERROR = 2
_FIRST_VERSION_WITH_GROUPS = 8
_FIRST_VERSION_WITH_MEMBERS = 9
NO_MEMBER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class _GroupPart:
    """The part of a request about one group."""

    group_id: str
    # The requested topics that the client may describe, or None if all topics are requested.
    topics: Sequence[Any] | None
    # `topics` with their metadata, in the same order, or None if no broker answers.
    looked_up: Sequence[RequestedTopic] | None = None
    # The requested topics that the client may not describe.
    hidden: Sequence[Any] = ()


async def serve(context: RequestContext, request: Any) -> Deferred:
    """Return the committed offsets of the groups. The coordinator gets one request for each group."""
    if context.version < _FIRST_VERSION_WITH_GROUPS:
        return Deferred(
            await _start_fetch(context, request.require_stable, request),
            partial(_single_group_fields, context.version, request),
        )
    if len(request.groups) == 1:
        (group_request,) = request.groups
        fetching = await _start_fetch(context, request.require_stable, group_request)
        return Deferred(fetching, lambda fetched: {"groups": [_with_group_id(group_request, fetched)]})
    fetch = partial(_fetch, context, request.require_stable)
    fetching_all = asyncio.create_task(map_items(context, fetch, request.groups, _too_many_groups))
    # It is not done when all requests to the coordinator are sent, so the connection's next request waits.
    return Deferred(fetching_all, lambda groups: {"groups": groups}, holds_back=True)


def _too_many_groups(group_request: Any) -> Fields:
    return _with_group_id(group_request, _group_error(ErrorCode.INVALID_REQUEST))


def _single_group_fields(version: int, request: Any, fetched: Fields) -> Fields:
    # Version 1 has no error of the whole response.
    if version < _FIRST_VERSION_WITH_ERROR and fetched["error_code"] is not ErrorCode.NONE:
        return {"topics": _all_with_error(request.topics, fetched["error_code"])}
    return fetched


def _with_group_id(group_request: Any, fetched: Fields) -> Fields:
    return {"group_id": group_request.group_id, **fetched}


async def _fetch(context: RequestContext, require_stable: bool, group_request: Any) -> Fields:
    fetching = await _start_fetch(context, require_stable, group_request)
    return _with_group_id(group_request, await fetching)


async def _start_fetch(
    context: RequestContext, require_stable: bool, group_request: Any
) -> asyncio.Future[Fields]:
    """Request the committed offsets of one group, and return the future of the response's part about it.

    `group_request` is the client's request, or its part for this group. The coordinator's request is sent
    before this returns.
    """
    if not may_describe_group(context, group_request.group_id):
        return _completed_future(_group_error(GatewayError.GROUP_AUTHORIZATION_FAILED))
    part, slices = _GroupPart(group_request.group_id, topics=None), context.slices()
    if group_request.topics is not None:
        by_id = context.version >= FIRST_VERSION_WITH_IDS
        looked_up = await look_up(context, group_request.topics, Operation.DESCRIBE, by_id=by_id)
        if looked_up is None and by_id:  # the coordinator needs the names
            return _completed_future(_group_error(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        part = await _visible_part(context, slices, group_request, looked_up)
    has_member = context.version >= _FIRST_VERSION_WITH_MEMBERS
    fetch = OffsetFetch(
        **context.coordinator_header(part.group_id),
        topics=await _partitions_to_fetch(slices, part),
        require_stable=require_stable,
        member_id=group_request.member_id if has_member else None,
        member_epoch=group_request.member_epoch if has_member else NO_MEMBER_EPOCH,
    )
    response = context.send(fetch)
    return asyncio.create_task(_fetched_fields(context, slices, part, response))


def _completed_future(fetched: Fields) -> asyncio.Future[Fields]:
    completed: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
    completed.set_result(fetched)
    return completed


async def _visible_part(
    context: RequestContext, slices: Slices, group_request: Any, looked_up: Sequence[RequestedTopic] | None
) -> _GroupPart:
    """Separate the topics that the client may describe from the others.

    An id without a topic has no name to check, so it is not hidden.
    """
    requested = looked_up or await slices.each(
        lambda topic: RequestedTopic(topic.name, topic_id=None, topic=None), group_request.topics
    )
    visible = await slices.each(partial(_is_visible, context), requested)
    return _GroupPart(
        group_request.group_id,
        topics=list(compress(group_request.topics, visible)),
        looked_up=None if looked_up is None else list(compress(looked_up, visible)),
        hidden=[
            topic for topic, is_visible in zip(group_request.topics, visible, strict=True) if not is_visible
        ],
    )


def _is_visible(context: RequestContext, requested: RequestedTopic) -> bool:
    name = requested.name if requested.topic is None else requested.topic.name
    return not name or may_describe_topic(context, name)


async def _fetched_fields(
    context: RequestContext,
    slices: Slices,
    part: _GroupPart,
    response: asyncio.Future[OffsetFetchResponse],
) -> Fields:
    """Wait for the coordinator's answer, and return the response's part about the group."""
    by_id = context.version >= FIRST_VERSION_WITH_IDS
    answer = await response
    if answer.error_code is not ErrorCode.NONE:
        return _group_error(answer.error_code)
    if part.topics is None:
        visible = [topic for topic in answer.topics if may_describe_topic(context, topic.name)]
        return await _all_offsets(context, slices, visible, by_id=by_id)
    if by_id and part.looked_up is not None:
        fetched = await _in_requested_order(slices, part.topics, part.looked_up, answer.topics)
    else:
        fetched = [await _topic_fields(slices, topic) for topic in answer.topics]
    fetched += _all_with_error(part.hidden, GatewayError.TOPIC_AUTHORIZATION_FAILED, by_id=by_id)
    return {"error_code": ErrorCode.NONE, "topics": fetched}


async def _all_offsets(
    context: RequestContext, slices: Slices, topics: Sequence[FetchedTopic], *, by_id: bool
) -> dict[str, Any]:
    """Return the response's part about a group if all its offsets are requested.

    `topics` has those that the client may describe. Offsets of topics recreated since the commit are left
    out.
    """
    try:
        ids = await ids_of(context, (topic.name for topic in topics))
    except UpstreamLost:
        if by_id:
            return _group_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        ids = {}
    current = [_without_other_ids(topic, ids.get(topic.name)) for topic in topics]
    if by_id:
        existing = [topic for topic in current if topic.name in ids]  # a deleted topic has no id
        fetched = [{**await _topic_fields(slices, topic), "topic_id": ids[topic.name]} for topic in existing]
    else:
        fetched = [await _topic_fields(slices, topic) for topic in current]
    return {"error_code": ErrorCode.NONE, "topics": [topic for topic in fetched if topic["partitions"]]}


def _without_other_ids(topic: FetchedTopic, topic_id: UUID | None) -> FetchedTopic:
    """Return the topic without the offsets that were committed for another topic id, which means for an
    earlier topic of the same name. Without `topic_id`, or without the id of an offset, the offset remains.
    """
    partitions = [p for p in topic.partitions if topic_id is None or p.topic_id in (None, topic_id)]
    return FetchedTopic(topic.name, partitions)


async def _partitions_to_fetch(slices: Slices, part: _GroupPart) -> list[TopicPartitions] | None:
    """Return the partitions to request from the coordinator, or None for all.

    Ids without a topic are skipped.
    """
    if part.topics is None:
        return None
    if part.looked_up is None:
        return await slices.each(
            lambda topic: TopicPartitions(topic.name, topic.partition_indexes), part.topics
        )
    to_fetch = []
    for looked_up, topic in zip(part.looked_up, part.topics, strict=True):
        if looked_up.topic is not None:
            topic_id = looked_up.topic.topic_id
            to_fetch.append(TopicPartitions(looked_up.topic.name, topic.partition_indexes, topic_id))
        elif looked_up.name:
            to_fetch.append(TopicPartitions(looked_up.name, topic.partition_indexes))
        await slices.pause()
    return to_fetch


async def _in_requested_order(
    slices: Slices,
    topics: Sequence[Any],
    looked_up: Sequence[RequestedTopic],
    fetched: Sequence[FetchedTopic],
) -> list[dict[str, Any]]:
    """Return the topics in the request's order, with the request's ids.

    `fetched` has those of `looked_up` that exist, in the same order. The partitions of other topics have an
    error.
    """
    remaining_fetched = iter(fetched)
    entries = []
    for requested, topic in zip(looked_up, topics, strict=True):
        if requested.topic is None:
            no_offset = partial(_no_offset, requested.missing_error)
            partitions = await slices.each(no_offset, topic.partition_indexes)
        else:
            partitions = await slices.each(asdict, next(remaining_fetched).partitions)
        entries.append({"topic_id": requested.topic_id, "partitions": partitions})
    return entries


async def _topic_fields(slices: Slices, topic: FetchedTopic) -> dict[str, Any]:
    return {"name": topic.name, "partitions": await slices.each(asdict, topic.partitions)}


def _no_offset(error: Codes, partition: int) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error,
    }


def _group_error(error: Codes) -> dict[str, Any]:
    """Return the response about a group with an error."""
    # Clients of OffsetFetch do not expect COORDINATOR_NOT_AVAILABLE, and every client retries after
    # COORDINATOR_LOAD_IN_PROGRESS. After NOT_COORDINATOR librdkafka finds the coordinator but never repeats
    # the request (`rd_kafka_assignment_apply_offsets`), so it would not consume its new assignment.
    if error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        error = GatewayError.COORDINATOR_LOAD_IN_PROGRESS
    return {"error_code": error, "topics": []}


def _all_with_error(topics: Sequence[Any], error: Codes, *, by_id: bool = False) -> list[dict[str, Any]]:
    return [
        {
            **({"topic_id": topic.topic_id} if by_id else {"name": topic.name}),
            "partitions": [_no_offset(error, index) for index in topic.partition_indexes],
        }
        for topic in topics
    ]


API = Api(key=ApiKey.OffsetFetch, serve=serve)
