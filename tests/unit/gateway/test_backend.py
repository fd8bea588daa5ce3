"""How long a member's request is held by an absent or a slow coordinator."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest
from structlog.testing import capture_logs

from clients.coordinator_client import CoordinatorClient, Header
from clients.pending import ClientClosed, RequestTimedOut
from gateway.coordinator.backend import (
    ANSWER_TIMEOUT_MS,
    PARKED_TIMEOUT_MS,
    AdaptiveTimeout,
    CoordinatorBackend,
    failed,
)
from gateway.wire.limits import Limits
from state.errors import ErrorCode
from state.kafka.requests import Heartbeat, JoinGroup
from state.kafka.responses import HeartbeatResponse, JoinGroupResponse

HELD_S = 0.05
HEADER = Header(
    group_id="g", correlation_id="c", reply_partition=0, api_version=4, client_id="me", client_host="here"
)
BEAT = Heartbeat(**HEADER, generation_id=1, member_id="me-1")
BEATEN = failed(BEAT, HeartbeatResponse, ErrorCode.NONE)


class Log(CoordinatorClient):
    """A client that collects requests in a list. The test answers them in the coordinator's place. Sending
    waits until it is `open`, or is refused.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[int | None, Future[Any]]] = []
        self.refusal: Exception | None = None
        self.open = threading.Event()
        self.open.set()

    def send(self, request: Any, answer: Any, *, timeout_ms: int | None = None) -> Future[Any]:
        if self.refusal is not None:
            raise self.refusal
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self.sent.append((timeout_ms, future))
        assert self.open.wait(10)
        return future

    async def nth(self, number: int) -> Future[Any]:
        """The future of the request of this number, after it was sent."""
        async with asyncio.timeout(10):
            while len(self.sent) <= number:
                await asyncio.sleep(0.001)
        return self.sent[number][1]


def played(test: Callable[[CoordinatorBackend, Log], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        log = Log()
        with closing(CoordinatorBackend(log, Limits(member_held_s=HELD_S))) as backend:
            asyncio.run(test(backend, log))  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


@played
async def test_an_answer_in_time_is_given(backend: CoordinatorBackend, log: Log) -> None:
    asked = asyncio.create_task(backend.ask(BEAT, HeartbeatResponse))
    (await log.nth(0)).set_result(BEATEN)
    assert await asked is BEATEN


@played
async def test_a_coordinator_that_is_away_holds_each_heartbeat_for_a_moment(
    backend: CoordinatorBackend, log: Log
) -> None:
    """Each heartbeat is in the log, as a sign of life, and none keeps the member from its next one."""
    for number in range(3):
        answer = await backend.ask(BEAT, HeartbeatResponse)
        assert answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert not (await log.nth(number)).done()
    assert [timeout_ms for timeout_ms, _ in log.sent] == [ANSWER_TIMEOUT_MS] * 3


@played
async def test_a_slow_coordinator_is_waited_for_once_it_is_known_to_be_slow(
    backend: CoordinatorBackend, log: Log
) -> None:
    answer = await backend.ask(BEAT, HeartbeatResponse)
    assert answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await asyncio.sleep(10 * HELD_S)
    (await log.nth(0)).set_result(BEATEN)
    asked = asyncio.create_task(backend.ask(BEAT, HeartbeatResponse))
    second = await log.nth(1)
    await asyncio.sleep(2 * HELD_S)
    second.set_result(BEATEN)
    assert await asked is BEATEN


@played
async def test_what_is_parked_is_waited_for(backend: CoordinatorBackend, log: Log) -> None:
    join = JoinGroup(
        **HEADER,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[],
    )
    asked = asyncio.create_task(backend.ask(join, JoinGroupResponse, PARKED_TIMEOUT_MS))
    parked = await log.nth(0)
    held = asyncio.create_task(backend.ask(BEAT, HeartbeatResponse))
    assert (await held).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not asked.done()
    joined = failed(join, JoinGroupResponse, ErrorCode.MEMBER_ID_REQUIRED)
    parked.set_result(joined)
    assert await asked is joined


@played
async def test_what_was_given_up_before_it_was_sent_is_not_sent(
    backend: CoordinatorBackend, log: Log
) -> None:
    """Sending waits for an unreachable broker. Requests without a caller must not pile up."""
    log.open.clear()
    first = asyncio.create_task(backend.ask(BEAT, HeartbeatResponse))
    assert (await backend.ask(BEAT, HeartbeatResponse)).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await first).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    third = asyncio.create_task(backend.ask(BEAT, HeartbeatResponse, ANSWER_TIMEOUT_MS))
    await asyncio.sleep(0)
    log.open.set()
    (await log.nth(1)).set_result(BEATEN)
    assert await third is BEATEN
    assert len(log.sent) == 2


@played
async def test_a_request_that_cannot_be_sent_has_an_answer(backend: CoordinatorBackend, log: Log) -> None:
    log.refusal = ClientClosed("the client was closed")
    with capture_logs() as logs:
        answer = await backend.ask(BEAT, HeartbeatResponse)
    assert answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert logs == []


@played
async def test_all_that_hear_of_no_coordinator_are_one_log_line(
    backend: CoordinatorBackend, log: Log
) -> None:
    with capture_logs() as logs:
        await asyncio.gather(*(backend.ask(BEAT, HeartbeatResponse) for _ in range(300)))
        async with asyncio.timeout(10):
            while len(logs) < 2:
                await asyncio.sleep(0.01)
    assert [entry["event"] for entry in logs] == ["no answer from the coordinator"] * 2
    assert [entry["requests"] for entry in logs] == [1, 299]
    assert logs[0]["error"] == "Heartbeat for group 'g' was held for 50 ms"


@played
async def test_a_group_id_is_logged_short(backend: CoordinatorBackend, log: Log) -> None:
    long_id = "\u2028" * 30_000
    with capture_logs() as logs:
        header: Header = {**HEADER, "group_id": long_id}
        await backend.ask(Heartbeat(**header, generation_id=1, member_id="me-1"), HeartbeatResponse)
        log.refusal = RequestTimedOut(f"Heartbeat for group {long_id!r} had no answer within 5 ms")
        await backend.ask(BEAT, HeartbeatResponse)
        async with asyncio.timeout(10):
            while len(logs) < 2:
                await asyncio.sleep(0.01)
    assert "(30000 characters) was held for 50 ms" in logs[0]["error"]
    assert max(len(entry["error"]) for entry in logs) <= 500


@pytest.mark.parametrize(
    ("took_ms", "bound_ms"),
    [(0, 3_000), (700, 3_000), (1_500, 3_000), (1_501, 3_002), (4_000, 8_000), (60_000, ANSWER_TIMEOUT_MS)],
)
def test_patience(took_ms: int, bound_ms: int) -> None:
    timeout = AdaptiveTimeout(3_000)
    timeout.learn(took_ms)
    assert timeout.bound_ms == bound_ms
    timeout.learn(400)
    assert timeout.bound_ms == 3_000
