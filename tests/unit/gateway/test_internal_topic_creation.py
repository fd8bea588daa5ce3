"""The creation of internal topics by several principals, and what is remembered of its failures."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.limits import Limits
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost
from gateway.upstream.share_groups import StreamsTopics
from gateway.wire import codec
from kafka_why.contract.kafka.streams_responses import CreatableStreamsTopic
from tests.harness.waiting import asynchronous

OTHER, EXISTS, DENIED, DENIED_ON_CLUSTER = 37, 36, 29, 31


class Creations:
    """Creations whose requests all get the same error, or a lost connection for None. `requested` counts the
    requests for each topic.
    """

    def __init__(self, error: int | None) -> None:
        self.topics = StreamsTopics(Cluster([], Limits()))
        self.requested = Counter[str]()
        self.answering = asyncio.Event()
        self.answering.set()
        self._error = error

    async def ask(self, api_key: int, version: int, body: codec.Fields) -> Any:
        names = [topic["name"] for topic in body["topics"]]
        self.requested.update(names)
        await self.answering.wait()
        if self._error is None:
            raise UpstreamLost("lost")
        found = [SimpleNamespace(name=name, error_code=self._error, error_message="no") for name in names]
        return SimpleNamespace(topics=found)

    def start(self, principal: str, *names: str) -> None:
        topics = [CreatableStreamsTopic(name, 1, 1, []) for name in names]
        self.topics.create(principal, topics, self.ask, remembered_s=60)

    async def finish(self, principal: str, *names: str) -> None:
        self.start(principal, *names)
        await asyncio.gather(*self.topics._tasks)


@asynchronous
async def test_failed_topic_creation_of_one_principal_does_not_block_others() -> None:
    creations = Creations(OTHER)
    await creations.finish("User:ann", "t")
    await creations.finish("User:ann", "t")
    assert creations.requested["t"] == 1
    assert creations.topics.failures("User:bob", ["t"]) == {}
    await creations.finish("User:bob", "t")
    assert creations.requested["t"] == 2
    creations.topics.close()


@asynchronous
async def test_pending_topic_creation_of_one_principal_does_not_block_others() -> None:
    creations = Creations(0)
    creations.answering.clear()
    for principal in ("User:ann", "User:ann", "User:bob"):
        creations.start(principal, "t")
        await asyncio.sleep(0)
    assert creations.requested["t"] == 2
    creations.answering.set()
    await asyncio.gather(*creations.topics._tasks)


@pytest.mark.parametrize(
    ("error", "reasons"), [(EXISTS, {}), (DENIED, {"t": "no"}), (DENIED_ON_CLUSTER, {"t": "no"}), (None, {})]
)
@asynchronous
async def test_denied_or_lost_topic_creation_is_retried(error: int | None, reasons: dict[str, str]) -> None:
    creations = Creations(error)
    await creations.finish("User:ann", "t")
    assert creations.topics.failures("User:ann", ["t"]) == reasons
    await creations.finish("User:ann", "t")
    assert creations.requested["t"] == 2


@asynchronous
async def test_all_failed_topic_creations_are_remembered_and_three_are_logged() -> None:
    creations, names = Creations(OTHER), [f"t{index}" for index in range(1_500)]
    with capture_logs() as lines:
        await creations.finish("User:ann", *names)
        await creations.finish("User:ann", *names)
    assert set(creations.requested.values()) == {1}
    failed = [line["topics"] for line in lines if line["event"] == "internal topics not created"]
    assert failed == ["t0, t1, t2 and 1497 more topics"]
