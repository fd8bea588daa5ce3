"""The instances of the word count, each in a JVM of its own."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from tests.campaigns.verdict import Verdict
from tests.harness.kafkas_word_count import JavaWordCounts, WordCountInstance
from tests.streams.judge import Violation
from tests.transactions.applications import TRANSACTION_TIMEOUT_MS, Application, WordCount
from tests.transactions.checker import Copy
from tests.transactions.fleet import Fleet

INSTANCES = 2
"""The instances of an application between two faults. The first one is a static member."""


class StreamsWordCount(WordCount):
    """The word count of `tests.harness.kafkas_word_count`, whose counts are texts."""

    @property
    def topics(self) -> tuple[str, str]:
        return "words-input", "words-output"

    def judge(self, inputs: Mapping[int, int], outputs: Iterable[Copy]) -> Iterator[Verdict]:
        return super().judge(inputs, (copy._replace(value=int(copy.value).to_bytes(8)) for copy in outputs))


class Instance:
    """An instance, and the JVM that it has while it runs."""

    java: JavaWordCounts
    application: WordCountInstance

    def __init__(self, name: str, build: Callable[[], JavaWordCounts], group: str, topics: tuple[str, str]):
        self.name = name
        self.is_running = False
        self._build, self._group, self._topics = build, group, topics

    def start(self, **settings: str) -> None:
        """Start it, with exactly-once processing unless `settings` say otherwise."""
        settings = {"processing_guarantee": "exactly_once_v2"} | settings
        if self.name == "static":
            settings["group_instance_id"] = self.name
        self.java = self._build()
        self.application = self.java.start(self.name, self._group, self._topics, **settings)
        self.is_running = True

    def kill(self) -> None:
        self.is_running = False
        self.java.kill()

    def close(self, *, leaves: bool = True) -> None:
        """Close it, and end its JVM. If it does not leave the group, its session continues."""
        self.is_running = False
        self.application.stop(leaves=leaves)
        self.java.close()


class StreamsFleet(Fleet):
    """A fleet whose instances are `all_instances`. The last one runs only after a fault that adds it."""

    backlog = 50

    def __init__(
        self, application: Application, servers: str, reach: Callable[[int], str], folder: Path
    ) -> None:
        super().__init__(application, servers, reach, folder, instances=0)
        names = ("static", *(f"dynamic-{number}" for number in range(INSTANCES)))
        self.all_instances = [self._word_count(name, reach(at), folder) for at, name in enumerate(names)]
        self.failed: list[Verdict] = []
        """Instances that ended in ERROR."""

    @property
    def running(self) -> list[Instance]:
        return [instance for instance in self.all_instances if instance.is_running]

    def start(self) -> Self:
        super().start()
        self.restore()
        return self

    def restore(self) -> None:
        """Start or close instances until as many run as between two faults."""
        for number, instance in enumerate(self.all_instances):
            if number < INSTANCES and not instance.is_running:
                instance.start()
            elif number >= INSTANCES and instance.is_running:
                instance.close()

    def tend(self) -> None:
        """Replace the instances that have ended in ERROR, and note them."""
        for instance in self.running:
            if instance.application.state == "ERROR":
                place = f"{instance.name}: {instance.application.errors}"
                self.failed.append(Verdict(Violation.ERROR, time.monotonic_ns(), instance.name, place))
                instance.close()
                instance.start()

    def held(self) -> dict[str, set[str]]:
        """Return the tasks of each instance that runs: none before it is RUNNING."""
        running = [(it.name, it.application) for it in self.running]
        return {name: {*it.tasks()} if it.state == "RUNNING" else set() for name, it in running}

    def stop(self) -> None:
        for instance in self.running:
            instance.kill()
        super().stop()

    def _word_count(self, name: str, servers: str, folder: Path) -> Instance:
        own = folder / name
        own.mkdir(parents=True)
        settings = {"producer.transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS)}
        topics = self.application.topics
        return Instance(name, lambda: JavaWordCounts(servers, own, settings), self.group, topics)
