"""Processor time of the coordinator's client, and of the gateway's way to it, per request.

    python -m bench.client_cost [--seconds 3] [--turns 3]

Another process answers in the coordinator's place: every 50 ms all requests that have come, packed as the
operator packs them. So no Spark runs, and the measured process has the client alone.
"""

import asyncio
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import click
import msgspec
from kafka import TopicPartition

from clients.coordinator_client import HEARTBEAT_VERSION, CoordinatorClient
from connections import kafka_clients
from connections.client_config import ClientConfig
from embedded.broker import EmbeddedBroker
from gateway.coordinator.backend import CoordinatorBackend
from gateway.limits import Limits
from records.codec import request_id
from records.layout import TopicLayout
from records.pack import is_pack, pack, slot_of, unpack
from records.reader import TopicReader
from state.errors import ErrorCode
from state.kafka.requests import Heartbeat
from state.kafka.responses import HeartbeatResponse
from state.messages import ANONYMOUS
from streaming.service.topics import prepare_topics

GROUPS = (1, 20, 1_000)
UNDER_WAY = 4_000
_ANSWER_INTERVAL_S = 0.05

Part = Callable[[CoordinatorClient, int, float], int]


class _Asked(msgspec.Struct):
    group_id: str
    correlation_id: str
    reply_partition: int


def answer_all(client_config: ClientConfig, layout: TopicLayout) -> None:
    """Answer every request without an error, until this process is ended."""
    decode = msgspec.json.Decoder(_Asked).decode
    producer = kafka_clients.producer(client_config)
    with TopicReader(client_config) as reader:
        reader.start(beginning=[TopicPartition(layout.requests_topic, 0)])
        while True:
            packed: dict[tuple[int, int], list[bytes]] = defaultdict(list)
            for record in reader.poll(100):
                for n, encoded in enumerate(unpack(record.value)):
                    asked = decode(encoded)
                    response = msgspec.json.encode(
                        HeartbeatResponse(
                            group_id=asked.group_id,
                            correlation_id=asked.correlation_id,
                            request=f"{request_id(record.topic, record.partition, record.offset)}#{n}",
                            error_code=ErrorCode.NONE,
                        )
                    )
                    if is_pack(record.value):
                        packed[asked.reply_partition, slot_of(asked.group_id)].append(response)
                    else:
                        producer.send(layout.responses_topic, response, partition=asked.reply_partition)
            for (reply_partition, _), responses in packed.items():
                producer.send(layout.responses_topic, pack(responses), partition=reply_partition)
            time.sleep(_ANSWER_INTERVAL_S)


def through_client(client: CoordinatorClient, groups: int, seconds: float) -> int:
    """Send heartbeats from a thread, as many under way as UNDER_WAY. Return the number of answers."""
    free = threading.Semaphore(UNDER_WAY)
    end_s = time.monotonic() + seconds
    sent = 0
    while time.monotonic() < end_s:
        free.acquire()
        future = client.heartbeat(f"group-{sent % groups}", generation_id=1, member_id="member")
        future.add_done_callback(lambda _: free.release())
        sent += 1
    for _ in range(UNDER_WAY):
        free.acquire()
    return sent


def through_backend(client: CoordinatorClient, groups: int, seconds: float) -> int:
    """The same from an event loop, one request under way for each task."""

    async def run() -> int:
        end_s = time.monotonic() + seconds

        async def beat(first: int) -> int:
            sent = 0
            while time.monotonic() < end_s:
                header = backend.header(
                    f"group-{(first + sent) % groups}", HEARTBEAT_VERSION, "c", "h", ANONYMOUS
                )
                request = Heartbeat(**header, generation_id=1, member_id="member")
                answer = await backend.ask(request)
                assert answer.error_code is ErrorCode.NONE
                sent += 1
            return sent

        return sum(await asyncio.gather(*(beat(number) for number in range(UNDER_WAY))))

    with closing(CoordinatorBackend(client, Limits(member_held_s=25.0))) as backend:
        return asyncio.run(run())


@contextmanager
def answering() -> Iterator[tuple[ClientConfig, TopicLayout]]:
    """A broker, and a process that answers."""
    layout = TopicLayout.named("cost")
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder) / "broker") as broker:
        prepare_topics(broker.client_config, layout)
        process = multiprocessing.get_context("spawn").Process(
            target=answer_all, args=(broker.client_config, layout), daemon=True
        )
        process.start()
        try:
            yield broker.client_config, layout
        finally:
            process.kill()
            process.join()


@click.command()
@click.option("--seconds", default=3.0)
@click.option("--turns", default=3)
def main(seconds: float, turns: int) -> None:
    """Print microseconds of processor time per request."""
    parts: dict[str, Part] = {"client": through_client, "gateway's backend": through_backend}
    with answering() as (client_config, layout):
        for groups in GROUPS:
            for name, part in parts.items():
                costs, rates, per_record = [], [], 1.0
                for _ in range(turns):
                    with CoordinatorClient(client_config, layout, client_id="bench") as client:
                        client.heartbeat("warm-up", generation_id=1, member_id="member").result(30)
                        began_s, began_cpu_s = time.monotonic(), time.process_time()
                        answered = part(client, groups, seconds)
                        costs.append((time.process_time() - began_cpu_s) / answered * 1e6)
                        rates.append(answered / (time.monotonic() - began_s))
                        per_record = client.counts.requests_written / client.counts.records_written
                click.echo(
                    f"{name}, {groups} groups, {UNDER_WAY} under way: {statistics.median(costs):.0f} us "
                    f"({min(costs):.0f}-{max(costs):.0f}), {statistics.median(rates):,.0f}/s, "
                    f"{per_record:.1f} requests a record"
                )


if __name__ == "__main__":
    main()
