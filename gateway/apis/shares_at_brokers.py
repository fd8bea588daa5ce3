"""Requests of share groups (KIP-932) that pass to brokers. The errors are those of KafkaApis.

ShareFetch (key 78) and ShareAcknowledge (79) pass to the leaders of the partitions. A broker has the share
session of a member, and releases the member's acquired records when the session's connection ends. So these
requests pass on the client's own connection to the broker.

A broker of Kafka 4.4 with an authorizer fails at each ShareFetch whose session has the id of a deleted topic
(NullPointerException in AuthHelper.filterByAuthorized). The client then retries at once with the same id,
because only a partition's own error makes it look up the new id. So after such a failure the client has to
start a session with all its partitions, and the gateway answers for the partitions of deleted topics.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from gateway.apis import addresses
from gateway.apis.api import (
    GROUP_REFUSED,
    EntryGuard,
    PassedApi,
    Screen,
    Screened,
    TopicKey,
    describable_topics,
    group_operations,
    may_delete_group,
    may_describe_group,
    may_describe_topic,
    may_read_group,
    may_read_topic,
    topic_errors,
)
from gateway.apis.context import CheckedTopics, RequestContext, Services
from gateway.apis.passed_guards import CHANGED_MAX_BYTES
from gateway.authorization.acls import Operation
from gateway.authorization.authorizer import Authorizer
from gateway.log_text import quoted
from gateway.upstream.cluster import TOPIC_AGE_MAX_S
from gateway.wire import offload
from gateway.wire.codec import Fields, GatewayError
from gateway.wire.fetch_messages import error_of, with_member_id
from gateway.wire.framing import ProtocolError
from kafka_why.contract.messages import ErrorCode

_TOPIC_DENIED = GatewayError.TOPIC_AUTHORIZATION_FAILED
_DENIED = {"error_code": _TOPIC_DENIED, "error_message": "Topic authorization failed."}
_GROUP_DENIED = GatewayError.GROUP_AUTHORIZATION_FAILED
_NO_ID = UUID(int=0)
CHANGE_REFUSED = {**GROUP_REFUSED, "error_message": "Group authorization failed."}
"""The response to a refused change of a group's offsets. No other refusal has an error text."""
HIDDEN = "The group has described topic(s) that the client is not authorized to describe."


def are_at_brokers(services: Services) -> bool:
    """Return True if the brokers' own coordinators have the share groups."""
    return services.share_groups.are_at_brokers


async def _guard_heartbeat(context: RequestContext, message: bytes) -> Screened | None:
    """Require READ on the group, and DESCRIBE on each topic."""
    request = await offload.decode_passed(context.header, message)
    if not may_read_group(context, request.group_id):
        return Screened(remaining=None, refused=GROUP_REFUSED)
    names = list(dict.fromkeys(request.subscribed_topic_names or ()))
    are_describable = await context.slices().each(partial(may_describe_topic, context), names)
    if all(are_describable):
        return None
    return Screened(remaining=None, refused={"error_code": _TOPIC_DENIED})


_ERROR_CODE = slice(9, 11)  # of a ShareGroupHeartbeat's response: after its header and the throttle time


async def _watch_heartbeat(context: RequestContext, message: bytes) -> Screened | None:
    """Look up the coordinators of share groups again if the broker answers NOT_COORDINATOR."""

    def on_start(response: bytes) -> None:
        if int.from_bytes(response[_ERROR_CODE]) == GatewayError.NOT_COORDINATOR:
            context.services.share_groups.expire_leaders()

    return Screened(message, refused={}, on_start=on_start)


def _describe_error(context: RequestContext, group_id: str) -> GatewayError | None:
    return None if may_describe_group(context, group_id) else _GROUP_DENIED


_DESCRIBE_GROUPS = EntryGuard(
    request_field="group_ids",
    response_field="groups",
    refused_entry=lambda group_id, error: {"group_id": group_id, **error},
    error=_describe_error,
)


