"""Requests of share groups (KIP-932), and who answers them in each mode of `--share-groups`
(`gateway.upstream.share_groups.Coordinators`):

| request                                         | `coordinator`        | `brokers`               | `off`   |
|-------------------------------------------------|----------------------|-------------------------|---------|
| ShareGroupHeartbeat, ShareGroupDescribe         | our coordinator      | a broker                | refused |
| ShareFetch, ShareAcknowledge                    | the leader           | the leader              | refused |
| DescribeShareGroupOffsets                       | a broker (see below) | a broker                | refused |
| AlterShareGroupOffsets, DeleteShareGroupOffsets | our coordinator      | a broker                | refused |
| ListGroups, DeleteGroups                        | our coordinator      | both                    | ours    |
| FindCoordinator: the listener of                | any broker           | the group's coordinator | any     |

The gateway refuses a request as a broker does whose feature `share.version` is 0. While that feature of the
cluster's brokers is 0, every mode is `off`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

from kafka.protocol.api_key import ApiKey
from msgspec.structs import asdict

from clients.coordinator_client import Header
from gateway.apis import addresses, modern_groups, shares_at_brokers
from gateway.apis.api import (
    GROUP_REFUSED,
    Api,
    Passed,
    Screened,
    may_delete_group,
    may_describe_group,
    may_describe_topic,
    may_read_group,
    may_read_topic,
)
from gateway.apis.batch import map_items
from gateway.apis.context import Deferred, RequestContext, Services
from gateway.apis.modern_groups import OFF
from gateway.apis.shares_at_brokers import (
    CHANGE_REFUSED,
    are_at_brokers,
    denied_partitions,
    denied_topic,
    is_fetch_rewritten,
    rewrite_fetch,
    screen_session,
)
from gateway.apis.topics import images_of, is_too_much
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS, SHARE_STATE_TIMEOUT_MS
from gateway.wire import codec, offload
from gateway.wire.codec import Fields, GatewayError
from gateway.wire.framing import RequestHeader
from kafka_why.contract.kafka.responses import (
    AlteredShareTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
)
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    AlterSharePartition,
    AlterShareTopic,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
    TopicImages,
)
from kafka_why.contract.messages import ErrorCode, Request

# The offsets of share groups (KIP-932) of this project's coordinator.
#
# The coordinator answers AlterShareGroupOffsets (key 91) and DeleteShareGroupOffsets (92), which it parks
# until the share coordinator has executed them. They reach no broker: its own coordinator would create a
# group of the same id, and delete the state of this one.
#
# DescribeShareGroupOffsets (90) passes, because a broker answers it for any group if the request names
# partitions. If it names none, the gateway adds the partitions that the coordinator knows.


FILLED_MAX_PARTITIONS = 50_000
"""The maximum number of partitions that the gateway adds to one DescribeShareGroupOffsets."""

_TOO_MUCH = {
    "error_code": ErrorCode.INVALID_REQUEST,
    "error_message": "The request names more topics than one request to the coordinator can describe.",
}
_BEYOND = {
    "error_code": ErrorCode.INVALID_REQUEST,
    "error_message": "The groups of the request have more partitions than one response can have.",
}


async def _change(
    may: Callable[[RequestContext, str], bool],
    denied: Callable[[Any], Fields],
    build: Callable[[Header, Sequence[Any], TopicImages | None], Request[Any]],
    changed: Callable[[Any], Fields],
    context: RequestContext,
    request: Any,
) -> Fields | Deferred:
    """Rows SO9 and SO14: change the offsets of an Empty group in some topics.

    `may` returns True if the client may change the group. `build` returns the coordinator's request. `denied`
    returns the response's part for a topic that the client may not read, and `changed` the part for a topic
    of the coordinator's answer.
    """
    if not context.services.share_groups.are_ours:
        return OFF
    if not may(context, request.group_id):
        return CHANGE_REFUSED
    may_read = await context.slices().each(
        lambda topic: may_read_topic(context, topic.topic_name), request.topics
    )
    refused = [denied(topic) for topic, is_read in zip(request.topics, may_read, strict=True) if not is_read]
    topics = list(compress(request.topics, may_read))
    names = list(dict.fromkeys(topic.topic_name for topic in topics))
    images = None if is_too_much(names) else await images_of(context, names)
    if is_too_much(names) or is_too_much(images):
        return _TOO_MUCH
    response = context.send(
        build(context.coordinator_header(request.group_id), topics, images), SHARE_STATE_TIMEOUT_MS
    )
    return Deferred(response, partial(_change_fields, changed, refused), holds_back=True)


def _change_fields(changed: Callable[[Any], Fields], refused: list[Fields], answer: Any) -> Fields:
    return {
        "error_code": answer.error_code,
        "error_message": answer.error_message,
        "responses": [*map(changed, answer.responses), *refused],
    }


def _alteration(header: Header, topics: Sequence[Any], images: TopicImages | None) -> AlterShareGroupOffsets:
    altered = [
        AlterShareTopic(
            topic.topic_name,
            [AlterSharePartition(p.partition_index, p.start_offset) for p in topic.partitions],
        )
        for topic in topics
    ]
    return AlterShareGroupOffsets(**header, topics=altered, images=images)


def _altered(topic: AlteredShareTopic) -> Fields:
    partitions = [
        {"partition_index": p.partition, "error_code": p.error_code, "error_message": p.error_message}
        for p in topic.partitions
    ]
    return {**asdict(topic), "partitions": partitions}


def _deletion(header: Header, topics: Sequence[Any], images: TopicImages | None) -> DeleteShareGroupOffsets:
    names = [topic.topic_name for topic in topics]
    return DeleteShareGroupOffsets(**header, topics=names, images=images)


async def fill_in_partitions(context: RequestContext, message: bytes) -> Screened | None:
    """Add the known partitions to the groups for which a DescribeShareGroupOffsets names none (row SO3)."""
    if not context.services.share_groups.are_ours:
        return None
    request = await offload.decode_passed(context.header, message)
    without = [group for group in request.groups if group.topics is None]
    if not without:
        return None
    async with context.fan_out.acquired(context):
        known = _known_partitions(context)
        found = await map_items(context, known, without, lambda group: _error(group, _BEYOND))
    filled = {one["group_id"]: one for one in found if one.get("topics")}
    alone = [one for one in found if not one.get("topics")]
    request.groups = [g for g in request.groups if g.topics is not None or g.group_id in filled]
    if not request.groups:
        return Screened(None, {"groups": alone})
    remaining = await offload.run(_filled, context.header, message, request, filled)
    return Screened(remaining, {"groups": alone}, partial(_leave_out_denied, filled))


def _filled(header: RequestHeader, message: bytes, request: Any, filled: Mapping[str, Fields]) -> bytes:
    """Return the encoded request, with the partitions of `filled` added to its groups."""
    for group in request.groups:
        if group.topics is None:
            group.topics = []
            codec.extend(group, "topics", filled[group.group_id]["topics"])
    return codec.with_body(header, message, request)


def _known_partitions(context: RequestContext) -> Callable[[Any], Awaitable[Fields]]:
    """Return a function that queries the coordinator about a group.

    It returns the group's initialized partitions of topics that the client may describe, or the group's error
    for the response.
    """
    left = FILLED_MAX_PARTITIONS

    async def known(group: Any) -> Fields:
        nonlocal left
        if not may_describe_group(context, group.group_id):
            return _error(group, GROUP_REFUSED)
        if not group.group_id:
            return _error(group, {})  # no group has this id, which is not an error here (row SO5)
        query = DescribeShareGroupOffsets(**context.coordinator_header(group.group_id))
        answer = await context.send(query, ANSWER_TIMEOUT_MS)
        if answer.error_code:
            return _error(group, {"error_code": answer.error_code, "error_message": answer.error_message})
        topics = await context.slices().kept(
            lambda topic: may_describe_topic(context, topic.topic_name), answer.topics
        )
        left -= sum(len(topic.partitions) for topic in topics)
        if left < 0:
            return _error(group, _BEYOND)
        return {
            "group_id": group.group_id,
            "topics": [{"topic_name": t.topic_name, "partitions": t.partitions} for t in topics],
        }

    return known


def _error(group: Any, error: Fields) -> Fields:
    return {"group_id": group.group_id, **error}


async def _leave_out_denied(filled: Iterable[str], response: Any) -> None:
    """Remove topics that the client may not describe from groups for which it requested all topics."""
    for group in response.groups:
        if group.group_id in filled:
            group.topics = [
                topic
                for topic in group.topics
                if all(p.error_code != GatewayError.TOPIC_AUTHORIZATION_FAILED for p in topic.partitions)
            ]


ALTER_API = Api(
    key=ApiKey.AlterShareGroupOffsets,
    serve=partial(_change, may_read_group, denied_partitions, _alteration, _altered),
    parks=AlterShareGroupOffsetsResponse,
    is_passed=are_at_brokers,
)
DELETE_API = Api(
    key=ApiKey.DeleteShareGroupOffsets,
    serve=partial(_change, may_delete_group, denied_topic, _deletion, asdict),
    parks=DeleteShareGroupOffsetsResponse,
    is_passed=are_at_brokers,
)


def are_offered(services: Services) -> bool:
    """Return True if clients may use share groups, whoever coordinates them."""
    return not services.share_groups.are_off


async def _refuse(context: RequestContext, request: Any) -> Fields:
    return OFF


async def _refuse_offsets(context: RequestContext, request: Any) -> Fields:
    return {
        "groups": [
            {"group_id": group.group_id, "error_code": ErrorCode.UNSUPPORTED_VERSION}
            for group in request.groups
        ]
    }


APIS = (
    modern_groups.SHARE_GROUP_HEARTBEAT,
    modern_groups.SHARE_GROUP_DESCRIBE,
    Api(key=ApiKey.ShareFetch, serve=_refuse, asks_coordinator=False, is_passed=are_offered),
    Api(key=ApiKey.ShareAcknowledge, serve=_refuse, asks_coordinator=False, is_passed=are_offered),
    Api(
        key=ApiKey.DescribeShareGroupOffsets,
        serve=_refuse_offsets,
        asks_coordinator=False,
        is_passed=are_offered,
    ),
    ALTER_API,
    DELETE_API,
)

ROWS = (
    *shares_at_brokers.ROWS,
    Passed(
        key=ApiKey.ShareFetch,
        screen=screen_session,
        is_screened=True,
        rewrite=rewrite_fetch,
        is_rewritten=is_fetch_rewritten,
    ),
    Passed(
        key=ApiKey.ShareAcknowledge,
        screen=screen_session,
        is_screened=True,
        rewrite=addresses.rewrite_endpoints,
        is_rewritten=addresses.carries_endpoints(ApiKey.ShareAcknowledge, 0),
    ),
    Passed(
        key=ApiKey.DescribeShareGroupOffsets,
        guard=shares_at_brokers.guard_offsets,
        screen=fill_in_partitions,
    ),
)
