"""The coordinator, as the connections of one RocketMQ gateway use it."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypedDict

from clients.coordinator_client import (
    BARRIER_VERSION,
    CoordinatorClient,
    Header,
    barrier_request,
    barrier_rounds,
)
from clients.pending import AnyRequest, R
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS, CoordinatorBackend
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.contract.messages import ANONYMOUS
from kafka_why.contract.rocketmq.requests import Unanswered
from kafka_why.contract.rocketmq.responses import AnyToConnection

_CHECK_TIMEOUT_MS = 2_000
_CHECK_AGE_MAX_S = 5.0
# The group in the request of a check. It need not exist.
_CHECKED_GROUP_ID = "__readiness"
_CLIENT_ID = "rocketmq-gateway"
_BARRIER_TIMEOUT_MS = 3_000
_CLOSE_TIMEOUT_S = 5.0
_RETRY_S = 1.0


class RequestFields(TypedDict):
    """The fields of every request: see `kafka_why.contract.rocketmq.requests.Request`."""

    group_id: str
    connection: str
    client_id: str
    correlation_id: str
    reply_partition: int
    broker: str


class ConnectionMessages:
    """The coordinator's messages to connections, on their way from the thread that reads them to the event
    loop. It is the listener of a `CoordinatorClient`.
    """

    def __init__(self) -> None:
        self._messages: deque[AnyToConnection] = deque()
        self._is_woken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Callable[[AnyToConnection], None] | None = None

    def __call__(self, message: AnyToConnection) -> None:
        """Queue a message. Messages that come before `start` are for connections of an earlier start."""
        if self._loop is None:
            return
        self._messages.append(message)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop has ended, and every connection with it
                self._loop.call_soon_threadsafe(self._dispatch)

    def start(self, deliver: Callable[[AnyToConnection], None]) -> None:
        """Deliver the messages from now on, in this event loop."""
        self._deliver, self._loop = deliver, asyncio.get_running_loop()

    def _dispatch(self) -> None:
        assert self._deliver is not None
        self._is_woken = False  # before the drain: a message that comes from now on wakes the loop again
        while self._messages:
            self._deliver(self._messages.popleft())


class CoordinatorRequests:
    """Requests and records of one gateway to the coordinator. Belongs to the event loop."""

    def __init__(self, client: CoordinatorClient, backend: CoordinatorBackend) -> None:
        self._client = client
        self._backend = backend
        self._appending: set[asyncio.Task[None]] = set()

    def about(self, group_id: str, client_id: str, connection: str, broker: str) -> RequestFields:
        """Return the fields of a request, with a new correlation id."""
        return RequestFields(
            group_id=group_id,
            connection=connection,
            client_id=client_id,
            correlation_id=self._client.next_correlation_id(),
            reply_partition=self._client.reply_partition,
            broker=broker,
        )

    def header(self, group_id: str, api_version: int, client_id: str = _CLIENT_ID) -> Header:
        """Return the header of a request about a group of Kafka, with a new correlation id."""
        return self._backend.header(group_id, api_version, client_id, "", ANONYMOUS)

    def send(self, request: AnyRequest[R], timeout_ms: int = ANSWER_TIMEOUT_MS) -> asyncio.Future[R]:
        """Send a request. The future of its response gets one without an id in `request` if there is none,
        and a log line has the reason.
        """
        return self._backend.send(request, timeout_ms)

    async def append(self, record: Unanswered) -> bool:
        """Append a record without an answer. Return False if that failed, and a log line has the reason."""
        return await self._backend.append(record)

    def keep_appending(self, record: Unanswered) -> None:
        """Append a record, after all that was sent before, and try again until it is in the log."""
        first = self._backend.append(record)
        task = asyncio.ensure_future(self._keep_appending(record, first))
        self._appending.add(task)
        task.add_done_callback(self._appending.discard)

    async def check(self) -> str | None:
        """Return the reason why the coordinator is not usable, or None."""
        if time.monotonic() - self._backend.answered_at_s <= _CHECK_AGE_MAX_S:
            return None  # clients keep it busy
        header = self.header(_CHECKED_GROUP_ID, BARRIER_VERSION)
        answer = await self.send(DescribeGroup(**header), _CHECK_TIMEOUT_MS)
        is_away = not answer.request and answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        return "the coordinator does not answer" if is_away else None

    async def wait_for_views(self) -> bool:
        """Wait until the views have what was answered before. Return False if the coordinator does not
        answer.
        """
        for group_ids in barrier_rounds(self._client.request_partitions):
            headers = [self.header(it, BARRIER_VERSION) for it in group_ids]
            sent = [self.send(barrier_request(it), _BARRIER_TIMEOUT_MS) for it in headers]
            if not all(answer.request for answer in await asyncio.gather(*sent)):
                return False
        return True

    async def close(self) -> None:
        """Wait for the records that are being appended, for a short time."""
        if self._appending:
            _, left = await asyncio.wait(self._appending, timeout=_CLOSE_TIMEOUT_S)
            for task in left:
                task.cancel()
        self._backend.close()

    async def _keep_appending(self, record: Unanswered, first: asyncio.Future[bool]) -> None:
        is_written = await first
        while not is_written:
            await asyncio.sleep(_RETRY_S)  # a write may fail at once, without access to the topic
            is_written = await self.append(record)
