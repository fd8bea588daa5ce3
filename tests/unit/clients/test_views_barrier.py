"""After the barrier the topics have the views of everything that was answered before it, however the query
cuts its batches, and in whatever order it writes.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients import coordinator_client
from clients.coordinator_client import CoordinatorClient, Header, barrier_rounds, wait_for_views
from kafka_why.contract.messages import Request
from kafka_why.partitioner import partition_of


class Query(CoordinatorClient):
    """A log with early answers, and a query that goes on by random steps whenever an answer is waited for.

    It plans a batch partition by partition, as offsets are listed, writes the outputs of the batch in any
    order, and plans the next one when all are written. `request_partitions` are those of the log.
    """

    def __init__(self, partitions: int, random: Random) -> None:
        self._log: list[list[str]] = [[] for _ in range(partitions)]
        self._random = random
        self._planned_to = [0] * partitions
        self._to_plan: list[int] = []
        self._planned: list[str] = []
        self._to_write: list[str] = []
        self._names = 0
        self.written: set[str] = set()

    @property
    def request_partitions(self) -> int:
        return len(self._log)

    def header(self, group_id: str, api_version: int = 0) -> Header:
        self._names += 1
        return Header(
            group_id=group_id,
            correlation_id=f"barrier-{self._names}",
            reply_partition=0,
            api_version=api_version,
            client_id="",
            client_host="",
        )

    def send(self, request: Any, *, timeout_ms: int | None = None) -> Any:
        assert isinstance(request, Request)
        assert request.waits_for_views is True
        self.append(partition_of(request.group_id, len(self._log)), request.correlation_id)
        return _Answer(self, request.correlation_id)

    def append(self, partition: int, name: str) -> None:
        self._log[partition].append(name)

    def go_on(self) -> None:
        """Take one step of the query."""
        if self._to_write:
            self.written.add(self._to_write.pop(self._random.randrange(len(self._to_write))))
            if not self._to_write and not self._to_plan:
                return
        elif not self._to_plan:
            self._to_plan = list(range(len(self._log)))
            self._random.shuffle(self._to_plan)
            self._planned = []
        if self._to_plan:
            partition = self._to_plan.pop()
            self._planned += self._log[partition][self._planned_to[partition] :]
            self._planned_to[partition] = len(self._log[partition])
            if not self._to_plan:
                self._to_write = self._planned


class _Answer:
    def __init__(self, query: Query, name: str) -> None:
        self._query, self._name = query, name

    def result(self) -> None:
        while self._name not in self._query.written:
            self._query.go_on()


def lost(partitions: int, seed: int) -> set[str]:
    """Return the requests that were answered early before the barrier, and whose views are not written after
    it.
    """
    random = Random(seed)
    query = Query(partitions, random)
    answered = set()
    for n in range(random.randrange(12)):
        query.append(random.randrange(partitions), f"r-{n}")
        answered.add(f"r-{n}")
        for _ in range(random.randrange(6)):
            query.go_on()
    wait_for_views(query)
    return answered - query.written


@given(st.integers(1, 4), st.integers(0, 2**32))
def test_after_the_barrier_topics_have_every_answered_change(partitions: int, seed: int) -> None:
    assert not lost(partitions, seed)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(lambda groups: [groups], id="one round"),
        pytest.param(lambda groups: [groups[:1], groups[:1]], id="one partition"),
    ],
)
def test_shorter_barrier_loses_changes(rounds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fewer(partitions: int) -> Sequence[Sequence[str]]:
        found: Sequence[Sequence[str]] = rounds(barrier_rounds(partitions)[0])
        return found

    monkeypatch.setattr(coordinator_client, "barrier_rounds", fewer)
    assert any(lost(3, seed) for seed in range(500))


@given(st.integers(1, 64))
def test_the_first_round_has_a_group_in_each_partition(partitions: int) -> None:
    first, second, third = barrier_rounds(partitions)
    assert [partition_of(group_id, partitions) for group_id in first] == list(range(partitions))
    assert len(second) == len(third) == 1
