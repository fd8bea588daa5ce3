"""All a broker knows of one group: its consumers' connections and topics, producers, locks, modes.

This file holds data and queries only. Consumers and producers of one group name have nothing to do with each
other; they share the name, and so the key of their state. Source: ConsumerGroupInfo.java,
ClientChannelInfo.java, RebalanceLockManager.java, MessageRequestModeManager.java.
"""

from msgspec import Struct

from assignors.rocketmq.api import MessageRequestMode
from assignors.rocketmq.message_queue import MessageQueue
from state.rocketmq.requests import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData


class ClientChannelInfo(Struct, array_like=True, forbid_unknown_fields=True):
    """The client at the other end of a connection, when it was last heard of, and where it is told things."""

    client_id: str
    language: str
    version: int
    last_update_ms: int
    reply_partition: int


class LockEntry(Struct, array_like=True, forbid_unknown_fields=True):
    """Who holds a queue, and since when without saying so again."""

    client_id: str
    last_update_ms: int


class RequestMode(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How clients get a topic that the broker assigns."""

    mode: MessageRequestMode
    pop_share_queue_num: int


class Group(Struct, array_like=True, forbid_unknown_fields=True, tag="RocketMQ"):
    """`channels` and `producers` go by connection, in the order they came; `request_modes` by topic.

    The group's model, type and start are those of its last heartbeat. RocketMQ has a consumer group while it
    has `channels`: without any, nothing of it is left but locks and modes. `quarantined` is the fault of ours
    that stopped its scans, and everything else, until an operator releases it. The order of the fields here
    is the layout of the stored state: a change of it is a new version in `checkpoints.codec`.
    """

    group_id: str
    incarnation: str  # the id of the request that created it
    seq: int = 0  # history entries so far
    clock_ms: int = 0
    last_fired_ms: int = 0
    message_model: MessageModel | None = None
    consume_type: ConsumeType | None = None
    consume_from_where: ConsumeFromWhere | None = None
    channels: dict[str, ClientChannelInfo] = {}
    subscriptions: dict[str, SubscriptionData] = {}
    heartbeat_fingerprint: int | None = None
    producers: dict[str, ClientChannelInfo] = {}
    locks: dict[MessageQueue, LockEntry] = {}
    request_modes: dict[str, RequestMode] = {}
    quarantined: str | None = None

    def client_ids(self) -> list[str]:
        """One id a connection, in the order the connections came (RocketMQ: in no order)."""
        return [info.client_id for info in self.channels.values()]

    def connections_of(self, client_id: str) -> list[str]:
        """The consumer connections of one client id; more than one is trouble."""
        return [connection for connection, info in self.channels.items() if info.client_id == client_id]

    def duplicate_client_ids(self) -> dict[str, list[str]]:
        """Each client id that stands more than once, with its connections."""
        connections: dict[str, list[str]] = {}
        for connection, info in self.channels.items():
            connections.setdefault(info.client_id, []).append(connection)
        return {client_id: held for client_id, held in connections.items() if len(held) > 1}

    def forget_consumers(self) -> None:
        """The last connection is gone: so are the group's topics and model."""
        self.message_model = self.consume_type = self.consume_from_where = None
        self.subscriptions = {}

    def is_over(self) -> bool:
        """Whether nothing is left to be kept."""
        return not (self.channels or self.producers or self.locks or self.request_modes)
