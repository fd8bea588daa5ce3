"""The topics of requests. As in Kafka, the topics of offset requests are checked before the coordinator gets
the request. To other requests the gateway adds images, the metadata of their topics, because the coordinator
cannot query the cluster. If the brokers do not answer in time, a request is sent without metadata.
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


class RequestedTopic(Struct, frozen=True):
    """A topic of a request, which identifies it by its name, or by its id if `by_id`."""

    name: str  # "" if `by_id`
    topic_id: UUID | None  # None unless `by_id`
    topic: ClusterTopic | None  # its metadata; None if it does not exist or was not looked up
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
) -> list[RequestedTopic] | None:
    """Return the topics of a request with their metadata, in order, or None if no broker answers.

    A name on which the client lacks the operation `needs` is not looked up.
    """
    cluster, requested = context.services.cluster, list(topics)
    query: Callable[[Iterable[Any], float], Awaitable[Any]] = (
        cluster.topics_by_id if by_id else cluster.topics
    )
    try:
        metadata = await query(_keys(context, requested, needs, by_id=by_id), OFFSETS_AGE_MAX_S)
    except UpstreamLost as error:
        log.warning("no metadata of topics", error=str(error))
        return None
    return await context.slices().each(partial(_requested_topic, metadata, by_id), requested)


def look_up_at_once(
    context: RequestContext, topics: Iterable[Any], needs: Operation, *, by_id: bool
) -> list[RequestedTopic] | None:
    """Return the result of `look_up`, or None if that needs a request to a broker."""
    cluster, requested = context.services.cluster, list(topics)
    cached: Callable[[Iterable[Any], float], Any] = (
        cluster.cached_topics_by_id if by_id else cluster.cached_topics
    )
    metadata = cached(_keys(context, requested, needs, by_id=by_id), OFFSETS_AGE_MAX_S)
    return None if metadata is None else [_requested_topic(metadata, by_id, topic) for topic in requested]


def _keys(
    context: RequestContext, topics: Iterable[Any], needs: Operation, *, by_id: bool
) -> Iterator[str | UUID]:
    """Return an iterator over the ids of these topics, or over the names that the client may use."""
    if by_id:
        return (topic.topic_id for topic in topics if topic.topic_id is not None)
    names = (topic.name for topic in topics)
    return (name for name in names if context.may(needs, ResourceType.TOPIC, name))


def _requested_topic(metadata: Mapping[Any, ClusterTopic], by_id: bool, topic: Any) -> RequestedTopic:
    if by_id:
        return RequestedTopic("", topic.topic_id, metadata.get(topic.topic_id), by_id=True)
    return RequestedTopic(topic.name, topic_id=None, topic=metadata.get(topic.name))


async def ids_of(context: RequestContext, names: Iterable[str]) -> Mapping[str, UUID]:
    """Return the ids of those topics in `names` that exist. Raises UpstreamLost."""
    topics = await context.services.cluster.topics(names, OFFSETS_AGE_MAX_S)
    return {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}


class Outcomes:
    """Error codes of partitions, grouped by topic as in Kafka's OffsetCommitResponse.Builder."""

    def __init__(self) -> None:
        self.topics: list[dict[str, Any]] = []
        """The topics of a response."""
        self._partitions_by_topic: dict[str | UUID | None, list[dict[str, Any]]] = {}

    def add(self, requested: RequestedTopic, errors: Iterable[tuple[int, Codes]]) -> None:
        """Add the error codes of partitions, given as pairs of index and code, to the topic's entry."""
        partitions = [{"partition_index": index, "error_code": error} for index, error in errors]
        if not partitions:
            return
        added_before = self._partitions_by_topic.get(requested.key)
        if added_before is None:
            self._add_entry(requested, partitions)
        else:
            added_before += partitions

    def add_all(self, requested: RequestedTopic, partitions: Iterable[int], error: Codes) -> None:
        """Add the same outcome of several partitions."""
        self.add(requested, ((index, error) for index in partitions))

    def merge(self, decided: Iterable[tuple[RequestedTopic, Sequence[PartitionError]]]) -> Steps:
        """Add the outcomes that the coordinator decided.

        As in Kafka, a topic that is twice in the request has one entry if the gateway has already added
        errors of any topic, else two.
        """
        has_errors = bool(self.topics)
        for requested, partitions in decided:
            if not has_errors:
                self._add_entry(requested, [])
            for batch in batches(partitions):
                self.add(requested, [(p.partition_index, p.error_code) for p in batch])
                yield

    def _add_entry(self, requested: RequestedTopic, partitions: list[dict[str, Any]]) -> None:
        self._partitions_by_topic[requested.key] = partitions
        key = {"name": requested.name} if requested.topic_id is None else {"topic_id": requested.topic_id}
        self.topics.append({**key, "partitions": partitions})


# A member may join because a topic has just grown.
NAMED_AGE_MAX_S = 1.0
# Answers with all topics are large. The topic watcher finds newer topics.
ALL_AGE_MAX_S = 10.0

# Half of the smallest requests topic's limit: 10,000 topics with names of 30 letters.
IMAGES_MAX_BYTES = MIB
_IMAGE_BYTES = 80  # of a topic in JSON, beside its name

# After checking permissions for this long, let other tasks of the event loop run.
_CHECK_SLICE_S = 0.005

