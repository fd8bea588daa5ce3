"""ConsumerGroupHeartbeat (key 68), the one request of a member on the consumer protocol (KIP-848)."""

from functools import partial
from typing import Any

import structlog
from kafka.protocol.api_key import ApiKey
from msgspec import UNSET, Struct, UnsetType

from gateway.apis.api import Api
from gateway.apis.context import Deferred, PatternLooks, RequestContext
from gateway.apis.guards import GROUP_REFUSED, may_read_group
from gateway.apis.modern_groups import TOO_MUCH, TOPIC_REFUSED, heartbeat_fields, may_describe_all
from gateway.apis.topic_facts import images_of, is_too_much, resolution_of
from gateway.wire.codec import Fields
from gateway.wire.heartbeats import decode_consumer_heartbeat
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat, RegexResolution, TopicIdPartitions
from kafka_why.contract.kafka.responses import ConsumerGroupHeartbeatResponse
from kafka_why.contract.kafka.share_requests import TopicImages

OFF = {"error_code": ErrorCode.UNSUPPORTED_VERSION}
"""The response while the consumer protocol is switched off (row HB1)."""

log = structlog.get_logger()


class _Facts(Struct, frozen=True):
    """What the gateway adds to a heartbeat: fields of `ConsumerGroupHeartbeat`."""

    topics: TopicImages | None = None
    regex: RegexResolution | None = None
    looked: dict[str, RegexResolution] | UnsetType = UNSET


_NO_FACTS = _Facts()


async def serve(context: RequestContext, request: Any) -> Fields | Deferred:
    """Send a member's heartbeat to the coordinator, with what the brokers say of its topics."""
    refused = _refused(context, request)
    if refused is not None:
        return refused
    if is_too_much(request.subscribed_topic_names):
        return TOO_MUCH
    topics, regex = None, None
    looked: dict[str, RegexResolution] | UnsetType = UNSET
    if request.member_epoch >= 0 and request.subscribed_topic_names is not None:
        topics = await images_of(context, request.subscribed_topic_names)
    if request.member_epoch >= 0 and request.subscribed_topic_regex:
        regex = await resolution_of(context, request.subscribed_topic_regex)
    pattern = context.remembered.looks.pop(request.group_id, request.member_id)
    if request.member_epoch > 0 and request.subscribed_topic_regex is None and pattern is not None:
        looked = await _look(context, pattern, topics)
    if is_too_much(topics, None if regex is None else regex.topics):
        return TOO_MUCH
    return _send(context, request, _Facts(topics, regex, looked))


async def _look(
    context: RequestContext, pattern: str, topics: TopicImages | None
) -> dict[str, RegexResolution] | UnsetType:
    """What the pattern matches now, by the pattern, where the request can carry it beside `topics`. A
    heartbeat without it is asked for it again.
    """
    found = await resolution_of(context, pattern, is_look=True)
    if found is None:
        return UNSET
    if is_too_much(topics, found.topics):
        log.warning("a pattern matches more topics than a request can carry", topics=len(found.topics))
        return UNSET
    return {pattern: found}


def serve_at_once(context: RequestContext, request: Any) -> Fields | Deferred | None:
    """As `serve`, None if the request is about topics: most heartbeats are not."""
    if request.subscribed_topic_names is not None or request.subscribed_topic_regex:
        return None
    if context.remembered.looks and context.remembered.looks.is_asked(request.group_id, request.member_id):
        return None
    return _refused(context, request) or _send(context, request, _NO_FACTS)


def _refused(context: RequestContext, request: Any) -> Fields | None:
    """Rows HB1 to HB3."""
    if not context.services.consumer_protocol:
        return OFF
    if not may_read_group(context, request.group_id):
        return GROUP_REFUSED
    return None if may_describe_all(context, request.subscribed_topic_names) else TOPIC_REFUSED


def _send(context: RequestContext, request: Any, facts: _Facts) -> Deferred:
    owned = request.topic_partitions
    response = context.send(
        ConsumerGroupHeartbeat(
            **context.to_group(request.group_id),
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            subscribed_topic_names=request.subscribed_topic_names,
            subscribed_topic_regex=request.subscribed_topic_regex,
            server_assignor=request.server_assignor,
            topic_partitions=None if owned is None else [_owned(topic) for topic in owned],
            topics=facts.topics,
            regex=facts.regex,
            checks_topics=UNSET if context.services.authorizer is None else True,
            looked=facts.looked,
        )
    )
    return Deferred(response, partial(_fields, context.remembered.looks))


def _owned(topic: Any) -> TopicIdPartitions:
    return TopicIdPartitions(topic.topic_id, topic.partitions)


def _fields(looks: PatternLooks, answer: ConsumerGroupHeartbeatResponse) -> Fields:
    if answer.look is not UNSET and answer.member_id is not None:
        looks.add(answer.group_id, answer.member_id, answer.look)
    return heartbeat_fields(answer)


API = Api(
    key=ApiKey.ConsumerGroupHeartbeat,
    serve=serve,
    serve_at_once=serve_at_once,
    decode=decode_consumer_heartbeat,
    of_consumer_protocol=True,
)
