"""Consumers and a load that stay attached while something happens to the coordinator, and what they count."""

import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.demo.load import Load, consumed
from records.client_config import ClientConfig
from tests.e2e.harness import wait_until

PARTITIONS = 4
CONSUMERS = 2
RECORDS_PER_S = 20.0
CATCH_UP_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Attached:
    """Processes of kafka-python's consumer in one group, and a producer of numbered records."""

    group_id: str
    load: Load
    files: list[Path]
    consumers: list[subprocess.Popen[bytes]]

    def consumed(self) -> Counter[str]:
        """How often each record was consumed."""
        return consumed(self.files)

    def wait_for_more(self) -> None:
        """Wait until each consumer has consumed some of the records that are produced from now on."""
        before = self.sizes()

        def came() -> bool:
            for consumer, file in zip(self.consumers, self.files, strict=True):
                assert consumer.poll() is None, file.with_suffix(".log").read_text()[-2_000:]
            return all(now > then for now, then in zip(self.sizes(), before, strict=True))

        wait_until(came, "records at each consumer", CATCH_UP_TIMEOUT_S)

    def sizes(self) -> list[int]:
        """How many bytes each consumer has written of what it consumed."""
        return [file.stat().st_size if file.exists() else 0 for file in self.files]

    def finish(self) -> tuple[int, int, int]:
        """Stop the load and wait for the rest: records produced, consumed, consumed more than once.

        A record that the producer gave up may be there or not: it does not count.
        """
        self.load.stop()
        produced = self.load.acknowledged
        wait_until(lambda: produced <= self.consumed().keys(), "all records", CATCH_UP_TIMEOUT_S)
        counts = self.consumed()
        again = sum(1 for record in produced if counts[record] > 1)
        return len(produced), len(produced & counts.keys()), again


@contextmanager
def attached(gateway: str, broker: str, folder: Path) -> Iterator[Attached]:
    """Consumers that share a topic of their own through the gateway, each of which has records."""
    name = f"attached-{uuid.uuid4()}"
    load = Load(ClientConfig(broker), name, PARTITIONS, RECORDS_PER_S)
    files = [folder / f"{name}-{i}.jsonl" for i in range(CONSUMERS)]
    consumers = []
    load.start()
    try:
        for i, file in enumerate(files):
            module = [sys.executable, "-W", "ignore", "-m", "cli.demo.consumer"]
            command = [*module, gateway, name, name, f"consumer-{i}", str(file)]
            with (folder / f"{name}-{i}.log").open("wb") as log:
                consumers.append(subprocess.Popen(command, stderr=log, stdout=log, env=os.environ))
        running = Attached(name, load, files, consumers)
        running.wait_for_more()
        yield running
    finally:
        for consumer in consumers:
            consumer.kill()
            consumer.wait()
        load.stop()
