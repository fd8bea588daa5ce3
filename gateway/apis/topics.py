"""The topics that a request names, by name or (from version 10 of the offset messages on) by id, and whether
they exist. Kafka also checks this before the request reaches the coordinator.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from msgspec import Struct

from gateway.apis.context import RequestContext
from gateway.apis.slices import Steps, batches
from gateway.authorization.acls import Operation, ResourceType
from gateway.upstream.cluster import ClusterTopic
from gateway.upstream.connections import UpstreamLost
from gateway.wire.errors import GatewayError
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.responses import PartitionError

FIRST_VERSION_WITH_IDS = 10  # of OffsetCommit and OffsetFetch (KIP-848)
# A topic may just have been deleted and created again, and committed offsets belong to the topic's id.
OFFSETS_AGE_MAX_S = 1.0

Codes = ErrorCode | GatewayError

log = structlog.get_logger()


class NamedTopic(Struct, frozen=True):
    """A topic that a request names, or gives the id of (`by_id`), and its metadata. `topic` is None if the
    topic does not exist.
    """

    name: str
    topic_id: UUID | None
    topic: ClusterTopic | None
    by_id: bool = False

    @property
    def key(self) -> str | UUID | None:
        """The name or id that identifies the topic in the request."""
        return self.name or self.topic_id

    @property
    def missing(self) -> GatewayError:
        """The error of partitions that do not exist."""
        is_unknown_id = self.topic is None and self.by_id
        return GatewayError.UNKNOWN_TOPIC_ID if is_unknown_id else GatewayError.UNKNOWN_TOPIC_OR_PARTITION

    def has(self, partition: int) -> bool:
        """Whether the topic has this partition."""
        return self.topic is not None and 0 <= partition < self.topic.partitions


async def look_up(
    context: RequestContext, topics: Iterable[Any], needs: Operation, *, by_id: bool
) -> list[NamedTopic] | None:
    """Return each of the request's topics in the request's order, None if no broker answers. A name for which
    the client has not the right that it `needs` is not looked up.
    """
    requested = list(topics)
    cluster = context.services.cluster
    try:
        if not by_id:
            names = await cluster.topics(_allowed(context, requested, needs), OFFSETS_AGE_MAX_S)
            return await context.slices().each(partial(_by_name, names), requested)
        ids = await cluster.topics_by_id(
            (topic.topic_id for topic in requested if topic.topic_id is not None), OFFSETS_AGE_MAX_S
        )
    except UpstreamLost as error:
        log.warning("no metadata of topics", error=str(error))
        return None
    return await context.slices().each(partial(_by_id, ids), requested)


def look_up_at_once(
    context: RequestContext, topics: Iterable[Any], needs: Operation, *, by_id: bool
) -> list[NamedTopic] | None:
    """As `look_up`, None if that has to ask a broker."""
    requested = list(topics)
    cluster = context.services.cluster
    if not by_id:
        names = cluster.cached_topics(_allowed(context, requested, needs), OFFSETS_AGE_MAX_S)
        if names is None:
            return None
        return [_by_name(names, topic) for topic in requested]
    ids = cluster.cached_topics_by_id(
        (topic.topic_id for topic in requested if topic.topic_id is not None), OFFSETS_AGE_MAX_S
    )
    if ids is None:
        return None
    return [_by_id(ids, topic) for topic in requested]


def _by_name(found: Mapping[str, ClusterTopic], topic: Any) -> NamedTopic:
    return NamedTopic(topic.name, None, found.get(topic.name))


def _by_id(found: Mapping[UUID, ClusterTopic], topic: Any) -> NamedTopic:
    return NamedTopic("", topic.topic_id, found.get(topic.topic_id), by_id=True)


def _allowed(context: RequestContext, topics: Iterable[Any], needs: Operation) -> Iterator[str]:
    """The names of these topics that the client may use."""
    names = (topic.name for topic in topics)
    return (name for name in names if context.may(needs, ResourceType.TOPIC, name))


async def ids_of(context: RequestContext, names: Iterable[str]) -> Mapping[str, UUID]:
    """The ids of the existing topics among these. Raises UpstreamLost."""
    found = await context.services.cluster.topics(names, OFFSETS_AGE_MAX_S)
    return {name: topic.topic_id for name, topic in found.items() if topic.topic_id is not None}


class Outcomes:
    """Error codes of partitions, grouped by topic as in Kafka's OffsetCommitResponse.Builder."""

    def __init__(self) -> None:
        self._topics: list[dict[str, Any]] = []
        self._by_name: dict[str | UUID | None, list[dict[str, Any]]] = {}

    def add(self, requested: NamedTopic, errors: Iterable[tuple[int, Codes]]) -> None:
        """Add the outcomes of partitions of a topic. They are in one entry with those that it has."""
        partitions = [{"partition_index": index, "error_code": error} for index, error in errors]
        if not partitions:
            return
        entry = self._by_name.get(requested.key)
        if entry is None:
            self._begin(requested, partitions)
        else:
            entry += partitions

    def add_all(self, requested: NamedTopic, partitions: Iterable[int], error: Codes) -> None:
        """Add the same outcome of several partitions."""
        self.add(requested, ((index, error) for index in partitions))

    def merge(self, decided: Iterable[tuple[NamedTopic, Sequence[PartitionError]]]) -> Steps:
        """Add the coordinator's outcomes. A topic named twice has two entries, if it has no earlier one."""
        together = bool(self._topics)
        for requested, partitions in decided:
            if not together:
                self._begin(requested, [])
            for some in batches(partitions):
                self.add(requested, [(p.partition_index, p.error_code) for p in some])
                yield

    def fields(self) -> list[dict[str, Any]]:
        """The topics of a response."""
        return self._topics

    def _begin(self, requested: NamedTopic, partitions: list[dict[str, Any]]) -> None:
        self._by_name[requested.key] = partitions
        name = {"name": requested.name} if requested.topic_id is None else {"topic_id": requested.topic_id}
        self._topics.append({**name, "partitions": partitions})
