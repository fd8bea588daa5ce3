"""The stage of streams applications: a broker, the coordinator, two gateways, a word count."""

from contextlib import suppress
from pathlib import Path
from random import Random
from types import MappingProxyType

from tests.campaigns.results import Result, StruckFault
from tests.campaigns.verdict import Verdict
from tests.e2e.harness import wait_until
from tests.streams.fleet import StreamsFleet, StreamsWordCount
from tests.streams.judge import Violation, judge_tasks
from tests.transactions.applications import PARTITIONS
from tests.transactions.stage import TransactionStage

SESSION_MS = 10_000
ACTIVE, OUTPUT = "all tasks active", "output goes on"
_SETTLE_TIMEOUT_S = 120.0


class StreamsStage(TransactionStage):
    """A stage whose load is a word count. As a reference it has Kafka's own coordinator."""

    fleet = StreamsFleet
    fleets: list[StreamsFleet]  # type: ignore[assignment]
    settings = MappingProxyType(
        {
            "group.streams.min.session.timeout.ms": str(SESSION_MS),
            "group.streams.session.timeout.ms": str(SESSION_MS),
            "group.streams.min.heartbeat.interval.ms": "500",
            "group.streams.heartbeat.interval.ms": "500",
            "group.streams.initial.rebalance.delay.ms": "500",
            "group.streams.num.standby.replicas": "1",
        }
    )

    def __init__(self, folder: Path, seed: int, *, is_reference: bool = False) -> None:
        super().__init__(folder, seed, [StreamsWordCount()], is_reference=is_reference)
        self._active_ns = 0
        self._wrongs: list[Verdict] = []

    @property
    def word_count(self) -> StreamsFleet:
        return self.fleets[0]

    def before_fault(self, struck: StruckFault, random: Random) -> None:
        super().before_fault(struck, random)
        self._active_ns = 0

    def wait_for_progress(self) -> float:
        """Wait until each task has one owner and each store a standby, and more of the output is committed.
        The judge names what has not come.
        """
        with suppress(AssertionError):
            wait_until(
                lambda: self._found() <= {Violation.STANDBY}, "an owner of each task", _SETTLE_TIMEOUT_S
            )
        self._active_ns = self._active_ns or self.now()
        with suppress(AssertionError):
            wait_until(lambda: not self._found(), "a standby of each store", _SETTLE_TIMEOUT_S)
        self._wrongs += judge_tasks(self.word_count.held(), PARTITIONS, self.now())
        return super().wait_for_progress()

    def after_fault(self, struck: StruckFault) -> None:
        """Note the times from the fault on, and undo a fault that changed the number of instances."""
        struck.measured[ACTIVE] = (self._active_ns - struck.at) / 1e9
        struck.measured[OUTPUT] = (self.now() - struck.at) / 1e9
        self.word_count.restore()
        self.wait_for_progress()

    def judge(self, result: Result) -> None:
        super().judge(result)
        self.word_count.tend()
        result.take([*self._wrongs, *self.word_count.failed])

    def _found(self) -> set[Violation]:
        """Return what is wrong with the tasks now. Instances that ended in ERROR are replaced."""
        self.word_count.tend()
        return {Violation(it.violation) for it in judge_tasks(self.word_count.held(), PARTITIONS, 0)}
