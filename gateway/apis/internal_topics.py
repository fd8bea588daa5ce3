"""Requests that would change the coordinator's own topics. The gateway refuses the entries that name these
topics and forwards the rest of the request to the broker.

The errors are those of Kafka for its own internal topics: INVALID_TOPIC_EXCEPTION (ReplicaManager, appending
and deleting records), and for transactions TOPIC_AUTHORIZATION_FAILED, with OPERATION_NOT_ATTEMPTED for the
other partitions (KafkaApis.handleAddPartitionsToTxnRequest). Clients do not retry after these errors.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Screen, Screened
from gateway.apis.context import RequestContext
from gateway.wire import codec, offload
from gateway.wire.codec import Fields, GatewayError
from gateway.wire.framing import ProtocolError

_DELETE_FIRST_BY_ID = 6
_NAME = attrgetter("name")
_TOPIC_RESOURCE = 2  # ConfigResource.Type.TOPIC

_ERROR: Fields = MappingProxyType(
    {
        "error_code": GatewayError.INVALID_TOPIC_EXCEPTION,
        "error_message": "clients of the gateway may not change the coordinator's internal topics",
    }
)


@dataclass(frozen=True, slots=True)
class _TopicListScreen:
    """The screen of an API whose requests name topics in one list.

    `topic` returns the topic of an entry, or None if the entry is not about a topic. `refused` returns the
    response's entry for a refused entry.
    """

    request_field: str  # the list in the request
    response_field: str  # the list in the response
    topic: Callable[[Any], str | UUID | None]
    refused: Callable[[Any], Fields]

    async def screen(self, context: RequestContext, message: bytes) -> Screened | None:
        """Remove entries about internal topics from a request. Raises ProtocolError, UpstreamLost."""
        if not context.services.internal_topics.names:
            return None
        header = context.header
        request = await offload.decode_passed(header, message)
        entries: list[Any] = getattr(request, self.request_field) or []
        internal = await _internal_among(context, filter(None, map(self.topic, entries)))
        refused = [self.refused(entry) for entry in entries if self.topic(entry) in internal]
        if not refused:
            return None
        if context.version not in codec.versions(header.api_key):
            raise ProtocolError(f"a {ApiKey(header.api_key).name} v{context.version} to an internal topic")
        kept = [entry for entry in entries if self.topic(entry) not in internal]
        setattr(request, self.request_field, kept)
        remaining = await offload.with_body(header, message, request) if kept else None
        return Screened(remaining, {self.response_field: refused})


def _screen_whole(refused: Callable[[Any, frozenset[str]], Fields | None]) -> Screen:
    """Return the screen of an API that applies a request as a whole or not at all.

    `refused` returns the response to a request about an internal topic, or None for other requests.
    """

    async def screen(context: RequestContext, message: bytes) -> Screened | None:
        internal = context.services.internal_topics.names
        if not internal:
            return None
        response = refused(await offload.decode_passed(context.header, message), internal)
        return None if response is None else Screened(None, response)

    return screen


def mark(context: RequestContext, topics: Iterable[Any]) -> None:
    """Mark the coordinator's own topics as internal, because consumers of a pattern skip internal topics."""
    names = context.services.internal_topics.names
    for topic in topics:
        if topic.name in names:
            topic.is_internal = True


async def rewrite_topic_partitions(context: RequestContext, response: Any) -> None:
    """Mark the coordinator's own topics as internal in a DescribeTopicPartitions response."""
    mark(context, response.topics)


async def _internal_among(context: RequestContext, topics: Iterable[str | UUID]) -> set[str | UUID]:
    own, wanted = context.services.internal_topics, set(topics)
    by_id = any(isinstance(topic, UUID) for topic in wanted)
    return wanted & (own.names | await own.ids(context.services.cluster) if by_id else own.names)


def _by_name_or_id(entry: Any) -> str | UUID | None:
    named: str | UUID | None = entry.name or entry.topic_id
    return named


def _config_of(resource: Any) -> str | None:
    return resource.resource_name if resource.resource_type == _TOPIC_RESOURCE else None


