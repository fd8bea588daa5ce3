"""A gateway for RocketMQ's clients, and the sessions of its connections at all broker ports."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

from clients.coordinator_client import CoordinatorClient
from gateway.coordinator.backend import CoordinatorBackend
from gateway.coordinator.groups import GroupsTopicReader
from gateway.net.listener import allow_open_files, files_for
from gateway.rocketmq.backend import ConnectedClient, ConnectionMessages, CoordinatorRequests
from gateway.rocketmq.brokers import BrokerAddress
from gateway.rocketmq.metadata import QueueLags, RocketMqMetadata
from gateway.rocketmq.metrics import RocketmqCounts
from gateway.rocketmq.options import RocketmqOptions
from gateway.rocketmq.peers import Peers, Restart
from gateway.rocketmq.server import RocketmqGateway
from gateway.rocketmq.session import GatewayParts, GroupSession
from gateway.running import (
    COORDINATOR,
    LISTENING,
    Check,
    RunningGateway,
    Started,
    coordinator_check,
    running_on_thread,
    serve,
)
from gateway.service import check_reply_partition
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.history_reader import decode_rocketmq_snapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.rocketmq.requests import AnyToConnection, CloseConnection, SetMessageRequestMode

MASTER_ID = 0
"""The id of a broker name's master. Slaves have higher ids."""


class RocketmqSessions:
    """The sessions of a gateway's client connections, which get the coordinator's messages. Use it on the
    event loop's thread.
    """

    def __init__(self, parts: GatewayParts, messages: ConnectionMessages, counts: RocketmqCounts) -> None:
        self.backend = parts.coordinator.backend
        self._parts = parts
        self._messages = messages
        self._counts = counts
        self._sessions: dict[str, GroupSession] = {}  # by the connection's name
        self._membership: asyncio.Task[None] | None = None

    @property
    def gateway_start(self) -> str:
        """The id of this start of the gateway."""
        return self._parts.restart.gateway_start

    async def start(self, brokers: Callable[[], Collection[BrokerAddress]]) -> None:
        """Join the group of all gateways, remove the connections of earlier starts, and take over the
        brokers' request modes (pull or pop, for each topic and group).

        Call this before the gateway listens. Raises ClientError.
        """
        self._messages.start(self._deliver)
        self._membership = asyncio.create_task(self._parts.peers.follow())
        masters = (broker for broker in brokers() if broker.id == MASTER_ID)
        await asyncio.gather(*map(self._take_over_request_modes, masters))
        await self._parts.restart.announce(self._parts.coordinator, self._parts.groups)
        self._parts.restart.begin()

    def session(self, client: ConnectedClient) -> GroupSession:
        """Return the session of a client connection."""
        session = self._sessions[client.connection] = GroupSession(
            self._parts, client, forget=self._sessions.pop
        )
        return session

    async def follow_lags(
        self, options: RocketmqOptions, brokers: Callable[[], Iterable[BrokerAddress]]
    ) -> None:
        """Poll the lags of the groups for the metrics, until cancelled."""
        servers = RocketMqServers(options.namesrv, options.credentials, options.upstream_tls)
        lags = QueueLags(
            servers, self._parts.groups, self._parts.metadata, self._counts, max_queues=options.lag_queues
        )
        await lags.follow(brokers)

    async def close(self) -> None:
        """Wait a short time for the last records, and close the gateway's own connections."""
        if self._membership is not None:
            self._membership.cancel()
        await self._parts.coordinator.close()
        await self._parts.metadata.close()

    async def _take_over_request_modes(self, broker: BrokerAddress) -> None:
        """Set at the coordinator the request modes that were set at the broker without this gateway."""
        modes = await self._parts.metadata.request_modes(broker.address)
        for topic, settings_by_group in modes.items():
            for group_id, setting in settings_by_group.items():
                group = self._parts.groups.get(group_id)
                is_set_at_coordinator = group is not None and topic in group.request_modes
                if not is_set_at_coordinator:
                    coordinator = self._parts.coordinator
                    record = SetMessageRequestMode(
                        # No client sends this, so the gateway's start takes the place of a connection.
                        **coordinator.request_fields(
                            group_id,
                            client_id="",
                            connection=self._parts.restart.gateway_start,
                            broker=str(broker),
                        ),
                        topic=topic,
                        mode=setting.mode,
                        pop_share_queue_num=setting.pop_share_queue_num,
                    )
                    coordinator.send(record)

    def _deliver(self, message: AnyToConnection) -> None:
        """Pass a message of the coordinator to the session of its connection."""
        session = self._sessions.get(message.connection)
        if session is None:
            # The message is for another gateway with the same reply partition.
            return
        if isinstance(message, CloseConnection):
            session.client.close(message.reason)
        elif session.is_new_change(message.group_id, message.request):
            self._counts.notifications += 1
            session.notify(message.group_id)


@contextmanager
def connected_sessions(
    options: RocketmqOptions, layout: TopicLayout, counts: RocketmqCounts
) -> Iterator[RocketmqSessions]:
    """Connect to the coordinator's topics, and yield the gateway's sessions.

    Raises ClientError if the topics do not exist, and KafkaError if no broker of Kafka answers.
    """
    messages = ConnectionMessages()
    with (
        CoordinatorClient(
            options.client_config,
            layout,
            client_id=f"{options.name}-{uuid4()}",
            reply_partition=options.reply_partition,
            listener=messages,
        ) as client,
        GroupsTopicReader(options.client_config, layout, decode_rocketmq_snapshot) as groups,
    ):
        coordinator = CoordinatorRequests(
            client, CoordinatorBackend(client, options.limits, counts.coordinator)
        )
        metadata = RocketMqMetadata(options.namesrv, options.credentials, options.upstream_tls)
        restart = Restart(options.name, uuid4().hex)
        peers = Peers(options.name, coordinator, groups)
        parts = GatewayParts(coordinator, groups, metadata, restart, peers)
        yield RocketmqSessions(parts, messages, counts)


# A gateway for RocketMQ's clients, with its dependencies.


NAME_SERVER = "name server"
ROCKETMQ_CHECKS = (LISTENING, NAME_SERVER, COORDINATOR)


@contextmanager
def running_rocketmq(options: RocketmqOptions) -> Iterator[RunningGateway]:
    """Run a gateway until the block ends.

    Raises UserFacingError, KafkaError if no broker of Kafka answers, and OSError or ValueError if the file of
    ports cannot be used.
    """
    check_reply_partition(options.reply_partition, options.layout)
    allow_open_files(files_for(options.limits))
    counts = RocketmqCounts()
    with (
        connected_sessions(options, options.layout, counts) as sessions,
        running_on_thread(partial(_serve, options, sessions, counts)) as gateway,
    ):
        yield gateway


async def _serve(
    options: RocketmqOptions, sessions: RocketmqSessions, counts: RocketmqCounts, started: Started
) -> None:
    """Build the gateway, and serve clients until it is stopped. Runs on the event loop."""
    gateway = RocketmqGateway(options, sessions, counts)

    async def check_name_server() -> str | None:
        return gateway.unreachable

    checks: dict[str, Check] = {
        NAME_SERVER: check_name_server,
        COORDINATOR: partial(coordinator_check, sessions.backend),
    }
    follow_lags = partial(sessions.follow_lags, options, gateway.table.brokers)
    await serve(gateway, checks, counts, started, [follow_lags])
