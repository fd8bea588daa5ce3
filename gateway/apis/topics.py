"""The topics of requests. As in Kafka, the topics of offset requests are checked before the coordinator gets
the request. To other requests the gateway adds the metadata of their topics, because the coordinator cannot
query the cluster (rows MI1, MI2 and RX1). If the brokers do not answer in time, a request is sent without
metadata.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

import structlog
from msgspec import Struct, structs

from gateway.apis.api import may_describe_topic
from gateway.apis.context import RequestContext
from gateway.apis.slices import Steps, batches
from gateway.authorization.acls import Operation, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.fairness import FairThread
from gateway.limits import MIB
from gateway.upstream.cluster import AllTopics, ClusterTopic
from gateway.upstream.connections import UpstreamLost
from gateway.wire.codec import GatewayError
from kafka_why.contract.kafka.requests import RegexResolution
from kafka_why.contract.kafka.responses import PartitionError
from kafka_why.contract.kafka.share_requests import TopicImage, TopicImages
from kafka_why.contract.messages import ErrorCode
from records.topic_patterns import digest, resolve

FIRST_VERSION_WITH_IDS = 10  # of OffsetCommit and OffsetFetch (KIP-848)
# A topic may just have been recreated, and committed offsets belong to the topic's id.
OFFSETS_AGE_MAX_S = 1.0

Codes = ErrorCode | GatewayError

log = structlog.get_logger()


class NamedTopic(Struct, frozen=True):
    """A topic of a request, given by name or id (`by_id`). `topic` is its metadata, or None if it does not
    exist.
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
    def missing_error(self) -> GatewayError:
        """The error of partitions that do not exist."""
        is_unknown_id = self.topic is None and self.by_id
        return GatewayError.UNKNOWN_TOPIC_ID if is_unknown_id else GatewayError.UNKNOWN_TOPIC_OR_PARTITION

    def has(self, partition: int) -> bool:
        """Return True if the topic has this partition."""
        return self.topic is not None and 0 <= partition < self.topic.partitions


async def look_up(
    context: RequestContext, topics: Iterable[Any], needs: Operation, *, by_id: bool
) -> list[NamedTopic] | None:
    """Return the topics of a request with their metadata, in order, or None if no broker answers.

    A name on which the client lacks the operation `needs` is not looked up.
    """
    cluster, requested = context.services.cluster, list(topics)
    ask: Callable[[Iterable[Any], float], Awaitable[Any]] = cluster.topics_by_id if by_id else cluster.topics
    try:
        found = await ask(_keys(context, requested, needs, by_id=by_id), OFFSETS_AGE_MAX_S)
    except UpstreamLost as error:
        log.warning("no metadata of topics", error=str(error))
        return None
    return await context.slices().each(partial(_named_topic, found, by_id), requested)


def look_up_at_once(
    context: RequestContext, topics: Iterable[Any], needs: Operation, *, by_id: bool
) -> list[NamedTopic] | None:
    """Return the result of `look_up`, or None if that needs a request to a broker."""
    cluster, requested = context.services.cluster, list(topics)
    cached: Callable[[Iterable[Any], float], Any] = (
        cluster.cached_topics_by_id if by_id else cluster.cached_topics
    )
    found = cached(_keys(context, requested, needs, by_id=by_id), OFFSETS_AGE_MAX_S)
    return None if found is None else [_named_topic(found, by_id, topic) for topic in requested]


def _keys(
    context: RequestContext, topics: Iterable[Any], needs: Operation, *, by_id: bool
) -> Iterator[str | UUID]:
    """Return an iterator over the ids of these topics, or over the names that the client may use."""
    if by_id:
        return (topic.topic_id for topic in topics if topic.topic_id is not None)
    names = (topic.name for topic in topics)
    return (name for name in names if context.may(needs, ResourceType.TOPIC, name))


def _named_topic(found: Mapping[Any, ClusterTopic], by_id: bool, topic: Any) -> NamedTopic:
    if by_id:
        return NamedTopic("", topic.topic_id, found.get(topic.topic_id), by_id=True)
    return NamedTopic(topic.name, None, found.get(topic.name))


async def ids_of(context: RequestContext, names: Iterable[str]) -> Mapping[str, UUID]:
    """Return the ids of those topics in `names` that exist. Raises UpstreamLost."""
    found = await context.services.cluster.topics(names, OFFSETS_AGE_MAX_S)
    return {name: topic.topic_id for name, topic in found.items() if topic.topic_id is not None}


class Outcomes:
    """Error codes of partitions, grouped by topic as in Kafka's OffsetCommitResponse.Builder."""

    def __init__(self) -> None:
        self._topics: list[dict[str, Any]] = []
        self._by_name: dict[str | UUID | None, list[dict[str, Any]]] = {}

    def add(self, requested: NamedTopic, errors: Iterable[tuple[int, Codes]]) -> None:
        """Add the outcomes of partitions of a topic to the topic's entry."""
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
        """Add the coordinator's outcomes. A topic that is twice in the request has two entries, unless the
        gateway has already added errors.
        """
        together = bool(self._topics)
        for requested, partitions in decided:
            if not together:
                self._begin(requested, [])
            for some in batches(partitions):
                self.add(requested, [(p.partition_index, p.error_code) for p in some])
                yield

    def fields(self) -> list[dict[str, Any]]:
        """Return the topics of a response."""
        return self._topics

    def _begin(self, requested: NamedTopic, partitions: list[dict[str, Any]]) -> None:
        self._by_name[requested.key] = partitions
        name = {"name": requested.name} if requested.topic_id is None else {"topic_id": requested.topic_id}
        self._topics.append({**name, "partitions": partitions})