def _refused_produce(topic: Any) -> Fields:
    failed = [{"index": p.index, "base_offset": -1, **_ERROR} for p in topic.partition_data]
    return {**_name_or_id(topic), "partition_responses": failed}


def _name_or_id(topic: Any) -> Fields:
    return {"name": topic.name} if topic.name else {"topic_id": topic.topic_id, "name": None}


def _refused_records(topic: Any) -> Fields:
    code = {"error_code": _ERROR["error_code"], "low_watermark": -1}
    partitions = [{"partition_index": p.partition_index, **code} for p in topic.partitions]
    return {"name": topic.name, "partitions": partitions}


def _refused_reassignment(topic: Any) -> Fields:
    partitions = [{"partition_index": p.partition_index, **_ERROR} for p in topic.partitions]
    return {"name": topic.name, "partitions": partitions}


def _refused_config(resource: Any) -> Fields:
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        **_ERROR,
    }


def _refused_topic(topic: Any) -> Fields:
    return {"name": topic.name, **_ERROR}


screen_produce = _TopicListScreen("topic_data", "responses", _by_name_or_id, _refused_produce).screen
screen_creation = _TopicListScreen("topics", "topics", _NAME, _refused_topic).screen
screen_records = _TopicListScreen("topics", "topics", _NAME, _refused_records).screen
screen_configs = _TopicListScreen("resources", "responses", _config_of, _refused_config).screen
screen_partitions = _TopicListScreen("topics", "results", _NAME, _refused_topic).screen
screen_reassignments = _TopicListScreen("topics", "responses", _NAME, _refused_reassignment).screen

_DELETED_NAMES = _TopicListScreen("topic_names", "responses", str, lambda name: {"name": name, **_ERROR})
_DELETED = _TopicListScreen(
    "topics", "responses", _by_name_or_id, lambda topic: {**_name_or_id(topic), **_ERROR}
)


async def screen_deletion(context: RequestContext, message: bytes) -> Screened | None:
    """Remove internal topics from a DeleteTopics, which from version 6 on also has topic ids."""
    named = _DELETED_NAMES if context.version < _DELETE_FIRST_BY_ID else _DELETED
    return await named.screen(context, message)


def _refused_transactions(request: Any, internal: frozenset[str]) -> Fields | None:
    """Return the refusal of an AddPartitionsToTxn about an internal topic, else None."""
    transactions, old = request.transactions or [], request.v3_and_below_topics or []
    if not _any_named(internal, old, *(transaction.topics for transaction in transactions)):
        return None

    def results(topics: Iterable[Any]) -> list[Fields]:
        return [
            {
                "name": name,
                "results_by_partition": _not_done(partitions, name in internal, "partition_error_code"),
            }
            for name, partitions in ((topic.name, topic.partitions) for topic in topics)
        ]

    # Kafka adds all of a request's partitions or none.
    by_transaction = [
        {"transactional_id": t.transactional_id, "topic_results": results(t.topics)} for t in transactions
    ]
    return {"results_by_transaction": by_transaction, "results_by_topic_v3_and_below": results(old)}


def _refused_markers(request: Any, internal: frozenset[str]) -> Fields | None:
    """Return the refusal of a WriteTxnMarkers about an internal topic, else None.

    Administrators end hanging transactions with this request, which writes all markers or none.
    """
    if not _any_named(internal, *(marker.topics for marker in request.markers)):
        return None
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": _not_done(
                            topic.partition_indexes, topic.name in internal, "error_code"
                        ),
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }


def _any_named(internal: frozenset[str], *several: Iterable[Any]) -> bool:
    return any(topic.name in internal for topics in several for topic in topics)


def _not_done(partitions: Sequence[int], is_internal: bool, field: str) -> list[Fields]:
    """Return the errors of a topic's partitions in a refused request.

    With `is_internal` this topic is the reason for the refusal.
    """
    refused, other = GatewayError.TOPIC_AUTHORIZATION_FAILED, GatewayError.OPERATION_NOT_ATTEMPTED
    return [{"partition_index": p, field: refused if is_internal else other} for p in partitions]


screen_addition = _screen_whole(_refused_transactions)
screen_markers = _screen_whole(_refused_markers)
