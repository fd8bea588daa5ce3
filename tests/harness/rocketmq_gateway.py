"""A RocketMQ gateway's requests about groups, between clients, the pure core, and a stub broker.

The core is the real one, in this process. Its time moves only if a test moves it. The stub is name server and
broker at once: it answers with what the test sets, or with an empty success.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import msgspec

from clients.coordinator_client import CoordinatorClient
from clients.pending import PendingRequest, PendingRequests
from gateway.coordinator.backend import CoordinatorBackend
from gateway.limits import Limits
from gateway.rocketmq.backend import ConnectedClient, ConnectionMessages, CoordinatorRequests
from gateway.rocketmq.brokers import BrokerAddress
from gateway.rocketmq.metadata import RocketMqMetadata
from gateway.rocketmq.metrics import RocketmqCounts
from gateway.rocketmq.peers import Peers, Restart
from gateway.rocketmq.service import RocketmqSessions
from gateway.rocketmq.session import GatewayParts, GroupSession
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import Request as KafkaRequest
from kafka_why.contract.rocketmq.history import GroupSnapshot
from kafka_why.contract.rocketmq.requests import AnyToConnection
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import Header, decode_header, encode_frame, header_length, response_to
from state.config import CoordinatorConfig
from state.rocketmq.group import RocketMqGroup
from state.rocketmq.protocol import snapshot
from state.timeline import Row, Timeline
from tests.harness.waiting import as_test

QUEUES = 7
_BEGIN = struct.Struct(">ii")


class Answer(NamedTuple):
    """A decoded frame."""

    header: Header
    body: bytes

    @property
    def code(self) -> int:
        return self.header.code

    @property
    def content(self) -> Any:
        return msgspec.json.decode(self.body)


def decode_frame(frame: bytes) -> Answer:
    length, word = _BEGIN.unpack_from(frame)
    begin = _BEGIN.size + header_length(length, word)
    return Answer(decode_header(word, frame[_BEGIN.size : begin]), frame[begin:])


class CoreLog(CoordinatorClient):
    """The log and the pure core behind it. `records` are the requests about RocketMQ's groups in the log,
    `kafka_requests` those about Kafka's.

    While `is_away` the core sends nothing. Its answers and messages come when it is back.
    """

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.kafka_requests: list[Any] = []
        self.now_ms = 0
        self.reply_partition = 0
        self._is_away = False
        self._layout = TopicLayout.named()
        self.listeners: list[Callable[[AnyToConnection], None]] = []
        self._pending = PendingRequests("c-")
        self._numbers = count(1)
        self._timelines: dict[str, Timeline] = {}
        self._held_effects: list[Any] = []

    @property
    def is_away(self) -> bool:
        return self._is_away

    @is_away.setter
    def is_away(self, value: bool) -> None:
        self._is_away = value
        self._send_effects()

    def next_correlation_id(self) -> str:
        return f"c-{next(self._numbers)}"

    def send_all(self, requests: Sequence[PendingRequest]) -> None:
        self._pending.add(requests)
        for pending in requests:
            request = pending.request
            (self.kafka_requests if isinstance(request, KafkaRequest) else self.records).append(request)
            if request.group_id not in self._timelines:
                self._timelines[request.group_id] = Timeline(request.group_id, None, CoordinatorConfig())
            name = f"requests-0-{next(self._numbers)}"
            self._timelines[request.group_id].apply(Row(self.now_ms, name, request))  # type: ignore[arg-type]
        self._pending.settle_written(requests)
        self._send_effects()

    def forget(self, request: PendingRequest) -> None:
        self._pending.forget(request)

    def of(self, kind: type) -> list[Any]:
        """Return the records of a type."""
        return [record for record in self.records if isinstance(record, kind)]

    def advance(self, ms: int) -> None:
        """Advance the time, and fire the deadlines that become due."""
        self.now_ms += ms
        for timeline in self._timelines.values():
            timeline.fire_until(self.now_ms)
        self._send_effects()

    # The view of the groups, which is never behind.

    def groups(self) -> list[GroupSnapshot]:
        states = [timeline.group for _, timeline in sorted(self._timelines.items())]
        return [snapshot(state) for state in states if isinstance(state, RocketMqGroup)]

    def get(self, group_id: str) -> GroupSnapshot | None:
        return next((group for group in self.groups() if group.group_id == group_id), None)

    async def reach_end(self, timeout_s: float) -> bool:
        return True

    def _send_effects(self) -> None:
        self._held_effects += [e for timeline in self._timelines.values() for e in timeline.drain_effects()]
        if self._is_away:
            return
        to_send, self._held_effects = self._held_effects, []
        for effects in to_send:
            self._pending.settle([reply.response for reply in effects.replies])
            for push in 2 * list(getattr(effects, "pushes", ())):  # early, and with the batch
                for listener in self.listeners:
                    listener(push.message)


@dataclass
class StubRocketMq:
    """A name server and a broker. `answers` are codes, extFields and bodies by request code.

    `asked` are the requests that arrived. Those of the codes `stuck` are answered when `open` is set.
    """

    address: str = ""
    answers: dict[int, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    remark: str | None = None
    asked: list[Header] = field(default_factory=list)
    stuck: set[int] = field(default_factory=set)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def codes(self) -> list[int]:
        return [header.code for header in self.asked]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                length, word = _BEGIN.unpack(await reader.readexactly(_BEGIN.size))
                header = await reader.readexactly(header_length(length, word))
                await reader.readexactly(length - 4 - len(header))
                response = await self.answer(decode_header(word, header))
                writer.write(encode_frame(*response))
        writer.close()

    async def answer(self, request: Header) -> tuple[Header, bytes]:
        self.asked.append(request)
        if request.code in self.stuck:
            await self.open.wait()
        code, fields, body = self.answers.get(request.code, (0, {}, b""))
        return response_to(request, code, self.remark, fields), body

    async def close_all(self) -> None:
        for writer in self.writers:
            writer.close()
            await writer.wait_closed()
        self.writers.clear()


def route(*brokers: tuple[str, int, int]) -> bytes:
    """Return the route of a topic: the name, number of queues and permissions of each broker."""
    queues = [
        {
            "brokerName": name,
            "readQueueNums": number,
            "writeQueueNums": number,
            "perm": perm,
            "topicSysFlag": 0,
        }
        for name, number, perm in brokers
    ]
    return msgspec.json.encode({"queueDatas": queues, "brokerDatas": [], "filterServerTable": {}})


class Client:
    """A client on one connection at a broker port. `received` are the requests that it got."""

    def __init__(
        self, gateway: "PlayedGateway", client_id: str, connection: str, broker: BrokerAddress
    ) -> None:
        self.client_id = client_id
        self.connection = connection
        self.received: list[Answer] = []
        self.closed_by_gateway: list[str] = []
        self._broker = gateway.broker
        self._opaques = count(1)
        self.session: GroupSession = gateway.requests.session(
            ConnectedClient(
                connection,
                broker,
                f"10.0.0.1:{len(gateway.clients)}",
                lambda frame: self.received.append(decode_frame(frame)),
                self.closed_by_gateway.append,
            )
        )

    @property
    def notified(self) -> list[str]:
        """The groups whose changes the client was notified of."""
        assert all(it.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for it in self.received)
        return [it.header.ext_fields["consumerGroup"] for it in self.received]

    async def send(
        self, code: int, body: object = None, *, one_way: bool = False, **ext_fields: str
    ) -> Answer | None:
        """Send a request, and return its answer. `body` is encoded as JSON."""
        request = Header(code, next(self._opaques), 2 if one_way else 0, ext_fields=ext_fields, version=513)
        encoded = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        assert self.session.frame_max_bytes(code)
        frame = await self.session.answer(request, encoded, lambda: self._broker.answer(request))
        if frame is None:
            return None
        answer = decode_frame(frame)
        assert (answer.header.opaque, answer.header.is_response) == (request.opaque, True)
        return answer

    async def ask(self, code: int, body: object = None, **ext_fields: str) -> Answer:
        answer = await self.send(code, body, one_way=False, **ext_fields)
        assert answer is not None
        return answer

    async def heartbeat(self, *groups: str, producers: Sequence[str] = (), **fields: Any) -> Answer:
        answer = await self.ask(
            RequestCode.HEART_BEAT, heartbeat_body(self.client_id, *groups, producers=producers, **fields)
        )
        for _ in range(3):  # iterations of the event loop until the records are handled and answered
            await asyncio.sleep(0)
        return answer

    async def consumer_list(self, group: str = "g") -> Answer:
        return await self.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)

    async def lock(self, *queues: int, group: str = "g") -> list[int]:
        """Lock queues, and return the numbers of those that the client holds."""
        answer = await self.ask(RequestCode.LOCK_BATCH_MQ, lock_body(self.client_id, queues, group))
        assert answer.code == 0, answer.header.remark
        return sorted(queue["queueId"] for queue in answer.content["lockOKMQSet"])


def heartbeat_body(
    client_id: str, *groups: str, producers: Sequence[str] = (), topics: Sequence[str] = ("T",), **fields: Any
) -> dict[str, Any]:
    subscriptions = [
        {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "TAG",
            "subString": "*",
            "subVersion": 7,
            "tagsSet": [],
            "topic": topic,
        }
        for topic in topics
    ]
    return {
        "clientID": client_id,
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": group,
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": subscriptions,
                "unitMode": False,
            }
            for group in groups
        ],
        "heartbeatFingerprint": 0,
        "producerDataSet": [{"groupName": name} for name in producers],
        "withoutSub": False,
    } | fields


def lock_body(client_id: str, queues: Sequence[int], group: str = "g") -> dict[str, Any]:
    return {
        "clientId": client_id,
        "consumerGroup": group,
        "mqSet": [{"brokerName": "b", "queueId": number, "topic": "T"} for number in queues],
        "onlyThisBroker": False,
    }


@dataclass
class PlayedGateway:
    """The group requests of one start of a gateway."""

    requests: RocketmqSessions
    core: CoreLog
    broker: StubRocketMq
    clients: list[Client] = field(default_factory=list)

    def client(self, client_id: str, *, name: str = "b", number: int = 0) -> Client:
        """Connect a client to a broker's port."""
        connection = f"{self.requests.gateway_start}#{len(self.clients)}"
        client = Client(self, client_id, connection, BrokerAddress(name, number, self.broker.address))
        self.clients.append(client)
        return client