async def _guard_describe_groups(context: RequestContext, message: bytes) -> Screened | None:
    """Require DESCRIBE on each group, and on each topic of its members' assignments."""
    request = await offload.decode_passed(context.header, message)

    async def hide_members(response: Any) -> None:
        for group in response.groups:
            topics = {
                topic.topic_name for member in group.members for topic in member.assignment.topic_partitions
            }
            if not all(may_describe_topic(context, topic) for topic in sorted(topics)):
                group.error_code, group.error_message, group.members = _TOPIC_DENIED, HIDDEN, []
            elif request.include_authorized_operations and not group.error_code:
                group.authorized_operations = group_operations(context, group.group_id)

    return await _DESCRIBE_GROUPS.guard(context, message, hide_members)


_DESCRIBE_OFFSETS = EntryGuard(
    request_field="groups",
    response_field="groups",
    refused_entry=lambda group, error: {"group_id": group.group_id, **error},
    error=lambda context, group: _describe_error(context, group.group_id),
)


async def guard_describe_offsets(context: RequestContext, message: bytes) -> Screened | None:
    """Require DESCRIBE on each group and each topic.

    A denied topic has an error if the request names the group's topics. Otherwise it is left out.
    """
    request = await offload.decode_passed(context.header, message)
    groups_with_named_topics = {group.group_id for group in request.groups if group.topics is not None}

    async def hide_topics(response: Any) -> None:
        for group in response.groups:
            describable = set(describable_topics(context, [topic.topic_name for topic in group.topics]))
            if group.group_id not in groups_with_named_topics:
                group.topics = [topic for topic in group.topics if topic.topic_name in describable]
                continue
            for topic in group.topics:
                if topic.topic_name not in describable:
                    _deny(topic)

    return await _DESCRIBE_OFFSETS.guard(context, message, hide_topics)


def _deny(topic: Any) -> None:
    """Replace a topic's offsets in a broker's response by the error of a denied topic."""
    topic.topic_id = _NO_ID
    for partition in topic.partitions:
        partition.error_code, partition.error_message = _DENIED["error_code"], _DENIED["error_message"]
        partition.start_offset, partition.leader_epoch, partition.lag = -1, 0, -1


def _offsets_change_guard(
    may_change: Callable[[RequestContext, str], bool], denied_entry: Callable[[Any], Fields]
) -> Screen:
    """Return the guard of a change of offsets, which requires READ on each topic.

    `may_change` returns True if the client may change the group. `denied_entry` returns the response's entry
    for a denied topic.
    """
    topics = EntryGuard(
        request_field="topics",
        response_field="responses",
        refused_entry=lambda topic, error: denied_entry(topic),
        error=lambda context, topic: None if may_read_topic(context, topic.topic_name) else _TOPIC_DENIED,
    )

    async def guard(context: RequestContext, message: bytes) -> Screened | None:
        request = await offload.decode_passed(context.header, message)
        if not may_change(context, request.group_id):
            return Screened(remaining=None, refused=CHANGE_REFUSED)
        return await topics.guard(context, message)

    return guard


def denied_partitions(topic: Any) -> Fields:
    """Return the part of a response to AlterShareGroupOffsets for a topic that the client may not read."""
    partitions = [{"partition_index": p.partition_index, **_DENIED} for p in topic.partitions]
    return {"topic_name": topic.topic_name, "partitions": partitions}


def denied_topic(topic: Any) -> Fields:
    """Return the part of a response to DeleteShareGroupOffsets for a topic that the client may not read."""
    return {"topic_name": topic.topic_name, **_DENIED}


ROWS = (
    PassedApi(key=ApiKey.ShareGroupHeartbeat, guard=_guard_heartbeat, screen=_watch_heartbeat),
    PassedApi(key=ApiKey.ShareGroupDescribe, guard=_guard_describe_groups),
    PassedApi(
        key=ApiKey.AlterShareGroupOffsets,
        guard=_offsets_change_guard(may_read_group, denied_partitions),
    ),
    PassedApi(
        key=ApiKey.DeleteShareGroupOffsets,
        guard=_offsets_change_guard(may_delete_group, denied_topic),
    ),
)


