"""The coordinator, as the connections of one RocketMQ gateway use it."""

import asyncio
import time
from collections import defaultdict, deque
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
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.contract.messages import ANONYMOUS, ErrorCode
from kafka_why.contract.rocketmq.requests import AnyToConnection, ConnectionClosed, Unanswered

_CHECK_TIMEOUT_MS = 2_000
_CHECK_AGE_MAX_S = 5.0
# The group in the request of a check. It need not exist.
_CHECKED_GROUP_ID = "__readiness"
_CLIENT_ID = "rocketmq-gateway"
_BARRIER_TIMEOUT_MS = 3_000
_CLOSE_TIMEOUT_S = 5.0
_RETRY_S = 1.0
_CLOSED_MAX = 1_000
"""The maximum number of connections in one record, which limits the record's size."""


class RequestFields(TypedDict):
    """The fields of every request (`kafka_why.contract.rocketmq.requests.Request`)."""

    group_id: str
    connection: str
    client_id: str
    correlation_id: str
    reply_partition: int
    broker: str


class ConnectionMessages:
    """A queue of the coordinator's messages to connections.

    It leads from the thread that reads them to the event loop, and is the listener of a `CoordinatorClient`.
    """

    def __init__(self) -> None:
        self._messages: deque[AnyToConnection] = deque()
        self._is_woken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Callable[[AnyToConnection], None] | None = None

    def __call__(self, message: AnyToConnection) -> None:
        """Queue a message. Messages before `start` are for connections of an earlier start, and dropped."""
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
        self._is_woken = False  # before the drain, so that later messages wake the loop again
        while self._messages:
            self._deliver(self._messages.popleft())


class CoordinatorRequests:
    """Requests and records of one gateway to the coordinator. Use it on the event loop's thread."""

    def __init__(self, client: CoordinatorClient, backend: CoordinatorBackend) -> None:
        self._client = client
        self._backend = backend
        self._appending: set[asyncio.Task[None]] = set()
        self._closed: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        """The connections that have ended in this turn of the event loop, by group and reason."""

    def about(self, group_id: str, client_id: str, connection: str, broker: str) -> RequestFields:
        """Return the fields of a request about a group, with a new correlation id."""
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
        """Send a request. If no response comes, the future gets a response with an empty `request`, and the
        reason is logged.
        """
        return self._backend.send(request, timeout_ms)

    async def append(self, record: Unanswered) -> bool:
        """Append a record that gets no answer. If that fails, log the reason and return False."""
        return await self._backend.append(record)

    def close_connection(self, group_id: str, connection: str, reason: str) -> None:
        """Append CONNECTION_CLOSED after all earlier records, and try again until it is in the log.

        The connections that end in one turn of the event loop are in one record, because each record notifies
        all connections that are left. When a broker ends, all connections to it end.
        """
        if not self._closed:
            asyncio.get_running_loop().call_soon(self._append_closed)
        self._closed[group_id, reason].append(connection)

    def _append_closed(self) -> None:
        closed, self._closed = self._closed, defaultdict(list)
        for (group_id, reason), connections in closed.items():
            for at in range(0, len(connections), _CLOSED_MAX):
                first, *others = connections[at : at + _CLOSED_MAX]
                self._keep_appending(
                    ConnectionClosed(group_id=group_id, connection=first, others=tuple(others), reason=reason)
                )

    def _keep_appending(self, record: Unanswered) -> None:
        first = self._backend.append(record)
        task = asyncio.ensure_future(self._append_again(record, first))
        self._appending.add(task)
        task.add_done_callback(self._appending.discard)

    async def check(self) -> str | None:
        """Return the reason why the coordinator is not usable, or None."""
        if time.monotonic() - self._backend.answered_at_s <= _CHECK_AGE_MAX_S:
            return None  # clients' requests have shown it
        header = self.header(_CHECKED_GROUP_ID, BARRIER_VERSION)
        answer = await self.send(DescribeGroup(**header), _CHECK_TIMEOUT_MS)
        is_away = not answer.request and answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        return "the coordinator does not answer" if is_away else None

    async def wait_for_views(self) -> bool:
        """Wait until the views have everything that was answered before. Return False if the coordinator does
        not answer.
        """
        for group_ids in barrier_rounds(self._client.request_partitions):
            headers = [self.header(it, BARRIER_VERSION) for it in group_ids]
            sent = [self.send(barrier_request(it), _BARRIER_TIMEOUT_MS) for it in headers]
            if not all(answer.request for answer in await asyncio.gather(*sent)):
                return False
        return True

    async def close(self) -> None:
        """Wait for the records that are being appended, for a short time."""
        self._append_closed()
        if self._appending:
            _, left = await asyncio.wait(self._appending, timeout=_CLOSE_TIMEOUT_S)
            for task in left:
                task.cancel()
        self._backend.close()

    async def _append_again(self, record: Unanswered, first: asyncio.Future[bool]) -> None:
        is_written = await first
        while not is_written:
            await asyncio.sleep(_RETRY_S)  # a write may fail at once, without access to the topic
            is_written = await self.append(record)
