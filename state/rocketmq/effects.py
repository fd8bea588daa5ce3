"""What a step wants done, as data."""

from enum import StrEnum

from msgspec import Struct

from state.messages import ErrorResponse, ReleaseGroupResponse
from state.rocketmq.group import Group
from state.rocketmq.history import HistoryEntry
from state.rocketmq.responses import (
    AnyResponse,
    AnyToConnection,
    CloseConnection,
    NotifyConsumerIdsChanged,
)


class ConsumerGroupEvent(StrEnum):
    """What RocketMQ's broker tells its ConsumerIdsChangeListener. Source: ConsumerGroupEvent.java."""

    CHANGE = "CHANGE"
    UNREGISTER = "UNREGISTER"
    REGISTER = "REGISTER"
    CLIENT_REGISTER = "CLIENT_REGISTER"
    CLIENT_UNREGISTER = "CLIENT_UNREGISTER"


class ListenerCall(Struct, frozen=True, omit_defaults=True):
    """One call of the listener, in RocketMQ's order.

    CHANGE has the `connections` that are told; CLIENT_REGISTER and CLIENT_UNREGISTER the connection, the
    client id and the topics: those the new client asks for, those the group has.
    """

    event: ConsumerGroupEvent
    connections: tuple[str, ...] | None = None
    connection: str | None = None
    client_id: str | None = None
    topics: tuple[str, ...] | None = None


class Reply(Struct, frozen=True):
    """An answer, and the partition of the responses topic it goes to."""

    reply_partition: int
    response: AnyResponse | ErrorResponse | ReleaseGroupResponse


class Push(Struct, frozen=True):
    """What is said to a connection unasked, and the partition of the responses topic it goes to."""

    reply_partition: int
    message: AnyToConnection


class Effects(Struct, frozen=True):
    """The outcome of one step: the group after it (None where nothing is left), and what is to be done.

    `calls` are what RocketMQ's own listener would have been told. `earliest_armed_ms` is the earliest scan
    the step made necessary, None where it made none: whoever keeps time need not search for it.
    """

    group: Group | None
    replies: list[Reply] = []
    calls: list[ListenerCall] = []
    pushes: list[Push] = []
    history: list[HistoryEntry] = []
    earliest_armed_ms: int | None = None

    @property
    def notified(self) -> list[str]:
        """The connections that are told of changed consumer ids."""
        messages = [push.message for push in self.pushes]
        return [m.connection for m in messages if isinstance(m, NotifyConsumerIdsChanged)]

    @property
    def closed(self) -> list[str]:
        """The connections that are closed."""
        messages = [push.message for push in self.pushes]
        return [m.connection for m in messages if isinstance(m, CloseConnection)]
