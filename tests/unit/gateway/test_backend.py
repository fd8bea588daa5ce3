"""Requests at the gateway's backend, and how long an absent or slow coordinator holds them."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from itertools import count
from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey
from structlog.testing import capture_logs

from clients.coordinator_client import CoordinatorClient, Header
from clients.pending import ClientClosed, PendingRequest, PendingRequests, RequestTooLarge
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS, PARKED_TIMEOUT_MS, CoordinatorBackend
from gateway.coordinator.failures import error_response
from gateway.limits import Limits
from gateway.upstream.connections import CLIENT_ID, Upstream, UpstreamLost
from gateway.wire import codec
from kafka_why.contract.kafka.requests import Heartbeat, JoinGroup, OversizedRequest
from kafka_why.contract.kafka.responses import HeartbeatResponse, JoinGroupResponse
from kafka_why.contract.messages import ErrorCode
from tests.harness.gateway import GatewayFixture, topic_id
from tests.harness.gateway import played as gateway_played
from tests.harness.waiting import until

HELD_S = 0.2
_numbers = count()


class Log(CoordinatorClient):
    """A client that collects requests in a list instead of the topic. The test answers them in the
    coordinator's place.
    """

    def __init__(self) -> None:
        self.pending = PendingRequests("")
        self.sent: list[PendingRequest] = []
        self.turns: list[int] = []
        """How many requests were sent together."""
        self.refusal: Exception | None = None
        self.reply_partition = 0

    def next_correlation_id(self) -> str:
        return f"c-{next(_numbers)}"

    def send_all(self, requests: Sequence[PendingRequest]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.pending.add(requests)
        self.sent += requests
        self.turns.append(len(requests))

    def forget(self, request: PendingRequest) -> None:
        self.pending.forget(request)

    async def nth(self, number: int) -> PendingRequest:
        """Return the request of this number, after it was sent."""
        await until(lambda: len(self.sent) > number)
        return self.sent[number]

    def answer(self, *several: PendingRequest) -> None:
        """Settle requests as the client's reader does: at once, on a thread of its own."""
        responses: list[Any] = [beaten(request.request) for request in several]
        thread = threading.Thread(target=self.pending.settle, args=(responses,))
        thread.start()
        thread.join()


def header() -> Header:
    return Header(
        group_id="g",
        correlation_id=f"c-{next(_numbers)}",
        reply_partition=0,
        api_version=4,
        client_id="me",
        client_host="here",
    )


def beat(group_id: str = "g") -> Heartbeat:
    own: Header = {**header(), "group_id": group_id}
    return Heartbeat(**own, generation_id=1, member_id="me-1")


def beaten(request: Any) -> HeartbeatResponse:
    answer: HeartbeatResponse = error_response(request, ErrorCode.NONE)
    return answer


