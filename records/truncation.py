"""The shortening of records. A record larger than its topic allows would make the query's sink fail, and so
the batch, at every retry.
"""

from collections.abc import Callable
from typing import TypeVar

from msgspec import UNSET, Struct, structs

from kafka_why.contract.codec import encode
from kafka_why.contract.history_reader import AnyHistoryEntry, StoredView
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.responses import AnyResponse
from kafka_why.contract.kafka.snapshot import (
    ConfigsView,
    GroupSnapshot,
    MemberSnapshot,
    ShareSnapshot,
    ShareTask,
    StreamsSnapshot,
)
from kafka_why.contract.messages import ErrorCode, ErrorResponse
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.contract.rocketmq.history import HistoryEntry as RocketMqHistoryEntry
from kafka_why.contract.rocketmq.requests import AnyResponse as RocketMqResponse
from kafka_why.contract.rocketmq.requests import Response as RocketMqResponseBase
from kafka_why.contract.rocketmq.requests import ResponseCode

# The maximum length of a sentence that lists members, in a shortened record.
SHORTENED_TEXT_CHARS = 16_384
# The maximum number of topics, of patterns, and of a task's partitions that a group waits for, in a shortened
# record.
AWAITED_MAX = 1_000

T = TypeVar("T", bound=Struct)


def encode_view(view: StoredView, max_bytes: int) -> bytes:
    """Encode a view, the published state of a group, as a record of the groups topic.

    A RocketMQ view that is too large has no connections. Of another one, parts are left out in this order
    until it fits:

    1. the members' details,
    2. the members,
    3. the known topics,
    4. the topics that the group waits for, and the tasks of the share coordinator, except the first
       partitions of the oldest task.
    """
    if isinstance(view, ConfigsView):
        return encode(view)
    if isinstance(view, RocketMqSnapshot):
        return _encode_within(view, max_bytes, _rocketmq_view_without_connections)
    return _encode_within(
        view,
        max_bytes,
        _view_without_member_details,
        _view_without_members,
        _view_without_known_topics,
        _view_without_awaited_topics,
    )


def encode_event(event: AnyHistoryEntry, max_bytes: int) -> bytes:
    """Encode a record of the events topic. If it is too large, its lists are left out."""
    if isinstance(event, RocketMqHistoryEntry):
        return _encode_within(event, max_bytes, _rocketmq_event_without_connections)
    return _encode_within(event, max_bytes, _event_without_assignments, _event_without_members)


def too_large_error(response: AnyResponse | RocketMqResponse) -> AnyResponse | RocketMqResponse:
    """Return an error of the same type, as a broker would send it, to replace a response that is too large.

    An ErrorResponse only loses its text.
    """
    if isinstance(response, ErrorResponse):
        return structs.replace(response, error_message="")
    if isinstance(response, RocketMqResponseBase):
        return type(response)(
            group_id=response.group_id,
            correlation_id=response.correlation_id,
            request=response.request,
            code=ResponseCode.SYSTEM_ERROR,
            remark="the answer is larger than a record of the responses topic may be",
        )
    return type(response)(
        group_id=response.group_id,
        correlation_id=response.correlation_id,
        request=response.request,
        error_code=ErrorCode.UNKNOWN_SERVER_ERROR,
        rule="X2",
    )


def _encode_within(record: T, max_bytes: int, *shortenings: Callable[[T], T]) -> bytes:
    """Encode the record. While it is too large, apply the next of the functions that shorten it.

    Each function gets the result of the one before it.
    """
    value = encode(record)
    for shorten in shortenings:
        if len(value) <= max_bytes:
            break
        record = shorten(record)
        value = encode(record)
    return value


def _view_without_member_details(view: GroupSnapshot) -> GroupSnapshot:
    return structs.replace(
        view, members=[_member_without_details(member) for member in view.members], truncated=True
    )


def _member_without_details(member: MemberSnapshot) -> MemberSnapshot:
    consumer = member.consumer
    if consumer:
        consumer = structs.replace(consumer, subscribed_topic_names=[], assigned={}, revoking={}, target={})
    return structs.replace(member, metadata=b"", assignment=b"", consumer=consumer)


def _view_without_members(view: GroupSnapshot) -> GroupSnapshot:
    return structs.replace(
        view,
        members=[],
        pending_members=[],
        last_rebalance_reason=view.last_rebalance_reason[:SHORTENED_TEXT_CHARS],
        quarantined=None if view.quarantined is None else view.quarantined[:SHORTENED_TEXT_CHARS],
    )


def _view_without_known_topics(view: GroupSnapshot) -> GroupSnapshot:
    consumer = view.consumer
    if consumer:
        consumer = structs.replace(
            consumer,
            topics={},
            resolved_regexes={},
            # Some unknown topics stay, because the topic watcher reads them here. When it has reported them,
            # the view has the next ones.
            unknown_topics=consumer.unknown_topics[:AWAITED_MAX],
            unresolved_regexes=consumer.unresolved_regexes[:AWAITED_MAX],
            checked_regexes=UNSET,
            share=ShareSnapshot({}, {}, {}, consumer.share.tasks) if consumer.share else UNSET,
            streams=_without_subtopologies(consumer.streams) if consumer.streams else UNSET,
        )
    return structs.replace(view, subscribed_topics=None, consumer=consumer)


def _without_subtopologies(streams: StreamsSnapshot) -> StreamsSnapshot:
    reason = streams.not_ready
    return structs.replace(
        streams,
        subtopologies={},
        stateful=UNSET,
        not_ready=reason if reason is UNSET else reason[:SHORTENED_TEXT_CHARS],
    )


def _view_without_awaited_topics(view: GroupSnapshot) -> GroupSnapshot:
    consumer = view.consumer
    if consumer:
        share = consumer.share
        if share and share.tasks:
            share = structs.replace(share, tasks=_first_partitions(share.tasks))
        consumer = structs.replace(consumer, unknown_topics=[], unresolved_regexes=[], share=share)
    return structs.replace(view, consumer=consumer)


def _first_partitions(tasks: list[ShareTask]) -> list[ShareTask]:
    """Return the oldest task with the first partitions of its first topic.

    When these are done, the view has the next ones.
    """
    topics = [structs.replace(t, partitions=t.partitions[:AWAITED_MAX]) for t in tasks[0].topics[:1]]
    return [structs.replace(tasks[0], topics=topics)]


def _rocketmq_view_without_connections(view: RocketMqSnapshot) -> RocketMqSnapshot:
    return structs.replace(
        view,
        consumers=[],
        producers=[],
        subscriptions={},
        request_modes={},
        duplicate_client_ids={},
        different_subscriptions={},
        quarantined=None if view.quarantined is None else view.quarantined[:SHORTENED_TEXT_CHARS],
        truncated=True,
    )


def _event_without_assignments(event: HistoryEntry) -> HistoryEntry:
    return structs.replace(
        event,
        assignments=None,
        subscriptions=None,
        targets=None,
        assigned=None,
        revoking=None,
        awaiting=None,
        task_states=None,
    )


def _event_without_members(event: HistoryEntry) -> HistoryEntry:
    return structs.replace(
        event,
        members=None,
        waiting_for=None,
        topics=None,
        partitions=None,
        reason=event.reason[:SHORTENED_TEXT_CHARS],
    )


def _rocketmq_event_without_connections(event: RocketMqHistoryEntry) -> RocketMqHistoryEntry:
    reason = event.reason[:SHORTENED_TEXT_CHARS]
    return structs.replace(event, connections=None, topics=None, subscriptions=None, reason=reason)
