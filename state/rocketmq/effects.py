"""The effects of a step, as data."""

from enum import StrEnum

from msgspec import Struct

from kafka_why.contract.messages import ErrorResponse, ReleaseGroupResponse
from kafka_why.contract.rocketmq.history import HistoryEntry
from kafka_why.contract.rocketmq.responses import (
    AnyResponse,
    AnyToConnection,
    CloseConnection,
    NotifyConsumerIdsChanged,
)
from state.rocketmq.group import Group


class ConsumerGroupEvent(StrEnum):
    """The events of RocketMQ's ConsumerIdsChangeListener. Source: ConsumerGroupEvent.java."""

    CHANGE = "CHANGE"
    UNREGISTER = "UNREGISTER"
    REGISTER = "REGISTER"
    CLIENT_REGISTER = "CLIENT_REGISTER"
    CLIENT_UNREGISTER = "CLIENT_UNREGISTER"


class ListenerCall(Struct, frozen=True, omit_defaults=True):
    """One call of the listener, in RocketMQ's order.

    CHANGE has the notified `connections`. CLIENT_REGISTER has the connection, the client id and the topics
    that the client requests. CLIENT_UNREGISTER has the connection, the client id and the group's topics.
    Other fields are None.
    """

    event: ConsumerGroupEvent
    connections: tuple[str, ...] | None = None
    connection: str | None = None
    client_id: str | None = None
    topics: tuple[str, ...] | None = None


class Reply(Struct, frozen=True):
    """An answer, and the partition of the responses topic for it."""

    reply_partition: int
    response: AnyResponse | ErrorResponse | ReleaseGroupResponse


class Push(Struct, frozen=True):
    """A one-way message to a connection, and the partition of the responses topic for it."""

    reply_partition: int
    message: AnyToConnection


class Effects(Struct, frozen=True):
    """The outcome of one step: the group after it (None if the group has no state left) and the messages.

    `calls` are the calls of RocketMQ's own listener. `earliest_armed_ms` is the earliest scan that the step
    armed, in ms, None if it armed no scan. The timeline uses it instead of a search.
    """

    group: Group | None
    replies: list[Reply] = []
    calls: list[ListenerCall] = []
    pushes: list[Push] = []
    history: list[HistoryEntry] = []
    earliest_armed_ms: int | None = None

    @property
    def notified(self) -> list[str]:
        """The connections that are notified of changed consumer ids."""
        messages = [push.message for push in self.pushes]
        return [m.connection for m in messages if isinstance(m, NotifyConsumerIdsChanged)]

    @property
    def closed(self) -> list[str]:
        """The connections that are closed."""
        messages = [push.message for push in self.pushes]
        return [m.connection for m in messages if isinstance(m, CloseConnection)]