def played(test: Callable[[CoordinatorBackend, Log], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        log = Log()
        with closing(CoordinatorBackend(log, Limits(member_held_s=HELD_S))) as backend:
            asyncio.run(test(backend, log))  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


@played
async def test_requests_of_one_loop_iteration_are_sent_together_and_in_order(
    backend: CoordinatorBackend, log: Log
) -> None:
    requests = [beat() for _ in range(100)]
    futures = [backend.send(request) for request in requests]
    await asyncio.sleep(0)
    assert log.turns == [100]
    assert [waiting.request for waiting in log.sent] == requests
    log.answer(*log.sent)
    assert await asyncio.gather(*futures) == [beaten(request) for request in requests]


@played
async def test_cancelled_request_is_not_written(backend: CoordinatorBackend, log: Log) -> None:
    """A write may wait for an unreachable broker. Requests without a caller must not pile up."""
    cancelled = asyncio.create_task(backend.ask(beat(), ANSWER_TIMEOUT_MS))
    waits = asyncio.create_task(backend.ask(beat(), ANSWER_TIMEOUT_MS))
    answer = await backend.ask(beat())
    assert answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    cancelled.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled
    assert [waiting.is_wanted() for waiting in log.sent] == [False, False, True]
    log.answer(log.sent[2])
    assert (await waits).error_code is ErrorCode.NONE


@played
async def test_cancelled_request_is_no_longer_pending(backend: CoordinatorBackend, log: Log) -> None:
    """A JoinGroup would be kept for the client's rebalance timeout, up to 24.8 days."""
    kept = [
        asyncio.create_task(backend.ask(beat(), timeout_ms))
        for timeout_ms in (None, ANSWER_TIMEOUT_MS, 2**31 - 1)
    ]
    await log.nth(2)
    assert len(log.pending) == 3
    for asked in kept:
        asked.cancel()
    await asyncio.wait(kept)
    assert len(log.pending) == 0
    backend.send(beat()).cancel()
    backend.send(beat("other"))
    await log.nth(3)
    assert [waiting.request.group_id for waiting in log.sent[3:]] == ["other"]


@played
async def test_unsendable_request_is_answered_with_an_error(backend: CoordinatorBackend, log: Log) -> None:
    log.refusal = ClientClosed("the client was closed")
    with capture_logs() as logs:
        answer = await backend.ask(beat())
    assert answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert logs == []
    log.refusal = OSError("no more memory")
    with capture_logs() as logs:
        answer = await backend.ask(beat())
    assert answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert logs[0]["error"] == "OSError('no more memory')"


@played
async def test_coordinator_is_notified_of_an_oversized_join(backend: CoordinatorBackend, log: Log) -> None:
    join = JoinGroup(
        **header(), session_timeout_ms=1, rebalance_timeout_ms=1, protocol_type="consumer", protocols=[]
    )
    asked = asyncio.create_task(backend.ask(join, PARKED_TIMEOUT_MS))
    with capture_logs() as logs:
        log.pending.fail([await log.nth(0)], RequestTooLarge("the record has 9 bytes", 9, 8))
        notice = await log.nth(1)
    assert isinstance(notice.request, OversizedRequest)
    assert (notice.request.kind, notice.request.size_bytes, notice.request.max_bytes) == ("JoinGroup", 9, 8)
    assert [(line["size_bytes"], line["max_bytes"]) for line in logs] == [(9, 8)]
    log.answer(notice)
    answer = await asked
    assert (type(answer), answer.error_code) == (JoinGroupResponse, ErrorCode.UNKNOWN_SERVER_ERROR)


@played
async def test_long_group_id_is_shortened_in_logs(backend: CoordinatorBackend, log: Log) -> None:
    long_id = "\u2028" * 30_000
    with capture_logs() as logs:
        await backend.ask(beat(long_id))
        asked = asyncio.create_task(backend.ask(beat(long_id), 5))
        await log.nth(1)
        log.pending.expire(time.monotonic() + 1.0)
        await asked
        await until(lambda: len(logs) >= 2)
    assert "(30000 characters) was held for " in logs[0]["error"]
    assert max(len(entry["error"]) for entry in logs) <= 500


@gateway_played
async def test_concurrent_callers_share_a_metadata_request(world: GatewayFixture) -> None:
    names = [f"topic-{number}" for number in range(1_000)]
    world.broker.topics |= dict.fromkeys(names, 1)
    before = world.broker.metadata_requests
    found = await asyncio.gather(*(world.cluster.describe_topics([name], 1.0) for name in names))
    assert [[*topics] for topics in found] == [[name] for name in names]
    by_id = await asyncio.gather(*(world.cluster.topics_by_id([topic_id(name)], 0.0) for name in names))
    assert [[topic.name for topic in topics.values()] for topics in by_id] == [[name] for name in names]
    assert world.broker.metadata_requests - before <= 4


@gateway_played
async def test_cache_of_absent_topic_names_is_bounded(world: GatewayFixture) -> None:
    """Clients choose the names, and the oldest are forgotten first."""
    for first in range(0, 12_000, 6_000):
        names = [f"absent-{number}" for number in range(first, first + 6_000)]
        assert await world.cluster.topics(names) == {}
    assert world.cached_topics() <= 10_000
    assert world.cluster.cached_topics(["absent-11999"], 30.0) == {}
    for first in range(0, 12_000, 6_000):
        ids = [topic_id(f"absent-{number}") for number in range(first, first + 6_000)]
        assert await world.cluster.topics_by_id(ids, 30.0) == {}
    assert world.cached_topics() <= 20_000
    assert await world.cluster.topics(["orders"])


BODY = {"topics": [], "allow_auto_topic_creation": False}
REQUEST = codec.encode_request(ApiKey.Metadata, 12, 1, CLIENT_ID, BODY)


@gateway_played
async def test_broker_request_timeout_closes_its_connection(world: GatewayFixture) -> None:
    """Also a cancelled one: its late response would be taken for that to the next request."""
    upstream = await Upstream.open(world.broker.address, Limits(upstream_timeout_s=0.05))
    other = await Upstream.open(world.broker.address, Limits())
    for _ in range(2):
        assert codec.decode_response(ApiKey.Metadata, 12, await other.request(REQUEST)).brokers
    world.broker.silent = True
    with pytest.raises(UpstreamLost, match=r"the broker at .* is lost: no answer within 0\.05 s"):
        await upstream.request(REQUEST)
    request = asyncio.create_task(other.request(REQUEST))
    await asyncio.sleep(0)
    assert not other.ended
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await until(lambda: upstream.ended and other.ended)
