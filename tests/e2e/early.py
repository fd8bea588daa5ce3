"""Reads the answers of a replica and of the query from the responses topic."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kafka.consumer.fetcher import ConsumerRecord

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import unpack
from kafka_why.contract.early_answers import as_of, lists_changed, marker_of
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ReplicaPhase
from streaming.replica.audit import request_of
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options
from tests.e2e.harness import child_pids, command_of, coordinating, read_topic, wait_until


@contextmanager
def answering(options: Options) -> Iterator[Coordinator]:
    """Yield a coordinator whose replica answers."""
    with coordinating(options) as coordinator:
        wait_until(lambda: coordinator.replica().phase == ReplicaPhase.ANSWERING, "the replica answers")
        yield coordinator


def pid_of_replica() -> int:
    """Return the process of the replica of this process' coordinator."""
    (pid,) = [pid for pid in child_pids(os.getpid()) if "streaming.replica" in command_of(pid)]
    return pid


def answers(
    client_config: ClientConfig, layout: TopicLayout
) -> tuple[dict[str, list[bytes]], dict[str, list[bytes]]]:
    """Return the early answers and those of the query, by the ids of their requests."""
    early: dict[str, list[bytes]] = {}
    of_query: dict[str, list[bytes]] = {}
    for record in read_topic(client_config, layout.responses_topic):
        if record.value is not None:
            found = of_query if as_of(record.headers) is None else early
            for value in unpack(record.value):
                if found is early and lists_changed(value):
                    continue
                request = request_of(value)
                assert request is not None
                found.setdefault(request, []).append(value)
    return early, of_query


def markers(records: list[ConsumerRecord]) -> dict[int, int]:
    """Return the number of markers by partition."""
    counts: dict[int, int] = {}
    for record in records:
        if marker_of(record.headers) is not None:
            counts[record.partition] = counts.get(record.partition, 0) + 1
    return counts
