"""The creation of the internal topics of streams groups at the brokers (rows KST16 to KST21). The
coordinator requests it with each answer while topics are missing. Source: DefaultAutoTopicCreationManager.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog
from kafka.protocol.api_key import ApiKey
from msgspec import Struct

from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost
from gateway.upstream.transactions import OwnRequests
from gateway.wire import codec
from kafka_why.contract.kafka.streams_responses import CreatableStreamsTopic

_CREATE_VERSION = 7
_TOPIC_ALREADY_EXISTS = 36
_FAILURES_MAX = 1_000

log = structlog.get_logger()

AskBroker = Callable[[int, int, codec.Fields], Awaitable[Any]]
"""Sends a request with this key, version and body to a broker, and returns the response. Raises
UpstreamLost.
"""


class _Failure(Struct, frozen=True):
    """The reason why a topic was not created, remembered until a time of the event loop."""

    reason: str
    until_s: float


class StreamsTopics:
    """The creation of internal topics. Topics that are being created, or could not be created a short time
    ago, are not requested again.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._own = OwnRequests(cluster)
        self._in_flight: set[str] = set()
        self._failures: dict[str, _Failure] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def create(
        self, topics: Iterable[CreatableStreamsTopic], ask: AskBroker | None, remembered_s: float
    ) -> None:
        """Create topics in the background, by requests of the client (`ask`) or of the gateway's own
        principal. A failure is remembered for `remembered_s`.
        """
        failed = self.failures(topic.name for topic in topics)
        wanted = [t for t in topics if t.name not in self._in_flight and t.name not in failed]
        if not wanted:
            return
        self._in_flight.update(topic.name for topic in wanted)
        task = asyncio.create_task(self._create(wanted, ask or self._ask_any, remembered_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def failures(self, names: Iterable[str]) -> dict[str, str]:
        """Return the reasons why topics among these could not be created a short time ago, by name."""
        recent = [(name, self._failures[name]) for name in names if name in self._failures]
        now_s = _now_s()
        return {name: failure.reason for name, failure in recent if failure.until_s > now_s}

    def close(self) -> None:
        """Cancel the requests, and close the gateway's connections for them."""
        for task in self._tasks:
            task.cancel()
        self._own.close()

    async def _ask_any(self, api_key: int, version: int, body: codec.Fields) -> Any:
        return await self._own.ask(None, api_key, version, body)

    async def _create(
        self, topics: Sequence[CreatableStreamsTopic], ask: AskBroker, remembered_s: float
    ) -> None:
        names = [topic.name for topic in topics]
        try:
            failed = await self._request(topics, ask)
        except (UpstreamLost, TimeoutError) as error:
            failed = dict.fromkeys(names, str(error) or "no broker answered in time")
        finally:
            self._in_flight.difference_update(names)
        self._remember(failed, _now_s() + remembered_s)
        log.info("internal topics requested", topics=names, failed=failed)

    async def _request(self, topics: Iterable[CreatableStreamsTopic], ask: AskBroker) -> dict[str, str]:
        """Request the creation of topics. Return the reasons of failures by name. Raises UpstreamLost,
        TimeoutError.
        """
        timeout_s = self._cluster.limits.upstream_timeout_s
        body = {"topics": [_topic_fields(topic) for topic in topics], "timeout_ms": round(timeout_s * 1_000)}
        async with asyncio.timeout(timeout_s):
            answer = await ask(ApiKey.CreateTopics, _CREATE_VERSION, body)
        return {
            topic.name: topic.error_message or f"error {topic.error_code}"
            for topic in answer.topics
            if topic.error_code not in (0, _TOPIC_ALREADY_EXISTS)
        }

    def _remember(self, failed: Mapping[str, str], until_s: float) -> None:
        for name, reason in failed.items():
            self._failures.pop(name, None)  # the latest is last
            self._failures[name] = _Failure(reason, until_s)
        for name in list(self._failures)[: max(0, len(self._failures) - _FAILURES_MAX)]:
            del self._failures[name]


def _topic_fields(topic: CreatableStreamsTopic) -> codec.Fields:
    return {
        "name": topic.name,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "assignments": [],
        "configs": [{"name": config.key, "value": config.value} for config in topic.topic_configs],
    }


def _now_s() -> float:
    return asyncio.get_running_loop().time()
