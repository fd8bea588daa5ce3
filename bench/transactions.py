"""Measure transactions with offsets: one producer through the gateway and one at the broker itself, in turn.

Each transaction produces one record and sends the offset of one partition. The first figure is the time of
`send_offsets_to_transaction`, the second that of the whole transaction, the third the time from the end of
`commit_transaction` until the offset is read back by a consumer that requires stable offsets.
"""

import argparse
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

from bench.report import say
from bench.stats import percentile
from embedded.broker import EmbeddedBroker
from gateway.service import GatewayOptions, serving
from records import kafka_clients
from records.address import Address
from records.layout import TopicLayout
from streaming.service.coordinator import Coordinator, Options
from streaming.service.status import Phase

START_TIMEOUT_S = 180.0
TOPIC = "orders"
WARM_UP = 3
Figures = dict[str, list[float]]


def main() -> None:
    """Run transactions on both sides in turn, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.transactions", description=__doc__)
    parser.add_argument("--transactions", type=int, default=40)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    layout = TopicLayout.named("transactions")
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        EmbeddedBroker(Path(name) / "broker") as broker,
        Coordinator(Options(broker.client_config, Path(name) / "coordinator", layout)) as coordinator,
        serving(GatewayOptions(broker.client_config, layout, Address("127.0.0.1", 0))) as gateway,
    ):
        assert coordinator.status.wait_for(Phase.READY, timeout_s=START_TIMEOUT_S)
        with closing(kafka_clients.admin(broker.client_config)) as admin:
            admin.create_topics({TOPIC: {"num_partitions": 1, "replication_factor": 1}})
        with (
            closing(_Application(str(gateway))) as ours,
            closing(_Application(broker.client_config.bootstrap_servers)) as kafkas,
        ):
            for number in range(1, WARM_UP + given.transactions + 1):
                for application in (ours, kafkas):
                    application.transact(number)
            say("ended")
            print(table({"gateway and coordinator": ours.figures, "the broker itself": kafkas.figures}))


class _Application:
    """A producer with transactions, and a reader of its offsets."""

    def __init__(self, servers: str) -> None:
        self.figures: Figures = {"send offsets": [], "transaction": [], "until stable": []}
        self._group = f"group-{uuid.uuid4()}"
        self._partition = TopicPartition(TOPIC, 0)
        self._producer = KafkaProducer(bootstrap_servers=servers, transactional_id=f"app-{uuid.uuid4()}")
        self._producer.init_transactions()
        self._consumer = KafkaConsumer(
            bootstrap_servers=servers,
            group_id=self._group,
            enable_auto_commit=False,
            isolation_level="read_committed",
            retry_backoff_ms=10,
        )
        self._consumer.assign([self._partition])

    def transact(self, offset: int) -> None:
        """One transaction, with its figures in ms."""
        offsets = {self._partition: OffsetAndMetadata(offset, "", -1)}
        began_s = time.monotonic()
        self._producer.begin_transaction()
        self._producer.send(TOPIC, b"x", partition=0)
        sent_ms = _timed_ms(lambda: self._producer.send_offsets_to_transaction(offsets, self._group))
        self._producer.commit_transaction()
        whole_ms = (time.monotonic() - began_s) * 1000
        stable_ms = _timed_ms(lambda: self._wait_for(offset))
        if offset > WARM_UP:
            for name, ms in zip(self.figures, (sent_ms, whole_ms, stable_ms), strict=True):
                self.figures[name].append(ms)

    def _wait_for(self, offset: int) -> None:
        while self._consumer.committed(self._partition) != offset:
            pass  # the client itself asks again while the offset is pending

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


def _timed_ms(call: Callable[[], object]) -> float:
    began_s = time.monotonic()
    call()
    return (time.monotonic() - began_s) * 1000


def table(sides: dict[str, Figures]) -> str:
    """Medians and 99th percentiles in ms, and transactions a second."""
    lines = ["| side | figure | p50 ms | p99 ms |", "|---|---|---|---|"]
    for side, figures in sides.items():
        lines += [
            f"| {side} | {name} | {percentile(values, 0.5):.0f} | {percentile(values, 0.99):.0f} |"
            for name, values in figures.items()
        ]
        a_second = 1000 * len(figures["transaction"]) / sum(figures["transaction"])
        lines.append(f"| {side} | transactions a second | {a_second:.1f} | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
