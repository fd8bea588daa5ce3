"""The share groups of the cluster (KIP-932): the coordinators in charge of them, and the broker that
coordinates a group if the brokers are in charge.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing
from enum import StrEnum
from functools import lru_cache, partial
from time import monotonic
from typing import Any

import structlog
from kafka.protocol.api_key import ApiKey
from msgspec import Struct

from gateway.log_text import RateLimitedWarning
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import CLIENT_ID, SOFTWARE, UpstreamLost
from gateway.upstream.transactions import OwnRequests
from gateway.wire import codec, offload
from gateway.wire.codec import GatewayError
from kafka_why.contract.kafka.snapshot import listed
from kafka_why.contract.kafka.streams_responses import CreatableStreamsTopic
from kafka_why.observed.consumer_offsets.schemas import kafka_partition
from kafka_why.partitioner import CACHED_MAX_CHARACTERS

# The topic whose leaders are the brokers' coordinators of groups.
_OFFSETS_TOPIC = "__consumer_offsets"
_METADATA_VERSION, _FIND_VERSION, _DESCRIBE_VERSION = 12, 4, 1
FIRST_WITH_FEATURES = 3
"""The first version of ApiVersions whose response has the brokers' features."""
SHARE_VERSION = "share.version"
"""The brokers' feature of share groups."""
_FIRST_LEVEL = 1  # of SHARE_VERSION
# The maximum age of the leaders, and of the answer that the offsets topic does not exist.
_AGE_MAX_S = 30.0
_ABSENT_AGE_MAX_S = 1.0
_GROUPS_CACHED = 10_000

log = structlog.get_logger()


class Coordinators(StrEnum):
    """The coordinators in charge of clients' share groups: this project's, the brokers' own, or none."""

    OURS = "coordinator"
    BROKERS = "brokers"
    OFF = "off"


class ShareGroups:
    """The coordinators of share groups, and the leaders of the brokers' offsets topic if brokers are in
    charge.

    The leaders are requested in the background, so no request waits for them. A client that is sent to the
    wrong broker gets NOT_COORDINATOR from it, and looks for the coordinator again.
    """

    def __init__(self, cluster: Cluster, wanted: Coordinators) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self.feature_level = 0
        """The level of the brokers' feature `share.version`, 0 if they lack it."""
        self._leaders: list[int] = []
        """The leader of each partition of the offsets topic, or an empty list before it is known."""
        self._leaders_read_at_s: float | None = None
        self._leaders_task: asyncio.Task[None] | None = None

    @property
    def coordinators(self) -> Coordinators:
        """The coordinators in charge: OFF while the brokers' feature `share.version` is 0 (row SH1)."""
        return self._wanted if self.feature_level >= _FIRST_LEVEL else Coordinators.OFF

    @property
    def are_ours(self) -> bool:
        """True if this project's coordinator is in charge."""
        return self.coordinators is Coordinators.OURS

    @property
    def are_at_brokers(self) -> bool:
        """True if the brokers' own coordinators are in charge."""
        return self.coordinators is Coordinators.BROKERS

    @property
    def are_off(self) -> bool:
        """True if requests about share groups are refused."""
        return self.coordinators is Coordinators.OFF

    async def refresh(self) -> None:
        """Request the level of the feature `share.version` from a broker. Raises UpstreamLost."""
        versions = await self._cluster.ask(ApiKey.ApiVersions, FIRST_WITH_FEATURES, SOFTWARE)
        self.feature_level = share_level_in(versions)

    def coordinator_of(self, group_id: str) -> int | None:
        """Return the broker that coordinates a share group, or None if it is unknown or the brokers are not
        in charge.
        """
        if not self.are_at_brokers or not self._leaders:
            return None
        # Long ids are not cached, because they take too much memory.
        partition_of = kafka_partition if len(group_id) > CACHED_MAX_CHARACTERS else _cached_partition
        return self._leaders[partition_of(group_id, len(self._leaders))]

    def expire_leaders(self) -> None:
        """Request the leaders again at the next refresh, because a broker was not the coordinator."""
        self._leaders_read_at_s = None

    def refresh_leaders(self, group_id: str) -> None:
        """Request the leaders in the background if they are stale.

        If the offsets topic does not exist, the request creates it, as a client's search for this group's
        coordinator would.
        """
        age_max_s = _AGE_MAX_S if self._leaders else _ABSENT_AGE_MAX_S
        read_at_s = self._leaders_read_at_s
        is_fresh = read_at_s is not None and monotonic() - read_at_s <= age_max_s
        is_requested = self._leaders_task is not None and not self._leaders_task.done()
        if self.are_at_brokers and not is_fresh and not is_requested:
            self._leaders_task = asyncio.create_task(self._find_leaders(group_id))

    async def existing_groups(self, node_id: int | None, group_ids: Sequence[str]) -> frozenset[str]:
        """Return those of `group_ids` that are share groups of this broker's coordinator. Raises
        UpstreamLost.
        """
        address = None if node_id is None else self._cluster.nodes.get(node_id)
        if address is None or not group_ids:
            return frozenset()
        key, version = ApiKey.ShareGroupDescribe, _DESCRIBE_VERSION
        body = {"group_ids": group_ids, "include_authorized_operations": False}
        with closing(await self._cluster.connect(address)) as upstream:
            response = await upstream.request(codec.encode_request(key, version, 0, CLIENT_ID, body))
        answer = codec.decode_response(key, version, response)
        return frozenset(group.group_id for group in answer.groups if not group.error_code)

    def close(self) -> None:
        """Cancel the request for the leaders."""
        if self._leaders_task is not None:
            self._leaders_task.cancel()

    async def _find_leaders(self, group_id: str) -> None:
        """Request the leaders of the offsets topic. If the topic does not exist, let a broker create it."""
        try:
            leaders = await self._ask_leaders()
            if not leaders:
                await self._cluster.ask(
                    ApiKey.FindCoordinator, _FIND_VERSION, {"key_type": 0, "coordinator_keys": [group_id]}
                )
                leaders = await self._ask_leaders()
        except UpstreamLost as error:
            log.warning("the coordinators of share groups are not known", error=str(error))
            return
        self._leaders, self._leaders_read_at_s = leaders, monotonic()

    async def _ask_leaders(self) -> list[int]:
        """Return the leader of each partition, in order, or an empty list if the topic does not exist."""
        request = {
            "topics": [{"name": _OFFSETS_TOPIC, "topic_id": None}],
            "allow_auto_topic_creation": False,
        }
        answer = await self._cluster.ask(ApiKey.Metadata, _METADATA_VERSION, request)
        (topic,) = answer.topics
        return [p.leader_id for p in sorted(topic.partitions, key=lambda p: int(p.partition_index))]


