"""Requests of share groups (KIP-932), and who answers them in each mode of `--share-groups`
(`gateway.upstream.share_groups.Coordinators`):

| request                                         | `coordinator`   | `brokers`               | `off`      |
|-------------------------------------------------|-----------------|-------------------------|------------|
| ShareGroupHeartbeat, ShareGroupDescribe         | our coordinator | a broker                | refused    |
| ShareFetch, ShareAcknowledge                    | the leader      | the leader              | refused    |
| DescribeShareGroupOffsets                       | a broker        | a broker                | refused    |
| AlterShareGroupOffsets, DeleteShareGroupOffsets | our coordinator | a broker                | refused    |
| ListGroups, DeleteGroups                        | our coordinator | both                    | ours       |
| FindCoordinator: the listener of                | any broker      | the group's coordinator | any broker |

A refused request gets the error of a broker whose feature `share.version` is 0. While the cluster's
`share.version` is 0, every mode counts as `off`.
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
    PassedApi,
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
from gateway.apis.topics import are_too_many, images_of
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
# until the share coordinator has executed them. They reach no broker: its own coordinator would create
# another group with the same id, and delete the state of the existing group.
#
# DescribeShareGroupOffsets (90) passes, because a broker answers it for any group if the request names
# partitions. If it names none, the gateway adds the partitions that the coordinator knows.


FILLED_MAX_PARTITIONS = 50_000
"""The maximum number of partitions that the gateway adds to one DescribeShareGroupOffsets."""

_TOO_MANY_TOPICS = {
    "error_code": ErrorCode.INVALID_REQUEST,
    "error_message": "The request names more topics than one request to the coordinator can describe.",
}
_TOO_MANY_PARTITIONS = {
    "error_code": ErrorCode.INVALID_REQUEST,
    "error_message": "The groups of the request have more partitions than one response can have.",
}


async def _change_offsets(
    may_change: Callable[[RequestContext, str], bool],
    denied_entry: Callable[[Any], Fields],
    build_request: Callable[[Header, Sequence[Any], TopicImages | None], Request[Any]],
    changed_entry: Callable[[Any], Fields],
    context: RequestContext,
    request: Any,
) -> Fields | Deferred:
    """Rows SO9 and SO14: change the offsets of an Empty group in some topics.

    `may_change` returns True if the client may change the group. `build_request` builds the coordinator's
    request from its header, the request's topics that the client may read, and their metadata. The response
    has a `denied_entry` for each other topic, and a `changed_entry` for each topic in the coordinator's
    answer.
    """
    if not context.services.share_groups.are_ours:
        return OFF
    if not may_change(context, request.group_id):
        return CHANGE_REFUSED
    may_read = await context.slices().each(
        lambda topic: may_read_topic(context, topic.topic_name), request.topics
    )
    denied = [
        denied_entry(topic)
        for topic, is_readable in zip(request.topics, may_read, strict=True)
        if not is_readable
    ]
    topics = list(compress(request.topics, may_read))
    names = list(dict.fromkeys(topic.topic_name for topic in topics))
    if are_too_many(names):
        return _TOO_MANY_TOPICS
    images = await images_of(context, names)
    response = context.send(
        build_request(context.coordinator_header(request.group_id), topics, images), SHARE_STATE_TIMEOUT_MS
    )
    # The coordinator parks the request, so the connection's next one waits.
    return Deferred(response, partial(_change_fields, changed_entry, denied), holds_back=True)


def _change_fields(changed_entry: Callable[[Any], Fields], denied: list[Fields], answer: Any) -> Fields:
    return {
        "error_code": answer.error_code,
        "error_message": answer.error_message,
        "responses": [*map(changed_entry, answer.responses), *denied],
    }


def _alter_request(
    header: Header, topics: Sequence[Any], images: TopicImages | None
) -> AlterShareGroupOffsets:
    altered = [
        AlterShareTopic(
            topic.topic_name,
            [AlterSharePartition(p.partition_index, p.start_offset) for p in topic.partitions],
        )
        for topic in topics
    ]
    return AlterShareGroupOffsets(**header, topics=altered, images=images)


def _altered_topic(topic: AlteredShareTopic) -> Fields:
    partitions = [
        {"partition_index": p.partition, "error_code": p.error_code, "error_message": p.error_message}
        for p in topic.partitions
    ]
    return {**asdict(topic), "partitions": partitions}


def _delete_request(
    header: Header, topics: Sequence[Any], images: TopicImages | None
) -> DeleteShareGroupOffsets:
    names = [topic.topic_name for topic in topics]
    return DeleteShareGroupOffsets(**header, topics=names, images=images)


async def fill_in_partitions(context: RequestContext, message: bytes) -> Screened | None:
    """Add the partitions that the coordinator knows to each group for which a DescribeShareGroupOffsets names
    no topics (row SO3).
    """
    if not context.services.share_groups.are_ours:
        return None
    request = await offload.decode_passed(context.header, message)
    without_topics = [group for group in request.groups if group.topics is None]
    if not without_topics:
        return None
    async with context.fan_out.acquired(context):
        query = _partitions_query(context)
        results = await map_items(
            context, query, without_topics, lambda group: _error(group, _TOO_MANY_PARTITIONS)
        )
    # A group without partitions or with an error is not sent to the broker. Its result is the response.
    filled = {result["group_id"]: result for result in results if result.get("topics")}
    unfilled = [result for result in results if not result.get("topics")]
    request.groups = [g for g in request.groups if g.topics is not None or g.group_id in filled]
    if not request.groups:
        return Screened(remaining=None, refused={"groups": unfilled})
    remaining = await offload.run(_encode_filled, context.header, message, request, filled)
    return Screened(remaining, refused={"groups": unfilled}, change=partial(_remove_denied, filled))


def _encode_filled(
    header: RequestHeader, message: bytes, request: Any, filled: Mapping[str, Fields]
) -> bytes:
    """Return the encoded request, with the topics and partitions of `filled` added to its groups."""
    for group in request.groups:
        if group.topics is None:
            group.topics = []
            codec.extend(group, "topics", filled[group.group_id]["topics"])
    return codec.with_body(header, message, request)


def _partitions_query(context: RequestContext) -> Callable[[Any], Awaitable[Fields]]:
    """Return a function that queries the coordinator about a group.

    The function returns the group's initialized partitions of topics that the client may describe, or the
    group's error for the response. All its calls together return at most FILLED_MAX_PARTITIONS.
    """
    partitions_left = FILLED_MAX_PARTITIONS

    async def query(group: Any) -> Fields:
        nonlocal partitions_left
        if not may_describe_group(context, group.group_id):
            return _error(group, GROUP_REFUSED)
        if not group.group_id:
            return _error(group, {})  # no group has this id, which is not an error here (row SO5)
        request = DescribeShareGroupOffsets(**context.coordinator_header(group.group_id))
        answer = await context.send(request, ANSWER_TIMEOUT_MS)
        if answer.error_code:
            return _error(group, {"error_code": answer.error_code, "error_message": answer.error_message})
        topics = await context.slices().filtered(
            lambda topic: may_describe_topic(context, topic.topic_name), answer.topics
        )
        partitions_left -= sum(len(topic.partitions) for topic in topics)
        if partitions_left < 0:
            return _error(group, _TOO_MANY_PARTITIONS)
        return {
            "group_id": group.group_id,
            "topics": [{"topic_name": t.topic_name, "partitions": t.partitions} for t in topics],
        }

    return query


def _error(group: Any, error: Fields) -> Fields:
    return {"group_id": group.group_id, **error}


async def _remove_denied(filled: Iterable[str], response: Any) -> None:
    """Remove topics that the broker denies to the client from the groups in `filled`, whose topics the client
    has not named.
    """
    for group in response.groups:
        if group.group_id in filled:
            group.topics = [
                topic
                for topic in group.topics
                if all(p.error_code != GatewayError.TOPIC_AUTHORIZATION_FAILED for p in topic.partitions)
            ]


def are_offered(services: Services) -> bool:
    """Return True if clients may use share groups, whoever coordinates them."""
    return not services.share_groups.are_off


APIS = (
    modern_groups.SHARE_GROUP_HEARTBEAT,
    modern_groups.SHARE_GROUP_DESCRIBE,
    Api(key=ApiKey.ShareFetch, serve_at_once=lambda *_: OFF, asks_coordinator=False, is_passed=are_offered),
    Api(
        key=ApiKey.ShareAcknowledge,
        serve_at_once=lambda *_: OFF,
        asks_coordinator=False,
        is_passed=are_offered,
    ),
    Api(
        key=ApiKey.DescribeShareGroupOffsets,
        serve_at_once=lambda _, request: {
            "groups": [{"group_id": group.group_id, **OFF} for group in request.groups]
        },
        asks_coordinator=False,
        is_passed=are_offered,
    ),
    Api(
        key=ApiKey.AlterShareGroupOffsets,
        serve=partial(_change_offsets, may_read_group, denied_partitions, _alter_request, _altered_topic),
        parks=AlterShareGroupOffsetsResponse,
        is_passed=are_at_brokers,
    ),
    Api(
        key=ApiKey.DeleteShareGroupOffsets,
        serve=partial(_change_offsets, may_delete_group, denied_topic, _delete_request, asdict),
        parks=DeleteShareGroupOffsetsResponse,
        is_passed=are_at_brokers,
    ),
)

ROWS = (
    *shares_at_brokers.ROWS,
    PassedApi(
        key=ApiKey.ShareFetch,
        screen=screen_session,
        is_screened=True,
        rewrite=rewrite_fetch,
        is_rewritten=is_fetch_rewritten,
    ),
    PassedApi(
        key=ApiKey.ShareAcknowledge,
        screen=screen_session,
        is_screened=True,
        rewrite=addresses.rewrite_endpoints,
        is_rewritten=partial(addresses.carries_endpoints, ApiKey.ShareAcknowledge, 0),
    ),
    PassedApi(
        key=ApiKey.DescribeShareGroupOffsets,
        guard=shares_at_brokers.guard_describe_offsets,
        screen=fill_in_partitions,
    ),
)