# A member may join because a topic has just grown.
NAMED_AGE_MAX_S = 1.0
# Answers with all topics are large. The topic watcher finds newer topics.
ALL_AGE_MAX_S = 10.0

# Half of the smallest requests topic's limit: 10,000 topics with names of 30 letters.
IMAGES_MAX_BYTES = MIB
_IMAGE_BYTES = 80  # of a topic in JSON, beside its name

# After checking permissions for this long, let other tasks of the event loop run.
_DECIDING_S = 0.005

# RE2 releases the interpreter's lock, so the event loop continues while a pattern is matched.
_matching = FairThread("gateway-patterns")

T = TypeVar("T")

_running: set[asyncio.Task[Any]] = set()
"""The running queries, because the event loop has no strong references to its tasks."""


async def images_of(context: RequestContext, names: Iterable[str]) -> TopicImages | None:
    """Return the metadata of each topic with one of these names, None for an absent topic.

    A topic is left out if the brokers reported an error for it. Return None if no broker answered.
    """
    wanted = list(names)
    if not wanted:
        return {}
    found = await _in_time(context, context.services.cluster.described(wanted, NAMED_AGE_MAX_S))
    if found is None:
        return None
    images = {name: None if topic is None else _image(topic) for name, topic in found.items()}
    return {name: image for name, image in images.items() if image is not None or found[name] is None}


async def resolution_of(
    context: RequestContext, pattern: str, *, is_requested: bool = False
) -> RegexResolution | None:
    """Return the topics that the pattern matches, or its RE2 error.

    Internal topics, as clients see them, and topics that the client may not DESCRIBE are left out. Return
    None if no broker answered, or if the pattern waited too long for other patterns. With `is_requested` the
    topics' metadata is read again, because the coordinator found that topics have changed.
    """
    age_max_s = NAMED_AGE_MAX_S if is_requested else ALL_AGE_MAX_S
    known = await _in_time(context, context.services.cluster.all_topics(age_max_s))
    if known is None:
        return None
    resolving = _matching.run(_resolve_pattern, pattern, known, context.services.internal_topics.own)
    timeout_s = context.services.cluster.limits.topics_look_up_s
    done, _ = await asyncio.wait([resolving], timeout=timeout_s)
    if not done:
        resolving.cancel()
        log.warning("a pattern is not resolved now", error=f"it was not resolved within {timeout_s:g} s")
        return None
    resolved, seen = resolving.result()
    if resolved.error is not None:
        return resolved
    if context.services.authorizer is None:
        return structs.replace(resolved, seen=seen) if is_requested else resolved
    visible = await _describable(context, context.services.authorizer, resolved.topics)
    if visible is None:
        return None
    return structs.replace(resolved, topics={name: resolved.topics[name] for name in visible}, seen=seen)


def _resolve_pattern(pattern: str, known: AllTopics, own: frozenset[str]) -> tuple[RegexResolution, str]:
    """Return the topics that the pattern matches, and their digest. Runs in a worker thread."""
    images = {name: image for name, topic in known.topics.items() if (image := _image(topic)) is not None}
    internal = own.union(name for name, topic in known.topics.items() if topic.is_internal)
    resolved = resolve(pattern, images, known.at_ms, internal)
    return resolved, digest(resolved.topics)


async def _describable(
    context: RequestContext, authorizer: Authorizer, topics: Iterable[str]
) -> list[str] | None:
    """Return those of `topics` that the client may DESCRIBE.

    None if the ACLs change meanwhile or time runs out.
    """
    timeout_s, describable = context.services.cluster.limits.topics_look_up_s, list[str]()
    try:
        # One pattern at a time, because many would delay other work.
        async with asyncio.timeout(timeout_s), context.services.deciding:
            version, turn_s = authorizer.version, monotonic()
            for name in topics:
                if may_describe_topic(context, name):
                    describable.append(name)
                if monotonic() - turn_s >= _DECIDING_S:
                    await asyncio.sleep(0)
                    turn_s = monotonic()
    except TimeoutError:
        log.warning("a pattern is not resolved now", error=f"its ACLs took longer than {timeout_s:g} s")
        return None
    if authorizer.version != version:
        log.warning("a pattern is not resolved now", error="the ACLs have changed meanwhile")
        return None
    return describable


def is_too_much(*topics: Iterable[str] | None) -> bool:
    """Return True if the metadata of all these topics does not fit into one request."""
    return sum(images_bytes(names) for names in topics if names is not None) > IMAGES_MAX_BYTES


def images_bytes(names: Iterable[str]) -> int:
    """Return the size of the metadata of these topics in a request, approximately."""
    return sum(len(name) + _IMAGE_BYTES for name in names)


def _image(topic: ClusterTopic) -> TopicImage | None:
    # A broker that is too old reports no topic ids.
    return None if topic.topic_id is None else TopicImage(topic.topic_id, topic.partitions)


async def _in_time(context: RequestContext, query: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of a query of the brokers, or None if it does not come in time."""
    cluster = context.services.cluster
    timeout_s = cluster.limits.topics_look_up_s
    # While brokers hang, only the first requests wait: no request waits for a query that has used up the
    # time.
    left_s = max(0.0, timeout_s - cluster.waited_s())
    task = asyncio.create_task(_result_or_none(query))
    # A slower query continues, because other requests may wait for it.
    _running.add(task)
    task.add_done_callback(_running.discard)
    done, _ = await asyncio.wait([task], timeout=left_s)
    if done:
        return task.result()
    log.warning("no metadata of topics", error=f"no broker answered within {timeout_s:g} s")
    return None


async def _result_or_none(query: Coroutine[Any, Any, T]) -> T | None:
    try:
        return await query
    except UpstreamLost as error:
        log.warning("no metadata of topics", error=str(error))
        return None
