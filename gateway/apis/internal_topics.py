"""Requests that would change the coordinator's own topics. The gateway refuses the entries that name these
topics and forwards the rest of the request to the broker.

The errors are those of Kafka for its own internal topics: INVALID_TOPIC_EXCEPTION (ReplicaManager, appending
and deleting records), and for transactions TOPIC_AUTHORIZATION_FAILED, with OPERATION_NOT_ATTEMPTED for the
other partitions (KafkaApis.handleAddPartitionsToTxnRequest). Clients do not retry after these errors.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any
from uuid import UUID

from gateway.apis.api import EntryList, Screen, Screened
from gateway.apis.context import RequestContext
from gateway.wire import offload
from gateway.wire.codec import Fields, GatewayError

_NAME = attrgetter("name")
_TOPIC_RESOURCE = 2  # ConfigResource.Type.TOPIC

_MESSAGE: Fields = MappingProxyType(
    {"error_message": "clients of the gateway may not change the coordinator's internal topics"}
)


async def screen_list(
    entry_list: EntryList,
    context: RequestContext,
    message: bytes,
    *,
    topic: Callable[[Any], str | UUID | None] = _NAME,
    error_details: Fields = _MESSAGE,
) -> Screened | None:
    """Remove entries about internal topics from a request. Raises ProtocolError and UpstreamLost.

    `topic` returns the topic of an entry, or None if the entry is not about a topic. `error_details` has the
    fields of a refused entry besides its error code: an error message, or nothing if the API's responses have
    no messages.
    """
    if not context.services.internal_topics.names:
        return None
    request = await offload.decode_passed(context.header, message)
    keys = list(map(topic, entry_list.entries(request)))
    internal = await _internal_among(context, filter(None, keys))
    errors = [GatewayError.INVALID_TOPIC_EXCEPTION if key in internal else None for key in keys]
    return await entry_list.screen(context, message, request, errors, error_details=error_details)


async def _screen_whole(
    refused: Callable[[Any, frozenset[str]], Fields | None], context: RequestContext, message: bytes
) -> Screened | None:
    """Screen a request that is applied as a whole or not at all.

    `refused` returns the response to a request about an internal topic, or None for other requests.
    """
    internal = context.services.internal_topics.names
    if not internal:
        return None
    response = refused(await offload.decode_passed(context.header, message), internal)
    return None if response is None else Screened(remaining=None, refused=response)


def mark_internal(context: RequestContext, topics: Iterable[Any]) -> None:
    """Mark the coordinator's own topics as internal, because consumers of a pattern skip internal topics."""
    names = context.services.internal_topics.names
    for topic in topics:
        if topic.name in names:
            topic.is_internal = True


async def rewrite_topic_partitions(context: RequestContext, response: Any) -> None:
    """Mark the coordinator's own topics as internal in a DescribeTopicPartitions response."""
    mark_internal(context, response.topics)


async def _internal_among(context: RequestContext, topics: Iterable[str | UUID]) -> set[str | UUID]:
    """Return those of `topics`, which are names or ids, that are internal topics of the coordinator."""
    internal_topics, keys = context.services.internal_topics, set(topics)
    internal: frozenset[str | UUID] = frozenset(internal_topics.names)
    if any(isinstance(key, UUID) for key in keys):  # the ids may have to be requested from a broker
        internal |= await internal_topics.ids(context.services.cluster)
    return keys & internal


def name_or_id(entry: Any) -> str | UUID | None:
    """Return the topic of an entry that has a name or an id."""
    key: str | UUID | None = entry.name or entry.topic_id
    return key


def config_topic(resource: Any) -> str | None:
    """Return the topic of a resource with settings, or None."""
    return resource.resource_name if resource.resource_type == _TOPIC_RESOURCE else None


def _refused_transactions(request: Any, internal: frozenset[str]) -> Fields | None:
    """Return the refusal of an AddPartitionsToTxn about an internal topic, else None."""
    # Versions from 4 on have `transactions`, earlier ones the topics of one transaction.
    transactions, v3_topics = request.transactions or [], request.v3_and_below_topics or []
    if not _any_named(internal, v3_topics, *(transaction.topics for transaction in transactions)):
        return None

    def results(topics: Iterable[Any]) -> list[Fields]:
        return [
            {
                "name": topic.name,
                "results_by_partition": _partition_errors(
                    topic.partitions, "partition_error_code", is_internal=topic.name in internal
                ),
            }
            for topic in topics
        ]

    # Kafka adds all of a request's partitions or none, so the others have an error, too.
    by_transaction = [
        {"transactional_id": t.transactional_id, "topic_results": results(t.topics)} for t in transactions
    ]
    return {"results_by_transaction": by_transaction, "results_by_topic_v3_and_below": results(v3_topics)}


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
                        "partitions": _partition_errors(
                            topic.partition_indexes, "error_code", is_internal=topic.name in internal
                        ),
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }


def _any_named(internal: frozenset[str], *topic_lists: Iterable[Any]) -> bool:
    return any(topic.name in internal for topics in topic_lists for topic in topics)


def _partition_errors(partitions: Sequence[int], field: str, *, is_internal: bool) -> list[Fields]:
    """Return the errors of a topic's partitions in a refused request, in the response's `field`.

    With `is_internal` the topic is internal, and so a reason for the refusal.
    """
    denied, not_attempted = GatewayError.TOPIC_AUTHORIZATION_FAILED, GatewayError.OPERATION_NOT_ATTEMPTED
    return [{"partition_index": p, field: denied if is_internal else not_attempted} for p in partitions]


screen_add_partitions: Screen = partial(_screen_whole, _refused_transactions)
screen_write_markers: Screen = partial(_screen_whole, _refused_markers)
