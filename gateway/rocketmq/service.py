"""A gateway for RocketMQ's clients, and its requests about groups, at all broker ports."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

from clients.coordinator_client import CoordinatorClient
from gateway.coordinator.backend import CoordinatorBackend
from gateway.coordinator.groups import rocketmq_groups
from gateway.net.listener import CannotListen, allow_open_files, files_for
from gateway.rocketmq.backend import ConnectedClient, ConnectionMessages, CoordinatorRequests
from gateway.rocketmq.brokers import BrokerAddress
from gateway.rocketmq.facts import ClusterFacts, QueueLags
from gateway.rocketmq.metrics import RocketmqCounts
from gateway.rocketmq.options import RocketmqOptions
from gateway.rocketmq.peers import Peers, Restart
from gateway.rocketmq.server import RocketmqGateway
from gateway.rocketmq.session import GatewayParts, GroupSession
from gateway.running import (
    COORDINATOR,
    LISTENING,
    Readiness,
    RunningGateway,
    Started,
    loop_watched,
    running_on_thread,
)
from gateway.service import NoSuchReplyPartition, check_reply_partition
from gateway.upstream.connections import UpstreamLost
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.connections.used_settings import ClientConfigError
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.rocketmq.requests import AnyToConnection, CloseConnection, SetMessageRequestMode

MASTER_ID = 0


class RocketmqGroupRequests:
    """The sessions of a gateway's client connections, and the delivery of the coordinator's messages to them.
    Use it on the event loop's thread.
    """

    def __init__(self, parts: GatewayParts, messages: ConnectionMessages, counts: RocketmqCounts) -> None:
        self._parts = parts
        self._messages = messages
        self._counts = counts
        self._sessions: dict[str, GroupSession] = {}
        self._following: asyncio.Task[None] | None = None

    @property
    def gateway_start(self) -> str:
        """The id of this start of the gateway."""
        return self._parts.restart.gateway_start

    async def start(self, brokers: Callable[[], Collection[BrokerAddress]]) -> None:
        """Join the group of all gateways, remove the connections of earlier starts, and take over the
        brokers' request modes.

        Call this before the gateway listens. Raises ClientError.
        """
        self._messages.start(self._deliver)
        self._following = asyncio.create_task(self._parts.peers.follow())
        await asyncio.gather(*(self._take_over_modes(it) for it in brokers() if it.id == MASTER_ID))
        await self._parts.restart.announce(self._parts.coordinator, self._parts.groups)
        self._parts.restart.begin()

    def session(self, client: ConnectedClient) -> GroupSession:
        """Return the session of a client connection."""
        session = self._sessions[client.connection] = GroupSession(self._parts, client, self._sessions.pop)
        return session

    async def follow_lags(
        self, options: RocketmqOptions, brokers: Callable[[], Iterable[BrokerAddress]]
    ) -> None:
        """Poll the lags of the groups for the metrics, until cancelled."""
        servers = RocketMqServers(options.namesrv, options.credentials, options.upstream_tls)
        lags = QueueLags(
            servers, self._parts.groups, self._parts.facts, self._counts, max_queues=options.lag_queues
        )
        await lags.follow(brokers)

    async def coordinator_check(self) -> str | None:
        """Return the reason why the coordinator is not usable, or None."""
        return await self._parts.coordinator.check()

    async def close(self) -> None:
        """Wait a short time for the last records, and close the gateway's own connections."""
        if self._following is not None:
            self._following.cancel()
        await self._parts.coordinator.close()
        await self._parts.facts.close()

    async def _take_over_modes(self, broker: BrokerAddress) -> None:
        """Set the request modes that were set at the broker without this gateway."""
        modes = await self._parts.facts.request_modes(broker.address)
        for topic, of_groups in modes.items():
            for group_id, setting in of_groups.items():
                group = self._parts.groups.get(group_id)
                if group is None or topic not in group.request_modes:
                    coordinator = self._parts.coordinator
                    record = SetMessageRequestMode(
                        **coordinator.about(group_id, "", self._parts.restart.gateway_start, str(broker)),
                        topic=topic,
                        mode=setting.mode,
                        pop_share_queue_num=setting.pop_share_queue_num,
                    )
                    coordinator.send(record)

    def _deliver(self, message: AnyToConnection) -> None:
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
def group_requests(
    options: RocketmqOptions, layout: TopicLayout, counts: RocketmqCounts
) -> Iterator[RocketmqGroupRequests]:
    """Connect to the coordinator's topics, and yield the requests about groups.

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
        rocketmq_groups(options.client_config, layout) as groups,
    ):
        coordinator = CoordinatorRequests(client, CoordinatorBackend(client, options.limits, counts.records))
        facts = ClusterFacts(options.namesrv, options.credentials, options.upstream_tls)
        restart = Restart(options.name, uuid4().hex)
        peers = Peers(options.name, coordinator, groups)
        parts = GatewayParts(coordinator, groups, facts, restart, peers)
        yield RocketmqGroupRequests(parts, messages, counts)


# A gateway for RocketMQ's clients, with its dependencies.


NAME_SERVER = "name server"
ROCKETMQ_CHECKS = (LISTENING, NAME_SERVER, COORDINATOR)

ROCKETMQ_STARTUP_ERRORS = (CannotListen, ClientConfigError, NoSuchReplyPartition, UpstreamLost)


@contextmanager
def running_rocketmq(options: RocketmqOptions) -> Iterator[RunningGateway]:
    """Run a gateway until the block ends.

    Raises one of ROCKETMQ_STARTUP_ERRORS, ClientError of `clients.pending` if the coordinator's topics do not
    exist, KafkaError if no broker of Kafka answers, and OSError or ValueError if the file of ports cannot be
    used.
    """
    check_reply_partition(options.reply_partition, options.layout)
    allow_open_files(files_for(options.limits))
    counts = RocketmqCounts()
    with (
        group_requests(options, options.layout, counts) as requests,
        running_on_thread(partial(_serve, options, requests, counts)) as gateway,
    ):
        yield gateway


async def _serve(
    options: RocketmqOptions, requests: RocketmqGroupRequests, counts: RocketmqCounts, started: Started
) -> None:
    gateway = RocketmqGateway(options, requests, counts)

    async def name_server() -> str | None:
        return gateway.unreachable

    following: asyncio.Task[None] | None = None
    try:
        await gateway.start()
        following = asyncio.create_task(requests.follow_lags(options, gateway.table.brokers))
        readiness = Readiness(gateway, {NAME_SERVER: name_server, COORDINATOR: requests.coordinator_check})
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        started.set_result(RunningGateway(gateway.address, gateway, readiness, loop, stop))
        with loop_watched(counts):
            await stop.wait()
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await gateway.close()
