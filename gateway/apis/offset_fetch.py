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
from gateway.apis.topics import FIRST_VERSION_WITH_IDS, Codes, NamedTopic, ids_of, look_up
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
class _Part:
    """The part of a request about one group."""

    group_id: str
    topics: Sequence[Any] | None  # those the client may describe; None for all topics
    found: Sequence[NamedTopic] | None = None  # their metadata in the same order; None if no broker answers
    hidden: Sequence[Any] = ()  # requested topics that the client may not describe


async def serve(context: RequestContext, request: Any) -> Deferred:
    """Return the committed offsets of the groups. The coordinator gets one request for each group."""
    if context.version < _FIRST_VERSION_WITH_GROUPS:
        return Deferred(
            await _start(context, request.require_stable, request),
            partial(_single_group_fields, context.version, request),
        )
    if len(request.groups) == 1:
        (wanted,) = request.groups
        started = await _start(context, request.require_stable, wanted)
        return Deferred(started, lambda fetched: {"groups": [_with_group_id(wanted, fetched)]})
    fetch = partial(_fetch, context, request.require_stable)
    fetched = asyncio.create_task(map_items(context, fetch, request.groups, _too_many_groups))
    return Deferred(fetched, lambda fetched: {"groups": fetched}, holds_back=True)


def _too_many_groups(wanted: Any) -> Fields:
    return _with_group_id(wanted, _group_error(ErrorCode.INVALID_REQUEST))


def _single_group_fields(version: int, request: Any, fetched: Fields) -> Fields:
    # Version 1 has no error of the whole response.
    if version < _FIRST_VERSION_WITH_ERROR and fetched["error_code"] is not ErrorCode.NONE:
        return {"topics": _all_with_error(request.topics, fetched["error_code"])}
    return fetched


def _with_group_id(wanted: Any, fetched: Fields) -> Fields:
    return {"group_id": wanted.group_id, **fetched}


async def _fetch(context: RequestContext, require_stable: bool, wanted: Any) -> Fields:
    return _with_group_id(wanted, await (await _start(context, require_stable, wanted)))


