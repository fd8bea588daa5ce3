"""RocketMQ's clients in simulated time, with the real core as their broker."""

from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from itertools import count
from typing import TypedDict

from clients.rocketmq.api import ConsumerConfig
from clients.rocketmq.instance import ClientInstance, Intervals
from kafka_why.contract.rocketmq.history import HistoryEntry
from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.contract.rocketmq.requests import (
    AnyRequest,
    ConnectionClosed,
    GetConsumerListByGroup,
    LockBatchMq,
    SubscriptionGroupConfig,
    UnlockBatchMq,
    UnregisterConsumer,
)
from kafka_why.contract.rocketmq.responses import (
    AnyResponse,
    CloseConnection,
    ConsumerListResponse,
    LockBatchMqResponse,
    NotifyConsumerIdsChanged,
    ResponseCode,
)
from state.config import CoordinatorConfig
from state.rocketmq.context import Effects
from state.rocketmq.split import HeartbeatData, Origin, split_heartbeat
from state.timeline import Row, Timeline

BROKER = "broker"
A_MOMENT_MS = 2_000  # start, the shortest interval between rounds, and one more round


def queues_of(topic: str, number: int) -> list[MessageQueue]:
    return [MessageQueue(topic, BROKER, n) for n in range(number)]


class About(TypedDict):
    """The fields of every request that identify its client."""

    group_id: str
    connection: str
    client_id: str
    correlation_id: str
    reply_partition: int


