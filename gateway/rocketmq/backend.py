"""Requests of a RocketMQ gateway to the coordinator, and the coordinator's messages to its connections."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict, TypeVar

from clients.barrier import BARRIER_VERSION, barrier_request, barrier_rounds
from clients.coordinator_client import CoordinatorClient, Header
from clients.pending import AnyRequest, R
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS, CoordinatorBackend
from gateway.rocketmq.brokers import BrokerAddress
from kafka_why.contract.messages import ANONYMOUS
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


@dataclass(slots=True, eq=False)
class ConnectionMessages:
    """A queue of the coordinator's messages to connections.

    As the listener of a `CoordinatorClient`, it is called in the thread that reads messages. It delivers them
    in the event loop.
    """

    _messages: deque[AnyToConnection] = field(default_factory=deque)
    _is_dispatch_scheduled: bool = False
    _loop: asyncio.AbstractEventLoop | None = None
    _deliver: Callable[[AnyToConnection], None] | None = None

    def __call__(self, message: AnyToConnection) -> None:
        """Queue a message. Messages before `start` are for connections of an earlier start, and dropped."""
        if self._loop is None:
            return
        self._messages.append(message)
        if not self._is_dispatch_scheduled:
            self._is_dispatch_scheduled = True
            with suppress(RuntimeError):  # the loop has ended, and every connection with it
                self._loop.call_soon_threadsafe(self._dispatch)

    def start(self, deliver: Callable[[AnyToConnection], None]) -> None:
        """Deliver the messages from now on, in this event loop."""
        self._deliver, self._loop = deliver, asyncio.get_running_loop()

    def _dispatch(self) -> None:
        assert self._deliver is not None, "`start` has set it"
        self._is_dispatch_scheduled = False  # before the drain, so that later messages wake the loop again
        while self._messages:
            self._deliver(self._messages.popleft())


class CoordinatorRequests:
    """Requests and records of one gateway to the coordinator. Use it on the event loop's thread."""

    def __init__(self, client: CoordinatorClient, backend: CoordinatorBackend) -> None:
        self._client = client
        self.backend = backend
        self._appending: set[asyncio.Task[None]] = set()
        self._closed: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        """The connections that have ended in this turn of the event loop, by group and reason."""

    def request_fields(self, group_id: str, client_id: str, connection: str, broker: str) -> RequestFields:
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
        return self.backend.header(group_id, api_version, client_id, client_host="", principal=ANONYMOUS)

    def send(self, request: AnyRequest[R], timeout_ms: int = ANSWER_TIMEOUT_MS) -> asyncio.Future[R]:
        """Send a request. If no response comes, the future gets a response with an empty `request`, and the
        reason is logged.
        """
        return self.backend.send(request, timeout_ms)

    def close_connection(self, group_id: str, connection: str, reason: str) -> None:
        """Append a ConnectionClosed after all earlier records, and retry until the record is written.

        Connections that end in one turn of the event loop, such as those to a broker that ends, share a
        record, because each record notifies the group's remaining connections.
        """
        if not self._closed:
            asyncio.get_running_loop().call_soon(self._append_closed)
        self._closed[group_id, reason].append(connection)

    def _append_closed(self) -> None:
        """Append the records about the connections that ended in this turn of the event loop."""
        closed, self._closed = self._closed, defaultdict(list)
        for (group_id, reason), connections in closed.items():
            for start in range(0, len(connections), _CLOSED_MAX):
                first, *others = connections[start : start + _CLOSED_MAX]
                self._keep_appending(
                    ConnectionClosed(group_id=group_id, connection=first, others=tuple(others), reason=reason)
                )

    def _keep_appending(self, record: Unanswered) -> None:
        task = asyncio.ensure_future(self._append_until_written(record, self.backend.append(record)))
        self._appending.add(task)
        task.add_done_callback(self._appending.discard)

    async def wait_for_views(self) -> bool:
        """Wait until the groups topic shows every request that the coordinator answered before this call
        (`clients.barrier`). Return False if the coordinator does not answer.
        """
        for group_ids in barrier_rounds(self._client.request_partitions):
            headers = [self.header(group_id, BARRIER_VERSION) for group_id in group_ids]
            responses = [self.send(barrier_request(header), _BARRIER_TIMEOUT_MS) for header in headers]
            # Only a response of the coordinator names its `request`.
            if not all(response.request for response in await asyncio.gather(*responses)):
                return False
        return True

    async def close(self) -> None:
        """Wait for the records that are being appended, for a short time."""
        self._append_closed()
        if self._appending:
            _, unfinished = await asyncio.wait(self._appending, timeout=_CLOSE_TIMEOUT_S)
            for task in unfinished:
                task.cancel()
        self.backend.close()

    async def _append_until_written(self, record: Unanswered, first_attempt: asyncio.Future[bool]) -> None:
        is_written = await first_attempt
        while not is_written:
            await asyncio.sleep(_RETRY_S)  # a write may fail at once, without access to the topic
            is_written = await self.backend.append(record)


