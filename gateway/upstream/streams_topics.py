"""The creation of the internal topics of streams groups at the brokers (rows KST16 to KST21). The
coordinator requests it with each answer while topics are missing. Source: DefaultAutoTopicCreationManager.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from kafka.protocol.api_key import ApiKey
from msgspec import Struct

from gateway.log_text import RateLimitedWarning
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost
from gateway.upstream.transactions import OwnRequests
from gateway.wire import codec, offload
from gateway.wire.codec import GatewayError
from kafka_why.contract.kafka.streams_responses import CreatableStreamsTopic
from kafka_why.contract.kafka.wording import listed

_CREATE_VERSION = 7
_CREATED = frozenset({0, 36})  # 36 is TOPIC_ALREADY_EXISTS
# Errors about the client. Its rights may change at any time.
_DENIED = frozenset({GatewayError.TOPIC_AUTHORIZATION_FAILED, GatewayError.CLUSTER_AUTHORIZATION_FAILED})
# The failures of the latest request are all remembered, even if they are more.
_FAILURES_MAX = 1_000
_REASON_MAX_CHARS = 250
_NAMED_MAX = 3

AskBroker = Callable[[int, int, codec.Fields], Awaitable[Any]]
"""Sends a request with this key, version and body to a broker, and returns the response. Raises
UpstreamLost.
"""


class _Failure(Struct, frozen=True):
    """The reason why a topic was not created, remembered until a time of the event loop."""

    reason: str
    is_denied: bool  # the topic may be requested again before
    until_s: float


class StreamsTopics:
    """The creation of internal topics.

    A principal does not request topics again that it is creating, or that it could not create a short time
    ago.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._own = OwnRequests(cluster)
        self._in_flight: set[tuple[str, str]] = set()
        """Principals and names of topics."""
        self._failures: dict[tuple[str, str], _Failure] = {}
        """By principal and name."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._requested = RateLimitedWarning("internal topics requested", level="info")
        self._not_created = RateLimitedWarning("internal topics not created")

    def create(
        self,
        principal: str,
        topics: Iterable[CreatableStreamsTopic],
        ask: AskBroker | None,
        remembered_s: float,
    ) -> None:
        """Create topics for a client in the background.

        The requests are the client's (`ask`), or of the gateway's own principal. A broker's refusal is
        remembered for `remembered_s`. A lost connection is not remembered.
        """
        wanted = [topic for topic in topics if self._may_request(principal, topic.name)]
        if not wanted:
            return
        keys = [(principal, topic.name) for topic in wanted]
        self._in_flight.update(keys)
        task = asyncio.create_task(self._create(principal, wanted, ask or self._ask_any, remembered_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._in_flight.difference_update(keys))

    def failures(self, principal: str, names: Iterable[str]) -> dict[str, str]:
        """Return the reasons why the principal could not create topics among these a short time ago, by
        name.
        """
        found = ((name, self._recent(principal, name)) for name in names)
        return {name: failure.reason for name, failure in found if failure is not None}

    def _may_request(self, principal: str, name: str) -> bool:
        failure = self._recent(principal, name)
        return (principal, name) not in self._in_flight and (failure is None or failure.is_denied)

    def _recent(self, principal: str, name: str) -> _Failure | None:
        failure = self._failures.get((principal, name))
        return None if failure is None or failure.until_s <= _now_s() else failure

    def close(self) -> None:
        """Cancel the requests, and close the gateway's connections for them."""
        for task in self._tasks:
            task.cancel()
        self._own.close()

    async def _ask_any(self, api_key: int, version: int, body: codec.Fields) -> Any:
        return await self._own.ask(None, api_key, version, body)

    async def _create(
        self, principal: str, topics: Sequence[CreatableStreamsTopic], ask: AskBroker, remembered_s: float
    ) -> None:
        names = [topic.name for topic in topics]
        shown = listed(names, "topic", _NAMED_MAX)
        try:
            results = await self._request(topics, ask)
        except (UpstreamLost, TimeoutError) as error:
            self._not_created.add(topics=shown, error=str(error) or "no broker answered in time")
            return
        self._cluster.forget_topics(topic.name for topic in results if topic.error_code in _CREATED)
        until_s = _now_s() + remembered_s
        failed = {
            (principal, topic.name): _Failure(_reason(topic), topic.error_code in _DENIED, until_s)
            for topic in results
            if topic.error_code not in _CREATED
        }
        self._requested.add(topics=shown)
        if failed:
            self._remember(failed)
            first = next(iter(failed.values())).reason
            not_created = listed([name for _, name in failed], "topic", _NAMED_MAX)
            self._not_created.add(topics=not_created, error=first)

    async def _request(self, topics: Sequence[CreatableStreamsTopic], ask: AskBroker) -> Sequence[Any]:
        """Request the creation of topics. Raises UpstreamLost, TimeoutError."""
        timeout_s = self._cluster.limits.upstream_timeout_s
        if len(topics) > offload.LONG:
            body = await offload.run(_body, topics, timeout_s)
        else:
            body = _body(topics, timeout_s)
        async with asyncio.timeout(timeout_s):
            answer = await ask(ApiKey.CreateTopics, _CREATE_VERSION, body)
        results: Sequence[Any] = answer.topics
        return results

    def _remember(self, failed: Mapping[tuple[str, str], _Failure]) -> None:
        for key, failure in failed.items():
            self._failures.pop(key, None)  # the latest is last
            self._failures[key] = failure
        for key in list(self._failures)[: -max(_FAILURES_MAX, len(failed))]:
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


def _now_s() -> float:
    return asyncio.get_running_loop().time()