def share_level_in(versions: Any) -> int:
    """Return the level of the feature `share.version` in a broker's response to ApiVersions."""
    levels = {feature.name: feature.max_version_level for feature in versions.finalized_features or []}
    return int(levels.get(SHARE_VERSION, 0))


_cached_partition = lru_cache(_GROUPS_CACHED)(kafka_partition)


# The creation of the internal topics of streams groups at the brokers.


_CREATE_VERSION = 7
_CREATED = frozenset({0, 36})  # the error codes of an existing topic: none, or TOPIC_ALREADY_EXISTS
# Errors about the client. Its rights may change at any time.
_DENIED = frozenset({GatewayError.TOPIC_AUTHORIZATION_FAILED, GatewayError.CLUSTER_AUTHORIZATION_FAILED})
# The failures of the latest request are all remembered, even if they are more.
_FAILURES_MAX = 1_000
_REASON_MAX_CHARS = 250
_NAMED_MAX = 3  # the number of topics that a log line names

AskBroker = Callable[[int, int, codec.Fields], Awaitable[Any]]
"""Sends a request with this key, version and body to a broker, and returns the response. Raises
UpstreamLost.
"""


class _Failure(Struct, frozen=True):
    """The reason why a topic was not created."""

    reason: str
    is_denied: bool  # for lack of rights, so the topic may be requested again at any time
    until_s: float  # the time until which the failure is remembered


