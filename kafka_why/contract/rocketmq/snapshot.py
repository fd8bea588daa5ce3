"""The view of a RocketMQ group on the groups topic."""

from msgspec import Struct

from kafka_why.contract.messages import RECORD_VERSION
from kafka_why.contract.rocketmq.requests import ConsumeFromWhere, ConsumeType, MessageModel, RequestMode


class ConnectionSnapshot(Struct, frozen=True):
    """A connection and its client. The last four fields are those of `RegisterConsumer`."""

    connection: str
    client_id: str
    language: str
    client_version: int
    broker: str = ""
    client_address: str = ""
    gateway: str = ""
    gateway_start: str = ""


class GroupSnapshot(Struct, frozen=True, tag_field="protocol", tag="RocketMQ"):
    """The group after history entry number `seq` of this incarnation.

    `subscriptions` maps a topic to its filter; `request_modes` is keyed by topic. A client is connected to
    several brokers, and a client id is a duplicate if it is twice at one of them. `different_subscriptions`
    are, by connection, the subscriptions of clients if those of one broker differ. Changes without a history
    entry are not shown: times of the last heartbeat, and locks that are acquired and released. `truncated` is
    True if connections were omitted because the record would be too large.
    """

    group_id: str
    incarnation: str
    seq: int
    at_ms: int
    message_model: MessageModel | None
    consume_type: ConsumeType | None
    consume_from_where: ConsumeFromWhere | None
    consumers: list[ConnectionSnapshot]
    producers: list[ConnectionSnapshot]
    subscriptions: dict[str, str]
    request_modes: dict[str, RequestMode]
    duplicate_client_ids: dict[str, list[str]]
    quarantined: str | None
    different_subscriptions: dict[str, list[str]] = {}
    truncated: bool = False
    version: int = RECORD_VERSION
