"""A RocketMQ group on a broker whose time the test advances."""

from typing import TypedDict

from kafka_why.contract.rocketmq.history import HistoryEntry
from kafka_why.contract.rocketmq.requests import (
    AnyRequest,
    ConnectionClosed,
    LockBatchMq,
    LockBatchMqResponse,
    MessageModel,
    MessageQueue,
    MessageRequestMode,
    NotifyConsumerIdsChanged,
    QueryAssignment,
    QueryAssignmentResponse,
    RegisterConsumer,
    RegisterResponse,
    ResponseCode,
    SetMessageRequestMode,
    SetMessageRequestModeResponse,
    SubscriptionData,
    SubscriptionGroupConfig,
    UnregisterConsumer,
)
from state.config import BrokerConfig
from state.protocol import Received
from state.rocketmq.context import Effects
from state.rocketmq.group import RocketMqGroup, next_scan
from state.rocketmq.protocol import RocketMqEvent, step

QUEUES = tuple(MessageQueue("T", "b", number) for number in range(4))


class Envelope(TypedDict):
    """The fields of every request that identify its client."""

    group_id: str
    connection: str
    client_id: str
    correlation_id: str
    reply_partition: int


def of(client_id: str, connection: str = "") -> Envelope:
    return {
        "group_id": "G",
        "connection": connection or f"ch-{client_id}",
        "client_id": client_id,
        "correlation_id": "c",
        "reply_partition": 0,
    }


def notified(effects: Effects) -> list[str]:
    """Return the connections that are notified of changed consumer ids."""
    messages = [push.message for push in effects.pushes]
    return [m.connection for m in messages if isinstance(m, NotifyConsumerIdsChanged)]


class Broker:
    """The broker of group `G`: `group` is its current state, `history` all its entries. Requests
    arrive at `now_ms`.
    """

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.config = config or BrokerConfig()
        self.group: RocketMqGroup | None = None
        self.history: list[HistoryEntry] = []
        self.now_ms = 0

    def send(self, request: AnyRequest) -> Effects:
        return self._step(Received(f"r@{self.now_ms}", request))

    def scan(self) -> Effects:
        """Run the next scan that finds an expired entry, at its time."""
        assert self.group is not None
        due = next_scan(self.group, self.config)
        assert due is not None
        self.now_ms = due.deadline_ms
        return self._step(due)

    def _step(self, event: RocketMqEvent) -> Effects:
        effects = step(self.group, "G", event, self.now_ms, self.config)
        self.group = effects.group
        self.history += effects.history
        return effects

    def heartbeat(
        self,
        client_id: str,
        connection: str,
        *topics: str,
        version: int = 1,
        model: MessageModel = MessageModel.CLUSTERING,
        config: SubscriptionGroupConfig | None = SubscriptionGroupConfig(),  # noqa: B008 - frozen
    ) -> Effects:
        return self.send(
            RegisterConsumer(
                **of(client_id, connection),
                message_model=model,
                subscription_data_set=tuple(SubscriptionData(t, "*", version) for t in topics or ("T",)),
                group_config=config,
            )
        )

    def register(self, request: RegisterConsumer) -> RegisterResponse:
        response = self.send(request).replies[0].response
        assert isinstance(response, RegisterResponse)
        return response

    def unregister(self, client_id: str, connection: str) -> Effects:
        return self.send(UnregisterConsumer(**of(client_id, connection)))

    def close(self, connection: str, reason: str | None = None) -> Effects:
        return self.send(ConnectionClosed(group_id="G", connection=connection, reason=reason))

    def group_now(self) -> RocketMqGroup:
        assert self.group is not None
        return self.group

    def lock(self, client_id: str, *queues: MessageQueue) -> tuple[MessageQueue, ...]:
        response = self.send(LockBatchMq(**of(client_id), mq_set=queues)).replies[0].response
        assert isinstance(response, LockBatchMqResponse)
        return response.lock_ok_mq_set

    def query(
        self,
        client_id: str = "A",
        topic: str = "T",
        model: MessageModel = MessageModel.CLUSTERING,
        strategy_name: str | None = "AVG",
        topic_queues: tuple[MessageQueue, ...] | None = QUEUES,
    ) -> tuple[tuple[MessageQueue, MessageRequestMode], ...] | None:
        request = QueryAssignment(
            **of(client_id),
            topic=topic,
            message_model=model,
            strategy_name=strategy_name,
            topic_queues=topic_queues,
        )
        response = self.send(request).replies[0].response
        assert isinstance(response, QueryAssignmentResponse)
        if response.message_queue_assignments is None:
            return None
        return tuple((a.message_queue, a.mode) for a in response.message_queue_assignments)

    def set_mode(self, request: SetMessageRequestMode) -> tuple[ResponseCode, str | None]:
        response = self.send(request).replies[0].response
        assert isinstance(response, SetMessageRequestModeResponse)
        return response.code, response.remark