async def _start(context: RequestContext, require_stable: bool, wanted: Any) -> asyncio.Future[Fields]:
    """Request the committed offsets of one group.

    `wanted` is the client's request, or its part for this group. The coordinator's request is sent before
    this returns.
    """
    if not may_describe_group(context, wanted.group_id):
        return _completed_future(_group_error(GatewayError.GROUP_AUTHORIZATION_FAILED))
    part, slices = _Part(wanted.group_id, None), context.slices()
    if wanted.topics is not None:
        by_id = context.version >= FIRST_VERSION_WITH_IDS
        found = await look_up(context, wanted.topics, Operation.DESCRIBE, by_id=by_id)
        if found is None and by_id:
            return _completed_future(_group_error(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        part = await _visible_part(context, slices, wanted, found)
    has_member = context.version >= _FIRST_VERSION_WITH_MEMBERS
    fetch = OffsetFetch(
        **context.coordinator_header(part.group_id),
        topics=await _partitions_to_fetch(slices, part),
        require_stable=require_stable,
        member_id=wanted.member_id if has_member else None,
        member_epoch=wanted.member_epoch if has_member else NO_MEMBER_EPOCH,
    )
    response = context.send(fetch)
    return asyncio.create_task(_fetched(context, slices, part, response))


def _completed_future(fetched: Fields) -> asyncio.Future[Fields]:
    completed: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
    completed.set_result(fetched)
    return completed


async def _visible_part(
    context: RequestContext, slices: Slices, wanted: Any, found: Sequence[NamedTopic] | None
) -> _Part:
    """Separate the topics that the client may describe from the others.

    An id without a topic has no name to check.
    """
    known = found or await slices.each(lambda topic: NamedTopic(topic.name, None, None), wanted.topics)
    shown = await slices.each(partial(_is_shown, context), known)
    return _Part(
        wanted.group_id,
        list(compress(wanted.topics, shown)),
        None if found is None else list(compress(found, shown)),
        [topic for topic, is_shown in zip(wanted.topics, shown, strict=True) if not is_shown],
    )


def _is_shown(context: RequestContext, named: NamedTopic) -> bool:
    name = named.name if named.topic is None else named.topic.name
    return not name or may_describe_topic(context, name)


async def _fetched(
    context: RequestContext,
    slices: Slices,
    part: _Part,
    response: asyncio.Future[OffsetFetchResponse],
) -> Fields:
    by_id = context.version >= FIRST_VERSION_WITH_IDS
    answer = await response
    if answer.error_code is not ErrorCode.NONE:
        return _group_error(answer.error_code)
    if part.topics is None:
        shown = [topic for topic in answer.topics if may_describe_topic(context, topic.name)]
        return await _all_offsets(context, slices, shown, by_id=by_id)
    if by_id and part.found is not None:
        fetched = await _in_requested_order(slices, part.topics, part.found, answer.topics)
    else:
        fetched = [await _topic_fields(slices, topic) for topic in answer.topics]
    fetched += _all_with_error(part.hidden, GatewayError.TOPIC_AUTHORIZATION_FAILED, by_id=by_id)
    return {"error_code": ErrorCode.NONE, "topics": fetched}


async def _all_offsets(
    context: RequestContext, slices: Slices, topics: Sequence[FetchedTopic], *, by_id: bool
) -> dict[str, Any]:
    """Return all offsets of the group, except those of topics recreated since the commit."""
    try:
        ids = await ids_of(context, (topic.name for topic in topics))
    except UpstreamLost:
        if by_id:
            return _group_error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        ids = {}
    present = [_of_id(topic, ids.get(topic.name)) for topic in topics]
    if by_id:
        existing = [topic for topic in present if topic.name in ids]  # a deleted topic has no id
        fetched = [{**await _topic_fields(slices, topic), "topic_id": ids[topic.name]} for topic in existing]
    else:
        fetched = [await _topic_fields(slices, topic) for topic in present]
    return {"error_code": ErrorCode.NONE, "topics": [topic for topic in fetched if topic["partitions"]]}


def _of_id(topic: FetchedTopic, topic_id: UUID | None) -> FetchedTopic:
    """Return the topic with only the partitions whose offset may belong to `topic_id`. None matches
    any id.
    """
    partitions = [p for p in topic.partitions if topic_id is None or p.topic_id in (None, topic_id)]
    return FetchedTopic(topic.name, partitions)


async def _partitions_to_fetch(slices: Slices, part: _Part) -> list[TopicPartitions] | None:
    """Return the partitions to request from the coordinator, or None for all.

    Ids without a topic are skipped.
    """
    if part.topics is None:
        return None
    if part.found is None:
        return await slices.each(
            lambda topic: TopicPartitions(topic.name, topic.partition_indexes), part.topics
        )
    wanted = []
    for known, topic in zip(part.found, part.topics, strict=True):
        if known.topic is not None:
            topic_id = known.topic.topic_id
            wanted.append(TopicPartitions(known.topic.name, topic.partition_indexes, topic_id))
        elif known.name:
            wanted.append(TopicPartitions(known.name, topic.partition_indexes))
        await slices.pause()
    return wanted


async def _in_requested_order(
    slices: Slices, wanted: Sequence[Any], found: Sequence[NamedTopic], fetched: Sequence[FetchedTopic]
) -> list[dict[str, Any]]:
    """Return the topics in the request's order, with its ids. Unknown partitions have an error."""
    answers = iter(fetched)
    topics = []
    for known, topic in zip(found, wanted, strict=True):
        if known.topic is None:
            partitions = await slices.each(partial(_no_offset, known.missing_error), topic.partition_indexes)
        else:
            partitions = await slices.each(asdict, next(answers).partitions)
        topics.append({"topic_id": known.topic_id, "partitions": partitions})
    return topics


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
    lost = error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    # Clients of OffsetFetch do not expect COORDINATOR_NOT_AVAILABLE, and every client retries after
    # COORDINATOR_LOAD_IN_PROGRESS. After NOT_COORDINATOR librdkafka finds the coordinator but never repeats
    # the request (`rd_kafka_assignment_apply_offsets`), so it would not consume its new assignment.
    code = GatewayError.COORDINATOR_LOAD_IN_PROGRESS if lost else error
    return {"error_code": code, "topics": []}


def _all_with_error(topics: Sequence[Any], error: Codes, *, by_id: bool = False) -> list[dict[str, Any]]:
    return [
        {
            **({"topic_id": topic.topic_id} if by_id else {"name": topic.name}),
            "partitions": [_no_offset(error, index) for index in topic.partition_indexes],
        }
        for topic in topics
    ]


API = Api(key=ApiKey.OffsetFetch, serve=serve)
