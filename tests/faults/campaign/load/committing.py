"""Groups of librdkafka's consumers that commit growing offsets, and note what they were answered.

Some commit without members. Others have members that subscribe, join, send heartbeats, and commit what they
own.
"""

import threading
import time
from collections.abc import Iterable
from itertools import count
from random import Random
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.e2e.harness import wait_until
from tests.faults.campaign.judge.losses import Commit
from tests.faults.campaign.load.classic import PARTITIONS, TOPIC

SIMPLE_GROUPS, SUBSCRIBED_GROUPS, MEMBERS = 8, 2, 2
# The least of Kafka's brokers. A commit that finds no coordinator fails after as long.
SESSION_MS = 6_000
_PAUSES_S = (0.005, 0.05)
_POLL_S = 0.02
_START_TIMEOUT_S = 180.0
# Answers after which the client sends its commit again, so that they decide nothing.
_RETRIED = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
}


class Committing:
    """The groups, during the block. `commits` has each commit from the moment when it is sent."""

    def __init__(self, gateway: str, random: Random) -> None:
        self.commits: list[Commit] = []
        self._gateway = gateway
        self._stopped = threading.Event()
        simple = [f"simple-{number}" for number in range(SIMPLE_GROUPS)]
        subscribed = {f"subscribed-{number}": count(1) for number in range(SUBSCRIBED_GROUPS)}
        self._groups = {*simple, *subscribed}
        targets: list[tuple[Any, ...]] = [(self._commit_simply, group, random.random()) for group in simple]
        for group, offsets in subscribed.items():
            targets += [(self._commit_owned, group, offsets, random.random()) for _ in range(MEMBERS)]
        self._threads = [threading.Thread(target=one, args=args, daemon=True) for one, *args in targets]

    def __enter__(self) -> Self:
        """Start, and return when each group has had a commit acknowledged."""
        for thread in self._threads:
            thread.start()
        wait_until(self._all_are_acknowledged, "commits of all groups", _START_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Send nothing more. Commits that are under way fail in a while."""
        self._stopped.set()

    def acknowledged(self) -> int:
        """The number of commits that were acknowledged so far."""
        return sum(bool(commit.is_acknowledged) for commit in list(self.commits))

    def _all_are_acknowledged(self) -> bool:
        return {commit.key[0] for commit in list(self.commits) if commit.is_acknowledged} == self._groups

    def _commit_simply(self, group: str, seed: float) -> None:
        """Commit for one partition, without a member."""
        random = Random(seed)
        consumer = self._consumer(group)
        partition = random.randrange(PARTITIONS)
        for offset in count(1):
            if self._stopped.wait(random.uniform(*_PAUSES_S)):
                return
            self._commit(consumer, group, [(partition, offset)])

    def _commit_owned(self, group: str, offsets: Iterable[int], seed: float) -> None:
        """Commit for what a member owns. Members of a group share `offsets`."""
        random = Random(seed)
        consumer = self._consumer(group)
        consumer.subscribe([TOPIC])
        while not self._stopped.wait(random.uniform(*_PAUSES_S)):
            consumer.poll(_POLL_S)
            owned = [one.partition for one in consumer.assignment()]
            if owned:
                offset = next(iter(offsets))
                self._commit(consumer, group, [(partition, offset) for partition in owned])

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._gateway,
                "group.id": group,
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                "log_level": 0,
            }
        )

    def _commit(self, consumer: Consumer, group: str, offsets: list[tuple[int, int]]) -> None:
        """Commit synchronously, and note the answer for each partition."""
        now_s = time.monotonic()
        sent = [Commit((group, TOPIC, partition), offset, sent_s=now_s) for partition, offset in offsets]
        self.commits += sent
        committed = [TopicPartition(TOPIC, partition, offset) for partition, offset in offsets]
        try:
            answers = consumer.commit(offsets=committed, asynchronous=False)
        except KafkaException as error:
            for commit in sent:
                _note(commit, error.args[0])
            return
        by_partition = {answer.partition: answer.error for answer in answers}
        for commit in sent:
            _note(commit, by_partition[commit.key[2]])


def _note(commit: Commit, error: KafkaError | None) -> None:
    """Take the answer of a commit. Errors of the library's own, which are negative, are no answers."""
    commit.answered_s = time.monotonic()
    if error is None:
        commit.is_acknowledged = True
    elif error.code() > 0 and error.code() not in _RETRIED:
        commit.is_acknowledged = False