# ShareRequestMetadata: the epoch of a request that starts a session. Later epochs are greater, the last is
# -1.
_INITIAL_EPOCH, _FINAL_EPOCH = 0, -1
_MEMBER_ID_MAX_CHARACTERS = 36  # KafkaApis.isMemberIdValid
# The age of metadata that is used after a broker's failure. It also limits how often a client's retries query
# the brokers.
_FRESH_AGE_MAX_S = 0.1
_INVALID = {"error_code": ErrorCode.INVALID_REQUEST}
_SESSION_NOT_FOUND = {"error_code": GatewayError.SHARE_SESSION_NOT_FOUND}
"""After this error clients start a session with all their partitions."""

_Errors = Mapping[TopicKey, GatewayError]


async def screen_session(context: RequestContext, message: bytes) -> Screened:
    """Require READ on the group, and on each topic of the session of a ShareFetch or ShareAcknowledge.

    Denied and deleted topics are removed from the request, and their partitions have the error. Raises
    ProtocolError if the connection has another member's session.
    """
    request = await offload.decode_passed(context.header, message)
    session = context.caches.share_session
    if request.group_id is None or request.member_id is None:
        return Screened(remaining=None, refused=_INVALID)
    if not session.claim(request.group_id, request.member_id):
        raise ProtocolError(f"a share session of {quoted(request.member_id)} on another member's connection")
    starts_after_failure = _starts_session(context, request) and session.clear_failure()
    authorizer = context.services.authorizer
    if authorizer is not None and context.services.checks_forwarded_requests:
        age_max_s = _FRESH_AGE_MAX_S if starts_after_failure else TOPIC_AGE_MAX_S
        screened = await _check_acls(context, message, request, authorizer, age_max_s)
    else:
        deleted = await _deleted_topics(context, request) if starts_after_failure else {}
        screened = await _remove_topics(context, message, request, deleted)
    return screened if screened.remaining is None else _with_counter(context, request, screened)


async def _check_acls(
    context: RequestContext, message: bytes, request: Any, authorizer: Authorizer, age_max_s: float
) -> Screened:
    """Check the ACLs, and replace the member id with the one that the broker knows on this connection."""
    session, acl_version, on_start = context.caches.share_session, authorizer.version, None
    if not may_read_group(context, request.group_id):
        return Screened(remaining=None, refused=GROUP_REFUSED)
    if not 0 < len(request.member_id) <= _MEMBER_ID_MAX_CHARACTERS:
        return Screened(remaining=None, refused=_INVALID)
    is_continued = _continues_session(context, request)
    if is_continued and not await _may_continue(context, session.checked, acl_version):
        return Screened(remaining=None, refused=_SESSION_NOT_FOUND)
    topic_ids = {topic.topic_id for topic in request.topics}
    errors = await topic_errors(context, topic_ids, Operation.READ, age_max_s)
    allowed, is_partial = topic_ids - errors.keys(), bool(errors)
    if _starts_session(context, request):
        on_start = session.begin(CheckedTopics(allowed, acl_version, is_partial))
    elif is_continued and session.checked is not None:
        session.checked.add(allowed, acl_version, is_partial=is_partial)
    screened = await _remove_topics(context, message, request, errors)
    assert screened.remaining is not None, "a request without any topic left passes, too"
    remaining = with_member_id(context.header, screened.remaining, session.broker_member_id)
    return replace(screened, remaining=remaining, on_start=on_start)


async def _may_continue(context: RequestContext, checked: CheckedTopics | None, acl_version: int) -> bool:
    """Return True if the session began on this connection, and no later change of the ACLs affects it."""
    if checked is None:
        return False
    if checked.version == acl_version:
        return True
    # The new ACLs may allow a topic that the session lacks, or deny one that it has.
    return not checked.is_partial and not await topic_errors(context, checked.topics, Operation.READ)