# A client's connection to a broker port, the client's requests about groups, and their order.


ANSWER_WAIT_S = 2.8
"""Less than the 3,000 ms that a client gives most requests (mqClientApiTimeout)."""
_NAME_MAX_LENGTH = 255

Answer = TypeVar("Answer", bound=Response)


def is_from_coordinator(response: Response) -> bool:
    """Return False for the response that `CoordinatorRequests.send` returns if no answer has come."""
    return bool(response.request)


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


@dataclass(slots=True, eq=False)
class Exchange:
    """A request of the client, and the time of its arrival."""

    request: FrameHeader
    body: bytes
    _ask_broker: AskBroker
    _arrived_at_s: float = field(default_factory=time.monotonic)

    def required_field(self, field: str) -> str:
        """Return a field that the request's header must have. Raises MalformedFrame."""
        if (value := self.request.ext_fields.get(field)) is None:
            raise MalformedFrame(f"the custom field <{field}> is null")
        if len(value) > _NAME_MAX_LENGTH:
            raise MalformedFrame(f"the custom field <{field}> has {len(value)} characters")
        return value

    async def ask_broker(self, within_s: float | None = ANSWER_WAIT_S) -> tuple[FrameHeader, bytes]:
        """Return the broker's answer. Raises ConnectionError, and TimeoutError if it takes longer than
        `within_s` after the request's arrival.
        """
        async with asyncio.timeout(None if within_s is None else max(self._left_s(within_s), 0)):
            return await self._ask_broker()

    async def wait_for(
        self, responses: Iterable[asyncio.Future[Answer]], within_s: float = ANSWER_WAIT_S
    ) -> bool:
        """Wait for the coordinator's answers until `within_s` after the request's arrival.

        Return True if the coordinator has answered all. Missing responses are not cancelled.
        """
        if not (futures := list(responses)):
            return True
        _, missing = await asyncio.wait(futures, timeout=max(self._left_s(within_s), 0))
        return not missing and all(is_from_coordinator(future.result()) for future in futures)

    def _left_s(self, within_s: float) -> float:
        """Return the seconds until `within_s` after the request's arrival."""
        return self._arrived_at_s + within_s - time.monotonic()

    def answer(self, code: int = 0, remark: str | None = None, body: bytes = b"") -> bytes:
        """Return the frame of an answer."""
        return encode_frame(response_to(self.request, code, remark), body)


# The order of one connection's requests about a group.


@dataclass(slots=True, eq=False)
class GroupOrder:
    """The turns of requests about groups.

    A turn begins when all earlier turns about the same groups have ended. A request takes its turn when it
    arrives, and ends the turn when its records are sent to the coordinator. So the records about a group are
    in the log in the order of the requests. A request that waits for a broker delays only requests about its
    own groups.
    """

    _last_turns: dict[str, asyncio.Event] = field(default_factory=dict)
    """The event of the end of the last turn that was requested, by group."""

    @asynccontextmanager
    async def turn(self, group_ids: Iterable[str]) -> AsyncIterator[None]:
        """Wait for the turn of a request about these groups, and end the turn with the block.

        Turns are in the order of the calls.
        """
        groups, own_end = dict.fromkeys(group_ids), asyncio.Event()
        earlier_ends = {self._last_turns[group_id] for group_id in groups if group_id in self._last_turns}
        self._last_turns.update(dict.fromkeys(groups, own_end))
        try:
            for earlier_end in earlier_ends:
                await earlier_end.wait()
            yield
        finally:
            own_end.set()
            for group_id in groups:
                if self._last_turns.get(group_id) is own_end:
                    del self._last_turns[group_id]


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


def split_heartbeat(
    heartbeat: HeartbeatData,
    request: FrameHeader,
    request_fields: Callable[[str, str], RequestFields],
    connection_fields: Mapping[str, str],
    group_configs: Mapping[str, SubscriptionGroupConfig | None],
) -> list[RegisterConsumer | RegisterProducer]:
    """Return one request for each group, consumers first. `request_fields` returns the common fields of a
    request about a group by a client. `connection_fields` are those about the heartbeat's connection.
    """
    common: dict[str, Any] = {
        "heartbeat_fingerprint": heartbeat.heartbeat_fingerprint,
        "language": request.language,
        "client_version": request.version,
        **connection_fields,
    }
    consumers = [
        RegisterConsumer(
            **request_fields(data.group_name, heartbeat.client_id),
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
        RegisterProducer(**request_fields(group_id, heartbeat.client_id), **common)
        for group_id in heartbeat.producer_groups
        if group_id != CLIENT_INNER_PRODUCER
    ]
    return [*consumers, *producers]