class StreamsTopics:
    """The creation of internal topics.

    A topic is not requested for a principal while the principal's previous request for it is in flight, or
    while its failure is remembered. A failure for lack of rights does not prevent a request.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._own = OwnRequests(cluster)
        self._in_flight: set[tuple[str, str]] = set()
        """The requested topics, by principal and name."""
        self._failures: dict[tuple[str, str], _Failure] = {}
        """By principal and name."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._requested_log = RateLimitedWarning("internal topics requested", level="info")
        self._not_created_warning = RateLimitedWarning("internal topics not created")

    def create(
        self,
        principal: str,
        topics: Iterable[CreatableStreamsTopic],
        ask: AskBroker | None,
        remembered_s: float,
    ) -> None:
        """Create topics for a client in the background.

        The request is sent by `ask`, or as the gateway's own principal if `ask` is None. A broker's refusal
        is remembered for `remembered_s`. A lost connection is not remembered.
        """
        to_request = [topic for topic in topics if self._may_request(principal, topic.name)]
        if not to_request:
            return
        keys = [(principal, topic.name) for topic in to_request]
        self._in_flight.update(keys)
        ask_any_broker = partial(self._own.ask, None)  # no node id
        task = asyncio.create_task(self._create(principal, to_request, ask or ask_any_broker, remembered_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._in_flight.difference_update(keys))

    def failures(self, principal: str, names: Iterable[str]) -> dict[str, str]:
        """Return why the principal could not create topics a short time ago, by name.

        Only topics in `names` are reported.
        """
        failures = ((name, self._recent_failure(principal, name)) for name in names)
        return {name: failure.reason for name, failure in failures if failure is not None}

    def _may_request(self, principal: str, name: str) -> bool:
        failure = self._recent_failure(principal, name)
        return (principal, name) not in self._in_flight and (failure is None or failure.is_denied)

    def _recent_failure(self, principal: str, name: str) -> _Failure | None:
        failure = self._failures.get((principal, name))
        return None if failure is None or failure.until_s <= monotonic() else failure

    def close(self) -> None:
        """Cancel the requests, and close the gateway's connections for them."""
        for task in self._tasks:
            task.cancel()
        self._own.close()

    async def _create(
        self, principal: str, topics: Sequence[CreatableStreamsTopic], ask: AskBroker, remembered_s: float
    ) -> None:
        """Request the creation of topics, and remember the failures."""
        topic_names = listed([topic.name for topic in topics], "topic", _NAMED_MAX)
        try:
            results = await self._request(topics, ask)
        except (UpstreamLost, TimeoutError) as error:
            self._not_created_warning.add(
                topics=topic_names, error=str(error) or "no broker answered in time"
            )
            return
        self._cluster.forget_topics(topic.name for topic in results if topic.error_code in _CREATED)
        until_s = monotonic() + remembered_s
        failed = {
            (principal, topic.name): _Failure(
                _reason(topic), is_denied=topic.error_code in _DENIED, until_s=until_s
            )
            for topic in results
            if topic.error_code not in _CREATED
        }
        self._requested_log.add(topics=topic_names)
        if failed:
            self._remember(failed)
            first_reason = next(iter(failed.values())).reason
            not_created = listed([name for _, name in failed], "topic", _NAMED_MAX)
            self._not_created_warning.add(topics=not_created, error=first_reason)

    async def _request(self, topics: Sequence[CreatableStreamsTopic], ask: AskBroker) -> Sequence[Any]:
        """Request the creation of topics. Raises UpstreamLost, TimeoutError."""
        timeout_s = self._cluster.limits.upstream_timeout_s
        body = await offload.run_if(len(topics) > offload.LONG, _body, topics, timeout_s)
        async with asyncio.timeout(timeout_s):
            answer = await ask(ApiKey.CreateTopics, _CREATE_VERSION, body)
        return list(answer.topics)

    def _remember(self, failed: Mapping[tuple[str, str], _Failure]) -> None:
        """Store failures, and drop the oldest ones if there are too many."""
        for key, failure in failed.items():
            self._failures.pop(key, None)  # so that the latest is last
            self._failures[key] = failure
        stored_max = max(_FAILURES_MAX, len(failed))
        for key in list(self._failures)[:-stored_max]:
            del self._failures[key]


def _reason(result: Any) -> str:
    return (result.error_message or f"error {result.error_code}")[:_REASON_MAX_CHARS]


def _body(topics: Iterable[CreatableStreamsTopic], timeout_s: float) -> codec.Fields:
    return {"topics": [_topic_fields(topic) for topic in topics], "timeout_ms": round(timeout_s * 1_000)}


def _topic_fields(topic: CreatableStreamsTopic) -> codec.Fields:
    return {
        "name": topic.name,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "assignments": [],
        "configs": [{"name": config.key, "value": config.value} for config in topic.topic_configs],
    }
