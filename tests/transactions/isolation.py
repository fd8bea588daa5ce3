"""What an open transaction costs everybody else: `python -m tests.transactions.isolation`.

Groups commit and fetch through a gateway. In every other slice one more group has a pending offset, in a
transaction that its application does not end.
"""

import asyncio
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click

from bench.load.frames import ADD_OFFSETS, INIT_PRODUCER, OLD_END_TXN, OLD_TXN_COMMIT, STABLE_FETCH
from bench.stats import percentile
from connections.address import Address
from tests.campaigns.results import markdown
from tests.e2e.harness import create_topic
from tests.faults.campaign.load.classic import PARTITIONS, TOPIC, shares
from tests.faults.campaign.load.gateway import GatewayTransport
from tests.faults.campaign.load.transactional import Producer, TransactionCoordinator
from tests.transactions.stage import TransactionStage

GROUP = "with-a-transaction"
TRANSACTION_TIMEOUT_MS = 900_000
UNSTABLE_OFFSET_COMMIT = 88
PAUSE_S = 0.5
OPEN, NONE_OPEN = "one transaction is open", "no transaction is open"
OTHERS, SAME = "commits and fetches of other groups", "heartbeats of the same group"


@dataclass
class Measured:
    """The times of answers in s, by who asked and by what was open, for each slice."""

    slice: tuple[str, int] | None = None
    times_s: dict[tuple[str, str], dict[int, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    async def measure(self, who: str, answer: Awaitable[int]) -> int:
        """Wait for the answer. It counts for the slice in which the request was sent."""
        slice_, began_s = self.slice, time.monotonic()
        error = await answer
        if slice_ is not None:
            meanwhile, number = slice_
            self.times_s[who, meanwhile][number].append(time.monotonic() - began_s)
        return error

    def quantile_s(self, who: str, meanwhile: str, q: float) -> float:
        """The median of the slices' quantiles: one long pause changes that of its own slice only."""
        return median(percentile(times_s, q) for times_s in self.times_s[who, meanwhile].values())


class OpenTransaction:
    """The group whose application leaves a transaction open, and its only member."""

    def __init__(self, gateway: Address) -> None:
        self._transport = GatewayTransport(gateway)
        self._heart = GatewayTransport(gateway)
        self._tc = TransactionCoordinator(gateway, GROUP)
        self._producer = Producer(-1, -1)
        self._member_id = ""
        self._generation = -1

    async def join(self) -> None:
        """Become the group's member, and begin as a producer."""
        first = await self._transport.join(GROUP, "")
        self._member_id = first.member_id
        joined = await self._transport.join(GROUP, self._member_id)
        self._generation = joined.generation
        dealt = shares([self._member_id])
        error, _ = await self._transport.sync(GROUP, self._generation, self._member_id, dealt)
        assert error == 0
        began = await self._tc.ask(INIT_PRODUCER, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        self._producer = Producer(began.producer_id, began.producer_epoch)

    async def heartbeat(self) -> int:
        return await self._heart.heartbeat(GROUP, self._generation, self._member_id)

    async def open(self) -> None:
        """Leave an offset pending."""
        producer = {"producer_id": self._producer.id, "producer_epoch": self._producer.epoch}
        await self._tc.ask(ADD_OFFSETS, **producer, group_id=GROUP)
        place = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
        answer = await self._transport.ask(
            OLD_TXN_COMMIT,
            transactional_id=GROUP,
            group_id=GROUP,
            **producer,
            generation_id=self._generation,
            member_id=self._member_id,
            topics=[{"name": TOPIC, "partitions": [{**place, "committed_metadata": ""}]}],
        )
        assert answer.topics[0].partitions[0].error_code == 0, answer
        assert await self.fetch() == UNSTABLE_OFFSET_COMMIT

    async def abort(self) -> None:
        """End the transaction, and wait until nothing is pending."""
        await self._tc.ask(
            OLD_END_TXN,
            producer_id=self._producer.id,
            producer_epoch=self._producer.epoch,
            committed=False,
        )
        while await self.fetch() == UNSTABLE_OFFSET_COMMIT:
            pass

    async def fetch(self) -> int:
        """The error of a fetch of the stable offset."""
        topics = [{"name": TOPIC, "partition_indexes": [0]}]
        answer = await self._transport.ask(STABLE_FETCH, group_id=GROUP, topics=topics, require_stable=True)
        return int(answer.topics[0].partitions[0].error_code)


async def other(number: int, gateway: Address, measured: Measured) -> None:
    """Commit and fetch in turn until cancelled."""
    transport, group = GatewayTransport(gateway), f"other-{number}"
    await asyncio.sleep(PAUSE_S * number / 100)
    offset = 0
    while True:
        offset += 1
        partition = offset % PARTITIONS
        error = await measured.measure(OTHERS, transport.commit(group, -1, "", partition, offset))
        assert error == 0, error
        await asyncio.sleep(PAUSE_S)
        await measured.measure(OTHERS, transport.fetch(group, partition))
        await asyncio.sleep(PAUSE_S)


async def beat(transaction: OpenTransaction, measured: Measured) -> None:
    """Send heartbeats until cancelled."""
    while True:
        error = await measured.measure(SAME, transaction.heartbeat())
        assert error == 0, error
        await asyncio.sleep(PAUSE_S)


async def play(gateway: Address, groups: int, slices: int, slice_s: float) -> Measured:
    """Slices in turn, the first without a transaction. There is a slice before them that does not count."""
    measured = Measured()
    transaction = OpenTransaction(gateway)
    await transaction.join()
    tasks = [asyncio.create_task(other(number, gateway, measured)) for number in range(groups)]
    tasks.append(asyncio.create_task(beat(transaction, measured)))
    try:
        await _slice(tasks, slice_s)
        for number in range(slices):
            measured.slice = NONE_OPEN, number
            await _slice(tasks, slice_s)
            measured.slice = None
            await transaction.open()
            measured.slice = OPEN, number
            await _slice(tasks, slice_s)
            measured.slice = None
            await transaction.abort()
    finally:
        for task in tasks:
            task.cancel()
    return measured


async def _slice(tasks: Sequence["asyncio.Task[Any]"], slice_s: float) -> None:
    """Let a time pass. Raises what a task raised."""
    done, _ = await asyncio.wait(tasks, timeout=slice_s, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()


def table(measured: Measured) -> str:
    """The medians of the slices' quantiles, in ms."""
    rows: list[tuple[str, ...]] = []
    for who in (OTHERS, SAME):
        for meanwhile in (NONE_OPEN, OPEN):
            answers = sum(map(len, measured.times_s[who, meanwhile].values()))
            quantiles = [f"{1000 * measured.quantile_s(who, meanwhile, q):.0f}" for q in (0.5, 0.99)]
            rows.append((who, meanwhile, f"{answers:,}", *quantiles))
    return markdown(("who", "meanwhile", "answers", "p50 (ms)", "p99 (ms)"), rows, texts=2)


@click.command()
@click.option("--groups", type=click.IntRange(1), default=100, show_default=True)
@click.option("--slices", type=click.IntRange(1), default=6, show_default=True, help="Of each kind.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="The length of a slice.")
def main(groups: int, slices: int, seconds: float) -> None:
    """Measure the answers of other groups with and without an open transaction, in turns."""
    folder = Path(tempfile.mkdtemp(prefix="isolation-"))
    stage = TransactionStage(folder, 1, [])
    try:
        stage.start()
        create_topic(stage.client_config, TOPIC, PARTITIONS, {})
        measured = asyncio.run(play(stage.first_gateway, groups, slices, seconds))
    finally:
        stage.close()
    shutil.rmtree(folder)
    click.echo(table(measured))


if __name__ == "__main__":
    main()