@asynccontextmanager
async def started(
    broker: StubRocketMq, *, name: str = "gw", start: str = "1", core: CoreLog | None = None
) -> AsyncIterator[PlayedGateway]:
    """Start the group requests of a gateway, with a new core or that of an earlier start."""
    messages = ConnectionMessages()
    core = core or CoreLog()
    core.listeners.append(messages)
    coordinator = CoordinatorRequests(core, CoordinatorBackend(core, Limits()))
    metadata = RocketMqMetadata([broker.address])
    peers = Peers(name, coordinator, core, heartbeat_interval_s=0.05)
    parts = GatewayParts(coordinator, core, metadata, Restart(name, start), peers)
    requests = RocketmqSessions(parts, messages, RocketmqCounts())
    try:
        await requests.start(lambda: [BrokerAddress("b", 0, broker.address)])
        broker.asked.clear()
        yield PlayedGateway(requests, core, broker)
    finally:
        await requests.close()


@asynccontextmanager
async def rocketmq() -> AsyncIterator[StubRocketMq]:
    """Yield a stub with a topic T of QUEUES queues, where each group is configured."""
    stub = StubRocketMq()
    stub.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = (0, {}, route(("b", QUEUES, 6)))
    config = {"groupName": "g", "notifyConsumerIdsChangedEnable": True}
    stub.answers[RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG] = (0, {}, msgspec.json.encode(config))
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
    stub.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield stub
        await stub.close_all()


def played(test: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
    """Decorate a coroutine as a test. Its first argument is a started gateway."""

    async def play(arguments: dict[str, Any]) -> None:
        async with rocketmq() as broker, started(broker) as gateway:
            await test(gateway, **arguments)

    return as_test(test, lambda arguments: asyncio.run(play(arguments)), skipped=1)
