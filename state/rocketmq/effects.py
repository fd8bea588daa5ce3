"""What a step wants done, as data."""

from enum import StrEnum

from msgspec import Struct

from state.messages import ErrorResponse, ReleaseGroupResponse
from state.rocketmq.group import Group
from state.rocketmq.requests import MessageModel
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


class EntryType(StrEnum):
    """The kinds of history entries."""

    GROUP_CREATED = "GroupCreated"
    CONSUMER_CONNECTED = "ConsumerConnected"
    CONSUMER_REMOVED = "ConsumerRemoved"
    CLIENT_ID_REPLACED = "ClientIdReplaced"
    DUPLICATE_CLIENT_ID = "DuplicateClientId"
    DUPLICATE_CLIENT_ID_OVER = "DuplicateClientIdOver"
    SUBSCRIPTION_CHANGED = "SubscriptionChanged"
    CONSUMERS_NOTIFIED = "ConsumersNotified"
    PRODUCER_CONNECTED = "ProducerConnected"
    PRODUCER_REMOVED = "ProducerRemoved"
    QUEUE_LOCKS_TAKEN_OVER = "QueueLocksTakenOver"
    MESSAGE_REQUEST_MODE_SET = "MessageRequestModeSet"
    APPLIED_LATE = "AppliedLate"
    QUARANTINED = "Quarantined"
    RELEASED = "Released"
    TAKEN_OVER = "TakenOver"


class HistoryEntry(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="protocol", tag="RocketMQ"
):
    """A history entry: what happened to a group, when, and why.

    `(group_id, incarnation, seq)` is its name, as in `state.kafka.history`; `cause` is the id of the request
    or the scan that led to it. `protocol` tells it from an entry of one of Kafka's groups, which has none.
    `message_model` is told where it decides what an entry means: a client id that several have.
    """

    version: int  # no default, so that it is always written
    type: EntryType
    group_id: str
    incarnation: str
    seq: int
    at_ms: int
    reason: str
    cause: str
    client_id: str | None = None
    connection: str | None = None
    connections: list[str] | None = None
    topics: list[str] | None = None
    message_model: MessageModel | None = None
    late_by_ms: int | None = None


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
