"""A gateway for RocketMQ's clients, with its dependencies."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from gateway.health import COORDINATOR, LISTENING, Readiness
from gateway.metrics.loop_watch import loop_watched
from gateway.net.limits.connections import allow_open_files, files_for
from gateway.net.listening import CannotListen
from gateway.rocketmq.groups import RocketmqGroupRequests, group_requests
from gateway.rocketmq.metrics import RocketmqCounts
from gateway.rocketmq.options import RocketmqOptions
from gateway.rocketmq.server import RocketmqGateway
from gateway.running import RunningGateway, Started, running_on_thread
from gateway.service import NoSuchReplyPartition, check_reply_partition
from gateway.upstream.connections import UpstreamLost
from kafka_why.connections.used_settings import ClientConfigError

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

    try:
        await gateway.start()
        readiness = Readiness(gateway, {NAME_SERVER: name_server, COORDINATOR: requests.coordinator_check})
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        started.set_result(RunningGateway(gateway.address, gateway, readiness, loop, stop))
        with loop_watched(counts):
            await stop.wait()
    finally:
        await gateway.close()
