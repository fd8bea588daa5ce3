"""The coordinator, as the connections of one RocketMQ gateway use it."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypedDict, TypeVar

from clients.coordinator_client import (
    BARRIER_VERSION,
    CoordinatorClient,
    Header,
    barrier_request,
    barrier_rounds,
)
from clients.pending import AnyRequest, R
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS, CoordinatorBackend
from gateway.rocketmq.brokers import BrokerAddress
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.contract.messages import ANONYMOUS, ErrorCode
from kafka_why.contract.rocketmq.requests import (
    AnyToConnection,
    ConnectionClosed,
    RegisterConsumer,
    RegisterProducer,
    Response,
    SubscriptionGroupConfig,
    Unanswered,
)
from kafka_why.remoting.bodies import HeartbeatData
from kafka_why.remoting.frames import Header as FrameHeader
from kafka_why.remoting.frames import encode_frame, response_to
from kafka_why.remoting.strict_json import MalformedFrame

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


# A client's connection to a broker port, the client's requests about groups, and their order.


ANSWER_WAIT_S = 2.8
"""Less than the 3,000 ms that a client gives most requests (mqClientApiTimeout)."""
_NAME_MAX_LENGTH = 255

Answer = TypeVar("Answer", bound=Response)

AskBroker = Callable[[], Awaitable[tuple[FrameHeader, bytes]]]
"""Passes the client's own bytes to the broker, and returns the broker's answer. Raises ConnectionError."""


class ConnectedClient(NamedTuple):
    """A client's connection to a broker port.

    `send` writes a frame to the client, and `close` ends the connection for a reason.
    """

    connection: str  # a name that no other connection has ever had
    broker: BrokerAddress
    address: str
    send: Callable[[bytes], None]
    close: Callable[[str], None]


class Exchange:
    """A request of the client, and the time since its arrival."""

    def __init__(self, request: FrameHeader, body: bytes, ask_broker: AskBroker) -> None:
        self.request = request
        self.body = body
        self._ask_broker = ask_broker
        self._arrived_at_s = time.monotonic()

    def required_field(self, field: str) -> str:
        """Return a field that the request's header must have. Raises MalformedFrame."""
        if (value := self.request.ext_fields.get(field)) is None:
            raise MalformedFrame(f"the custom field <{field}> is null")
        if len(value) > _NAME_MAX_LENGTH:
            raise MalformedFrame(f"the custom field <{field}> has {len(value)} characters")
        return value

    async def ask_broker(self, until_s: float | None = ANSWER_WAIT_S) -> tuple[FrameHeader, bytes]:
        """Return the broker's answer. Raises ConnectionError, and TimeoutError if none has come `until_s`
        after the request's arrival.
        """
        async with asyncio.timeout(None if until_s is None else max(self._left_s(until_s), 0)):
            return await self._ask_broker()

    async def wait_for(self, asked: Iterable[asyncio.Future[Answer]], until_s: float = ANSWER_WAIT_S) -> bool:
        """Wait for the coordinator's responses until `until_s` after the request's arrival.

        Return True if all have come. Responses that are still missing are not cancelled.
        """
        if not (futures := list(asked)):
            return True
        _, waiting = await asyncio.wait(futures, timeout=max(self._left_s(until_s), 0))
        return not waiting and all(future.result().request for future in futures)

    def _left_s(self, until_s: float) -> float:
        return self._arrived_at_s + until_s - time.monotonic()

    def answer(self, code: int = 0, remark: str | None = None, body: bytes = b"") -> bytes:
        """Return the frame of an answer."""
        return encode_frame(response_to(self.request, code, remark), body)


# The order of one connection's requests about a group.


class GroupOrder:
    """The turns of requests about groups.

    A turn begins when all earlier turns about the same groups have ended. A request takes its turn when it
    arrives, and ends the turn when its records are sent to the coordinator. So the records about a group are
    in the log in the order of the requests, and a request that waits for a broker delays only requests about
    its own groups.
    """

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def turn(self, group_ids: Iterable[str]) -> AsyncIterator[None]:
        """Wait for the turn of a request about these groups, and end the turn with the block.

        Turns are in the order of the calls.
        """
        groups, ended = dict.fromkeys(group_ids), asyncio.Event()
        earlier = {self._last[group_id] for group_id in groups if group_id in self._last}
        self._last.update(dict.fromkeys(groups, ended))
        try:
            for other in earlier:
                await other.wait()
            yield
        finally:
            ended.set()
            for group_id in groups:
                if self._last.get(group_id) is ended:
                    del self._last[group_id]


# Split of a client's heartbeat for all its groups into one record for each group.
#
# Each group has its own state under its own key, so a record with several groups cannot reach them. Each
# group stores the time of its own last heartbeat. In RocketMQ the groups of a connection share that time: a
# group that later heartbeats of the connection omit lives on in RocketMQ, and expires here.
#
# Source: ClientManageProcessor.java, HeartbeatData.java.


CLIENT_INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
"""The producer group of every Java client. It gets no records, because one key would have the heartbeats of
all clients, and nothing needs them.
"""


class ConnectionFields(TypedDict):
    """The fields of a heartbeat about its connection."""

    client_address: str
    gateway: str
    gateway_start: str


def split_heartbeat(
    heartbeat: HeartbeatData,
    request: FrameHeader,
    about: Callable[[str, str], RequestFields],
    gateway: ConnectionFields,
    group_configs: Mapping[str, SubscriptionGroupConfig | None],
) -> list[RegisterConsumer | RegisterProducer]:
    """Return one request for each group, consumers first. `about` returns the common fields for a group id
    and a client id.
    """
    common: dict[str, Any] = {
        "heartbeat_fingerprint": heartbeat.heartbeat_fingerprint,
        "language": request.language,
        "client_version": request.version,
        **gateway,
    }
    consumers = [
        RegisterConsumer(
            **about(data.group_name, heartbeat.client_id),
            **common,
            message_model=data.message_model,
            consume_type=data.consume_type,
            consume_from_where=data.consume_from_where,
            subscription_data_set=data.subscription_data_set,
            is_without_sub=heartbeat.is_without_sub,
            group_config=group_configs[data.group_name],
        )
        for data in heartbeat.consumer_data_set
    ]
    producers = [
        RegisterProducer(**about(group_id, heartbeat.client_id), **common)
        for group_id in heartbeat.producer_groups
        if group_id != CLIENT_INNER_PRODUCER
    ]
    return [*consumers, *producers]
