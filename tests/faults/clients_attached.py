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
from connections.client_config import ClientConfig
from records.layout import TopicLayout
from state.kafka.classic_group import GroupState
from tests.e2e.harness import snapshots_of, wait_until

PARTITIONS = 4
CONSUMERS = 2
RECORDS_PER_S = 20.0
CATCH_UP_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Attached:
    """Processes of kafka-python's consumer in one group, and a producer of numbered records."""

    group_id: str
    broker: ClientConfig
    load: Load
    files: list[Path]
    consumers: list[subprocess.Popen[bytes]]

    def consumed(self) -> Counter[str]:
        """How often each record was consumed."""
        return consumed(self.files)

    def wait_until_settled(self) -> None:
        """Wait until each consumer has consumed records in the group's present generation.

        Records alone do not show it. A consumer of kafka-python joins again if its round ended between two of
        its polls, and it may have records of the generation before.
        """

        def has_settled() -> bool:
            generation = self._stable_generation()
            if generation is None:
                return False
            self.wait_for_more()
            return self._stable_generation() == generation

        wait_until(has_settled, "records at each consumer in one generation", CATCH_UP_TIMEOUT_S)

    def _stable_generation(self) -> int | None:
        """The generation of a group that is Stable by its latest view, None if it is not."""
        views = snapshots_of(self.broker, TopicLayout.named(), self.group_id, settled=False)
        return views[-1].generation if views and views[-1].state == GroupState.STABLE else None

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
    """Consumers that share a topic of their own through the gateway of a coordinator with the default topics.
    Each has partitions.
    """
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
        running = Attached(name, ClientConfig(broker), load, files, consumers)
        running.wait_until_settled()
        yield running
    finally:
        for consumer in consumers:
            consumer.kill()
            consumer.wait()
        load.stop()