class SimulatedRocketMq:
    """`topics` maps a topic to its number of queues. `history` holds the history entries of all groups."""

    def __init__(self, **topics: int) -> None:
        self.now_ms = 0
        self.topics = dict(topics)
        self.stored: dict[tuple[str, MessageQueue], int] = {}
        self.clients: dict[str, ClientInstance] = {}
        self.history: list[HistoryEntry] = []
        self.notifications_are_lost = False
        self.is_reachable = True
        self._config = CoordinatorConfig()
        self._timelines: dict[str, Timeline] = {}
        self._offset = count()
        self._connections = count(1)

    def start(
        self, client_id: str, *consumers: ConsumerConfig, intervals: Intervals | None = None
    ) -> ClientInstance:
        """Start a client on its own connection."""
        connection = f"c{next(self._connections)}"
        port = Port(self, client_id, connection)
        client = ClientInstance(client_id, consumers, port, self.now_ms, intervals)
        self.clients[connection] = client
        client.start(self.now_ms)
        return client

    def stop(self, client: ClientInstance) -> None:
        """Stop a client, which unregisters."""
        self._forget(client)
        client.shut_down()

    def crash(self, client: ClientInstance, *, seen: bool) -> None:
        """Crash a client. The end of its connection is seen at once, or never."""
        connection = self._forget(client)
        if seen:
            for group_id in client.groups:
                self.ask(group_id, ConnectionClosed(group_id=group_id, connection=connection))

    def run_for(self, ms: int) -> None:
        """Advance the time: clients do their due work, deadlines fire."""
        until_ms = self.now_ms + ms
        while self.clients and (due_ms := min(c.due_ms for c in self.clients.values())) <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._fire()
            for client in list(self.clients.values()):
                client.tick(self.now_ms)
        self.now_ms = until_ms
        self._fire()

    def shares(self, topic: str = "t") -> dict[str, list[int]]:
        """Return the queues of each connection."""
        return {
            connection: sorted(q.queue_id for group in client.groups.values() for q in group.held(topic))
            for connection, client in self.clients.items()
        }

    def ask(self, group_id: str, request: AnyRequest) -> list[AnyResponse]:
        """Send a request, and return its answer if it has one."""
        if group_id not in self._timelines:
            self._timelines[group_id] = Timeline(group_id, None, self._config)
        timeline = self._timelines[group_id]
        timeline.apply(Row(self.now_ms, f"requests-0-{next(self._offset)}", request))
        return self._drain_effects(timeline)

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Yield the broker answers no client until the block ends."""
        self.is_reachable = False
        yield
        self.is_reachable = True

    def _fire(self) -> None:
        for timeline in self._timelines.values():
            timeline.fire_until(self.now_ms)
            self._drain_effects(timeline)

    def _drain_effects(self, timeline: Timeline) -> list[AnyResponse]:
        answers: list[AnyResponse] = []
        for effects in timeline.drain_effects():
            assert isinstance(effects, Effects)
            answers += [reply.response for reply in effects.replies]  # type: ignore[misc]
            self.history += effects.history
            for push in effects.pushes:
                self._deliver(push.message)
        return answers

    def _deliver(self, message: NotifyConsumerIdsChanged | CloseConnection) -> None:
        client = self.clients.get(message.connection)
        if client is not None and not self.notifications_are_lost:
            assert isinstance(message, NotifyConsumerIdsChanged), "these clients are never silent"
            client.notified(self.now_ms)

    def _forget(self, client: ClientInstance) -> str:
        connection = next(name for name, known in self.clients.items() if known is client)
        del self.clients[connection]
        return connection


class Port:
    """The `clients.rocketmq.api.Broker` of one client."""

    def __init__(self, world: SimulatedRocketMq, client_id: str, connection: str) -> None:
        self.world = world
        self._client_id = client_id
        self._connection = connection

    def heartbeat(self, data: HeartbeatData) -> bool:
        groups = {consumer.group_name: SubscriptionGroupConfig() for consumer in data.consumer_data_set}
        parts = split_heartbeat(data, Origin(self._connection, "", 0), groups)
        answers = [answer for part in parts for answer in self._ask(part.group_id, part)]
        return len(answers) == len(parts)

    def unregister(self, group_id: str) -> None:
        self._ask(group_id, UnregisterConsumer(**self._about(group_id)))

    def topic_queues(self, topic: str) -> list[MessageQueue] | None:
        return queues_of(topic, self.world.topics[topic]) if topic in self.world.topics else None

    def consumer_ids(self, group_id: str) -> list[str] | None:
        for answer in self._ask(group_id, GetConsumerListByGroup(**self._about(group_id))):
            assert isinstance(answer, ConsumerListResponse)
            if answer.code is ResponseCode.SUCCESS:
                return list(answer.consumer_id_list)
        return None

    def lock(self, group_id: str, queues: Collection[MessageQueue]) -> Set[MessageQueue]:
        request = LockBatchMq(**self._about(group_id), mq_set=tuple(queues))
        for answer in self._ask(group_id, request):
            assert isinstance(answer, LockBatchMqResponse)
            return set(answer.lock_ok_mq_set)
        return frozenset()

    def unlock(self, group_id: str, queues: Collection[MessageQueue]) -> None:
        self._ask(group_id, UnlockBatchMq(**self._about(group_id), mq_set=tuple(queues)))

    def start_offsets(
        self, config: ConsumerConfig, queues: Collection[MessageQueue]
    ) -> dict[MessageQueue, int]:
        return {queue: self.world.stored.get((config.group_id, queue), 0) for queue in queues}

    def persist(self, config: ConsumerConfig, offsets: Mapping[MessageQueue, int]) -> None:
        self.world.stored.update({(config.group_id, queue): offset for queue, offset in offsets.items()})

    def _ask(self, group_id: str, request: AnyRequest) -> list[AnyResponse]:
        return self.world.ask(group_id, request) if self.world.is_reachable else []

    def _about(self, group_id: str) -> About:
        return {
            "group_id": group_id,
            "connection": self._connection,
            "client_id": self._client_id,
            "correlation_id": "",
            "reply_partition": 0,
        }


def consumer(group_id: str = "g", *topics: str, **given: object) -> ConsumerConfig:
    return ConsumerConfig(group_id, dict.fromkeys(topics or ("t",), "*"), **given)  # type: ignore[arg-type]


def pulled(world: SimulatedRocketMq) -> None:
    """Every queue was pulled from at the current time."""
    for client in world.clients.values():
        for group in client.groups.values():
            for process in group.process_queues.values():
                process.last_pull_ms = world.now_ms
