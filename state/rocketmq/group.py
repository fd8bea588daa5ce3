"""The state of one RocketMQ group: consumer connections, subscriptions, producers, locks and request modes.

This file holds data and queries only. A consumer group and a producer group of the same name are independent.
They share a state because they share the name. As in RocketMQ, each broker address has its own table of a
group's consumers. The name of a queue's broker is part of the key of its lock.
Source: ConsumerGroupInfo.java, ClientChannelInfo.java, RebalanceLockManager.java,
MessageRequestModeManager.java.
"""

from collections.abc import Iterator

from msgspec import Struct

from kafka_why.contract.rocketmq.requests import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    MessageQueue,
    RegisterConsumer,
    RegisterProducer,
    RequestMode,
    SubscriptionData,
)
from state.config import PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS, BrokerConfig
from state.protocol import DeadlineEvent


class ClientChannelInfo(Struct, array_like=True, forbid_unknown_fields=True):
    """The client of a connection.

    `broker`, `client_address`, `gateway` and `gateway_start` are those of the first heartbeat.
    """

    client_id: str
    language: str  # of the client library, as the next field
    version: int
    last_update_ms: int  # the time of its last heartbeat
    reply_partition: int  # of the responses topic, for messages to this connection
    broker: str = ""
    client_address: str = ""
    gateway: str = ""  # the name of the gateway that has the connection
    gateway_start: str = ""  # the id of the gateway's process
    subscriptions: list[str] | None = None  # sorted texts (`subscription_text`), None until sent


def channel_info(request: RegisterConsumer | RegisterProducer, now_ms: int) -> ClientChannelInfo:
    """Return the client of a new connection from its first heartbeat."""
    return ClientChannelInfo(
        client_id=request.client_id,
        language=request.language,
        version=request.client_version,
        last_update_ms=now_ms,
        reply_partition=request.reply_partition,
        broker=request.broker,
        client_address=request.client_address,
        gateway=request.gateway,
        gateway_start=request.gateway_start,
    )


class LockEntry(Struct, array_like=True, forbid_unknown_fields=True):
    """The lock of one queue: the client id that holds it, and the time at which that client last
    locked it.
    """

    client_id: str
    last_update_ms: int


class ConsumerGroupInfo(Struct, array_like=True, forbid_unknown_fields=True):
    """The consumers of the group at one broker address.

    The message model, consume type and start position are those of the last heartbeat of any consumer. In
    RocketMQ a consumer group exists while `channels` is not empty. `differing` are the different
    subscriptions of clients in the latest history entry about such differences. It is empty if all clients
    have the same.
    """

    # None if there are no consumers, as the next two.
    message_model: MessageModel | None = None
    consume_type: ConsumeType | None = None
    consume_from_where: ConsumeFromWhere | None = None
    channels: dict[str, ClientChannelInfo] = {}  # by connection, in order of arrival
    subscriptions: dict[str, SubscriptionData] = {}  # by topic
    heartbeat_fingerprint: int | None = None  # of the last heartbeat (0 for version 1), None before the first
    differing: list[list[str]] = []

    def client_ids(self) -> list[str]:
        """Return the client id of each connection, in order of arrival (RocketMQ has no order)."""
        return [info.client_id for info in self.channels.values()]

    def connections_of(self, client_id: str) -> list[str]:
        """Return the connections of a client id. More than one connection is a misconfiguration."""
        return [connection for connection, info in self.channels.items() if info.client_id == client_id]

    def duplicate_client_ids(self) -> dict[str, list[str]]:
        """Return each client id that has more than one connection, with its connections."""
        by_client_id: dict[str, list[str]] = {}
        for connection, info in self.channels.items():
            by_client_id.setdefault(info.client_id, []).append(connection)
        return {id_: connections for id_, connections in by_client_id.items() if len(connections) > 1}

    def different_subscriptions(self) -> dict[tuple[str, ...], list[str]]:
        """Return the connections that have each set of subscriptions, sorted by the subscriptions."""
        connections: dict[tuple[str, ...], list[str]] = {}
        for connection, info in self.channels.items():
            if info.subscriptions is not None:
                connections.setdefault(tuple(info.subscriptions), []).append(connection)
        return dict(sorted(connections.items()))

    def forget_consumers(self) -> None:
        """Clear the subscriptions and the message model, because the last consumer connection is gone."""
        self.message_model = self.consume_type = self.consume_from_where = None
        self.subscriptions = {}


class RocketMqGroup(Struct, array_like=True, forbid_unknown_fields=True, tag="RocketMQ"):
    """The state of one group name.

    A broker that had consumers keeps its entry in `consumers` until the group ends. The order of the fields
    is the layout of the stored state: a change of the order is a new version in `checkpoints.codec`.
    """

    group_id: str
    incarnation: str  # the id of the request that created the group
    seq: int = 0  # the number of history entries so far
    clock_ms: int = 0  # the time of the last event
    last_fired_ms: int = 0  # the latest scan that fired
    consumers: dict[str, ConsumerGroupInfo] = {}  # by broker (`name/id`)
    producers: dict[str, ClientChannelInfo] = {}  # by connection, in order of arrival
    locks: dict[MessageQueue, LockEntry] = {}
    request_modes: dict[str, RequestMode] = {}  # by topic
    quarantined: str | None = None  # the fault that stopped the group until an operator releases it

    def channels(self) -> Iterator[tuple[str, ClientChannelInfo]]:
        """Yield each consumer connection with its client, broker by broker."""
        for consumers in self.consumers.values():
            yield from consumers.channels.items()

    def is_over(self) -> bool:
        """Return True if the group has no state left to keep."""
        return not (self.producers or self.locks or self.request_modes or any(self.channels()))


# The only timer of a RocketMQ group: the scan for silent connections and expired locks.
#
# RocketMQ scans every 10 s. Here, too, a scan is at a multiple of the interval, but it runs only if it can
# find an expired entry.


class ScanDue(DeadlineEvent, frozen=True):
    """The next scan of a RocketMQ group."""

    def __str__(self) -> str:
        return f"scan at {self.deadline_ms}"


def scan_after(expiry_ms: int, config: BrokerConfig) -> int:
    """Return the time of the first scan at which an entry with `expiry_ms` is expired. At exactly `expiry_ms`
    it is not yet expired.
    """
    return (expiry_ms // config.scan_interval_ms + 1) * config.scan_interval_ms


def next_scan(group: RocketMqGroup, config: BrokerConfig) -> ScanDue | None:
    """Return the first scan that finds an expired connection or lock unless its client renews it.

    Return None if the group has no connection and no lock, or if the group is quarantined.
    """
    if group.quarantined is not None:
        return None
    expiries_ms = [
        min(last_updates_ms) + lifetime_ms
        for last_updates_ms, lifetime_ms in (
            ([info.last_update_ms for _, info in group.channels()], config.channel_expired_timeout_ms),
            ([info.last_update_ms for info in group.producers.values()], PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS),
            ([lock.last_update_ms for lock in group.locks.values()], config.lock_max_live_ms),
        )
        if last_updates_ms
    ]
    return ScanDue(scan_after(min(expiries_ms), config)) if expiries_ms else None