# RE2 releases the interpreter's lock, so the event loop continues while a pattern is matched.
_pattern_thread = FairThread("gateway-patterns")

T = TypeVar("T")

_running_queries: set[asyncio.Task[Any]] = set()
"""References to the tasks, because the event loop has no strong references to them."""


async def images_of(context: RequestContext, names: Iterable[str]) -> TopicImages | None:
    """Return the metadata of the topics with these names, by name. The value of an absent topic is None.

    A topic is left out if the brokers reported an error for it, or no id. Return None if no broker answered.
    """
    requested = list(names)
    if not requested:
        return {}
    topics = await _within_timeout(
        context, context.services.cluster.describe_topics(requested, NAMED_AGE_MAX_S)
    )
    if topics is None:
        return None
    images = {name: None if topic is None else _image(topic) for name, topic in topics.items()}
    # Leave out existing topics without an image, because their id is unknown.
    return {name: image for name, image in images.items() if image is not None or topics[name] is None}


async def resolution_of(
    context: RequestContext, pattern: str, *, is_requested: bool = False
) -> RegexResolution | None:
    """Return the topics that the pattern matches, or its RE2 error.

    Kafka's and the coordinator's internal topics are left out, and topics that the client may not DESCRIBE.
    Return None if no broker answered, or if the pattern waited too long for other patterns. With
    `is_requested` the topics' metadata is read again, because the coordinator found that topics have changed.
    """
    age_max_s = NAMED_AGE_MAX_S if is_requested else ALL_AGE_MAX_S
    all_topics = await _within_timeout(context, context.services.cluster.all_topics(age_max_s))
    if all_topics is None:
        return None
    own_internal = context.services.internal_topics.own
    resolving = _pattern_thread.run(_resolve_pattern, pattern, all_topics, own_internal)
    timeout_s = context.services.cluster.limits.topics_look_up_s
    done, _ = await asyncio.wait([resolving], timeout=timeout_s)
    if not done:
        resolving.cancel()
        log.warning("a pattern is not resolved now", error=f"it was not resolved within {timeout_s:g} s")
        return None
    resolution, topics_digest = resolving.result()
    if resolution.error is not None:
        return resolution
    if context.services.authorizer is None:
        return structs.replace(resolution, seen=topics_digest) if is_requested else resolution
    describable = await _describable(context, context.services.authorizer, resolution.topics)
    if describable is None:
        return None
    topics = {name: resolution.topics[name] for name in describable}
    return structs.replace(resolution, topics=topics, seen=topics_digest)


def _resolve_pattern(
    pattern: str, all_topics: AllTopics, own_internal: frozenset[str]
) -> tuple[RegexResolution, str]:
    """Return the topics that the pattern matches, and their digest. Runs in a worker thread."""
    topics = all_topics.topics
    images = {name: image for name, topic in topics.items() if (image := _image(topic)) is not None}
    internal = own_internal.union(name for name, topic in topics.items() if topic.is_internal)
    resolution = resolve(pattern, images, all_topics.at_ms, internal)
    return resolution, digest(resolution.topics)


async def _describable(
    context: RequestContext, authorizer: Authorizer, topics: Iterable[str]
) -> list[str] | None:
    """Return those of `topics` that the client may DESCRIBE, or None if the ACLs change meanwhile or if time
    runs out.
    """
    timeout_s, describable = context.services.cluster.limits.topics_look_up_s, list[str]()
    try:
        # Patterns are checked one at a time, because many at once would delay other work.
        async with asyncio.timeout(timeout_s), context.services.pattern_checks:
            acl_version, slice_start_s = authorizer.version, monotonic()
            for name in topics:
                if may_describe_topic(context, name):
                    describable.append(name)
                if monotonic() - slice_start_s >= _CHECK_SLICE_S:
                    await asyncio.sleep(0)
                    slice_start_s = monotonic()
    except TimeoutError:
        log.warning("a pattern is not resolved now", error=f"its ACLs took longer than {timeout_s:g} s")
        return None
    if authorizer.version != acl_version:
        log.warning("a pattern is not resolved now", error="the ACLs have changed meanwhile")
        return None
    return describable


def are_too_many(*topics: Iterable[str] | None) -> bool:
    """Return True if the metadata of all these topics does not fit into one request. Each argument has names
    of topics, or is None.
    """
    return sum(images_bytes(names) for names in topics if names is not None) > IMAGES_MAX_BYTES


def images_bytes(names: Iterable[str]) -> int:
    """Return the size of the metadata of these topics in a request, approximately."""
    return sum(len(name) + _IMAGE_BYTES for name in names)


def _image(topic: ClusterTopic) -> TopicImage | None:
    # A broker that is too old reports no topic ids.
    return None if topic.topic_id is None else TopicImage(topic.topic_id, topic.partitions)


async def _within_timeout(context: RequestContext, query: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of a query of the brokers, or None if it fails or takes too long."""
    cluster = context.services.cluster
    timeout_s = cluster.limits.topics_look_up_s
    # The timeout runs from the start of the cluster's current request. So if brokers hang, later callers do
    # not wait for the whole timeout again.
    left_s = max(0.0, timeout_s - cluster.waited_s())
    task = asyncio.create_task(_result_or_none(query))
    # A slower query continues, because other requests may wait for it.
    _running_queries.add(task)
    task.add_done_callback(_running_queries.discard)
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
