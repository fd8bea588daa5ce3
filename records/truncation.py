"""The shortening of records. A record larger than its topic allows would fail the sink, and so the batch,
every time.
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

# The remaining length of a sentence that lists members, in a shortened record.
SHORTENED_TEXT_CHARS = 16_384
# The maximum of topics and patterns that a group waits for, in such a record.
AWAITED_MAX = 1_000

T = TypeVar("T", bound=Struct)


def encode_view(view: StoredView, max_bytes: int) -> bytes:
    """Encode a record of the groups topic, shortened if it is too large.

    Until it fits, these are left out, in this order: the members' details, the members, the known topics, the
    topics that the group waits for. In the last case, only the first partitions of share coordinators' tasks
    stay.
    """
    if isinstance(view, ConfigsView):
        return encode(view)
    if isinstance(view, RocketMqSnapshot):
        return _encode_within(view, max_bytes, _without_connections)
    return _encode_within(
        view,
        max_bytes,
        _view_without_bytes,
        _view_without_members,
        _view_without_known_topics,
        _view_without_topics,
    )


def encode_event(event: AnyHistoryEntry, max_bytes: int) -> bytes:
    """Encode a record of the events topic. If it is too large, its lists are left out."""
    if isinstance(event, RocketMqHistoryEntry):
        return _encode_within(event, max_bytes, _event_without_connections)
    return _encode_within(event, max_bytes, _event_without_assignments, _event_without_members)


def too_large_error(response: AnyResponse | RocketMqResponse) -> AnyResponse | RocketMqResponse:
    """Return the replacement of a response that is too large: only an error, as brokers answer."""
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


def _encode_within(record: T, max_bytes: int, *shorten: Callable[[T], T]) -> bytes:
    """Encode the record, and shorten it as often as needed."""
    value = encode(record)
    for shorter in shorten:
        if len(value) <= max_bytes:
            break
        record = shorter(record)
        value = encode(record)
    return value


def _view_without_bytes(view: GroupSnapshot) -> GroupSnapshot:
    return structs.replace(
        view, members=[_member_without_partitions(member) for member in view.members], truncated=True
    )


def _member_without_partitions(member: MemberSnapshot) -> MemberSnapshot:
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
    """Return the group without its known topics."""
    consumer = view.consumer
    if consumer:
        consumer = structs.replace(
            consumer,
            topics={},
            resolved_regexes={},
            # Some unknown topics stay, because the topic watcher reads them here. The others follow later.
            unknown_topics=consumer.unknown_topics[:AWAITED_MAX],
            unresolved_regexes=consumer.unresolved_regexes[:AWAITED_MAX],
            checked_regexes=UNSET,
            share=ShareSnapshot({}, {}, {}, consumer.share.tasks) if consumer.share else UNSET,
            streams=_without_subtopologies(consumer.streams) if consumer.streams else UNSET,
        )
    return structs.replace(view, subscribed_topics=None, consumer=consumer)


def _without_subtopologies(streams: StreamsSnapshot) -> StreamsSnapshot:
    why = streams.not_ready
    return structs.replace(
        streams,
        subtopologies={},
        stateful=UNSET,
        not_ready=why if why is UNSET else why[:SHORTENED_TEXT_CHARS],
    )


def _view_without_topics(view: GroupSnapshot) -> GroupSnapshot:
    consumer = view.consumer
    if consumer:
        share = consumer.share
        if share and share.tasks:
            share = structs.replace(share, tasks=_first_tasks(share.tasks))
        consumer = structs.replace(consumer, unknown_topics=[], unresolved_regexes=[], share=share)
    return structs.replace(view, consumer=consumer)


def _first_tasks(tasks: list[ShareTask]) -> list[ShareTask]:
    """Return the first partitions of the oldest task. The others follow when these have their outcome."""
    topics = [structs.replace(t, partitions=t.partitions[:AWAITED_MAX]) for t in tasks[0].topics[:1]]
    return [structs.replace(tasks[0], topics=topics)]


def _without_connections(view: RocketMqSnapshot) -> RocketMqSnapshot:
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
        event, assignments=None, subscriptions=None, targets=None, assigned=None, revoking=None, awaiting=None
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


def _event_without_connections(event: RocketMqHistoryEntry) -> RocketMqHistoryEntry:
    reason = event.reason[:SHORTENED_TEXT_CHARS]
    return structs.replace(event, connections=None, topics=None, subscriptions=None, reason=reason)
