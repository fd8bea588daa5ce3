"""The history entries of RocketMQ groups (what happened, when, and why) for the events topic, and a group's
view for the groups topic.

An entry is identified by `(group_id, incarnation, seq)`, as in `kafka_why.contract.kafka.history`. `seq`
counts from 1 without gaps as long as the group exists.
"""

from enum import StrEnum

from msgspec import Struct

from kafka_why.contract.messages import RECORD_VERSION
from kafka_why.contract.rocketmq.requests import ConsumeFromWhere, ConsumeType, MessageModel, RequestMode


class ConnectionSnapshot(Struct, frozen=True):
    """A connection and its client. The fields from `broker` on are as in `RegisterConsumer`."""

    connection: str  # its unique id
    client_id: str
    language: str
    client_version: int
    broker: str = ""
    client_address: str = ""
    gateway: str = ""
    gateway_start: str = ""


class GroupSnapshot(Struct, frozen=True, tag_field="protocol", tag="RocketMQ"):
    """The group after the history entry `seq` of this incarnation.

    Heartbeats and locks do not change the view, because they have no history entry.
    """

    group_id: str
    incarnation: str
    seq: int
    at_ms: int  # time of the state
    message_model: MessageModel | None  # None without consumers, as the next two fields
    consume_type: ConsumeType | None
    consume_from_where: ConsumeFromWhere | None
    consumers: list[ConnectionSnapshot]
    producers: list[ConnectionSnapshot]
    subscriptions: dict[str, str]  # filters by topic
    request_modes: dict[str, RequestMode]  # by topic
    # The connections of each client id that has two connections to one broker.
    duplicate_client_ids: dict[str, list[str]]
    quarantined: str | None  # the error that stopped the group's scans, else None
    # Subscriptions by connection, if the clients of one broker have different ones.
    different_subscriptions: dict[str, list[str]] = {}
    truncated: bool = False  # connections were omitted, because the record would be too large
    version: int = RECORD_VERSION


class EntryType(StrEnum):
    """The types of history entries."""

    GROUP_CREATED = "GroupCreated"
    CONSUMER_CONNECTED = "ConsumerConnected"
    CONSUMER_REMOVED = "ConsumerRemoved"
    CLIENT_ID_REPLACED = "ClientIdReplaced"
    DUPLICATE_CLIENT_ID = "DuplicateClientId"
    DUPLICATE_CLIENT_ID_OVER = "DuplicateClientIdOver"
    SUBSCRIPTION_CHANGED = "SubscriptionChanged"
    SUBSCRIPTIONS_DIFFER = "SubscriptionsDiffer"
    SUBSCRIPTIONS_DIFFER_OVER = "SubscriptionsDifferOver"
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
    """A history entry of a RocketMQ group. A field is None if the entry's type does not use it.

    The JSON tag `protocol` distinguishes it from an entry of a Kafka group, which has no tag.
    """

    version: int  # no default, so that it is always written
    type: EntryType
    group_id: str
    incarnation: str
    seq: int
    at_ms: int  # the group's time
    reason: str
    cause: str  # id of the request, or the scan, that led to the entry
    client_id: str | None = None
    connection: str | None = None
    connections: list[str] | None = None
    topics: list[str] | None = None
    broker: str | None = None  # `name/id` of the broker whose table of consumers changed
    client_address: str | None = None  # of a new connection, `ip:port`
    # Texts by connection (`kafka_why.rocketmq_group.subscription_text`): subscriptions of the client that
    # connected or changed its subscriptions, or of the first clients whose subscriptions differ.
    subscriptions: dict[str, list[str]] | None = None
    # Only in DuplicateClientId. The duplicate does harm if the clients divide the queues.
    message_model: MessageModel | None = None
    # In AppliedLate, time from the append of the request to the latest deadline that had fired before.
    late_by_ms: int | None = None

    @property
    def is_expiry(self) -> bool:
        """True if a scan removed a dead connection. Other removals follow a client's request."""
        return self.type is EntryType.CONSUMER_REMOVED and self.cause.startswith("scan at ")