async def _remove_topics(context: RequestContext, message: bytes, request: Any, errors: _Errors) -> Screened:
    """Remove the topics with errors from a request. Their partitions get the errors in the response."""
    if not errors:
        return Screened(message, refused={})
    refused_partition = _refused_acknowledge
    if context.header.api_key == ApiKey.ShareFetch:
        refused_partition = _refused_fetch
        request.max_bytes = min(request.max_bytes, CHANGED_MAX_BYTES)
    is_large = len(message) > offload.AT_ONCE_BYTES
    refused = await offload.run_if(is_large, _refused_topics, request.topics, errors, refused_partition)
    request.topics = [topic for topic in request.topics if topic.topic_id not in errors]
    remaining = await offload.with_body(context.header, message, request)
    return Screened(remaining, refused={"responses": refused})


async def rewrite_fetch(context: RequestContext, response: Any) -> None:
    """Replace the addresses of leaders that have moved.

    If the broker has failed, answer SHARE_SESSION_NOT_FOUND, so that the client starts a new session. The
    module's docstring describes the failure.
    """
    if response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR:
        response.error_code = GatewayError.SHARE_SESSION_NOT_FOUND
        context.caches.share_session.has_failed = True
    await addresses.rewrite_endpoints(context, response)


def is_fetch_rewritten(version: int, response: bytes) -> bool:
    """Return True if `rewrite_fetch` changes a response."""
    has_failed = error_of(response) == ErrorCode.UNKNOWN_SERVER_ERROR
    return has_failed or addresses.carries_endpoints(ApiKey.ShareFetch, 0, version, response)


def _starts_session(context: RequestContext, request: Any) -> bool:
    is_fetch = context.header.api_key == ApiKey.ShareFetch  # a ShareAcknowledge cannot start a session
    return bool(is_fetch and request.share_session_epoch == _INITIAL_EPOCH)


def _continues_session(context: RequestContext, request: Any) -> bool:
    """Return True for a ShareFetch of a session in progress, which fetches all topics of the session."""
    if context.header.api_key != ApiKey.ShareFetch:
        return False
    return request.share_session_epoch not in (_INITIAL_EPOCH, _FINAL_EPOCH)


async def _deleted_topics(context: RequestContext, request: Any) -> _Errors:
    """Return the error of each requested topic that no longer exists, by id."""
    topic_ids = {topic.topic_id for topic in request.topics}
    existing = await context.services.cluster.topics_by_id(topic_ids, _FRESH_AGE_MAX_S)
    return dict.fromkeys(topic_ids - existing.keys(), GatewayError.UNKNOWN_TOPIC_ID)


def _refused_topics(
    topics: Iterable[Any], errors: _Errors, refused_partition: Callable[[Any, GatewayError], Fields]
) -> list[Fields]:
    """Return the response's entries for the topics removed from a request."""
    return [
        {
            "topic_id": topic.topic_id,
            "partitions": [refused_partition(p, errors[topic.topic_id]) for p in topic.partitions],
        }
        for topic in topics
        if topic.topic_id in errors
    ]


def _refused_acknowledge(partition: Any, error: GatewayError) -> Fields:
    return {
        "partition_index": partition.partition_index,
        "error_code": error,
        "current_leader": {"leader_id": -1, "leader_epoch": -1},
    }


def _refused_fetch(partition: Any, error: GatewayError) -> Fields:
    return {
        **_refused_acknowledge(partition, error),
        "acknowledge_error_code": error if partition.acknowledgement_batches else 0,
        "records": b"",
        "acquired_records": [],
    }


def _with_counter(context: RequestContext, request: Any, screened: Screened) -> Screened:
    """Return the screening with a counter of the deliveries in the response."""
    deliveries = context.services.deliveries
    if deliveries is None:
        return screened
    return replace(screened, on_part=context.caches.share_session.watch(deliveries, context.header, request))
