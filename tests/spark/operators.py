"""Operators that are at fault on purpose. Python workers import them, so they stand in a module."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, AnyRequest, step
from state.inputs import Failed, Received
from state.kafka.requests import TopicMetadata
from state.kafka.timers import DeadlineReached
from state.rocketmq.requests import ConnectionClosed
from streaming.query.operator import Operator

POISON = "poison"
DEADLY = "deadly"
FRAIL = "frail"
MEMORY_TOPIC = "memory"


class InjectedFault(Exception):
    """What a step at fault raises."""


def faulty_step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """The core's step, but raising, after it did its work, for three kinds of clients.

    A request of POISON raises. One of DEADLY raises even when it is only to be refused. The deadlines of
    members whose client is FRAIL raise.
    """
    effects = step(group, group_id, event, now_ms, config)
    match event:
        case Received(request=request) | Failed(request=request) if _client_of(request) == DEADLY:
            raise InjectedFault("a request that cannot even be refused")
        case Received(request=request) if _client_of(request) == POISON:
            raise InjectedFault("a request that raises")
        case DeadlineReached() if event.member_id.startswith(FRAIL):
            raise InjectedFault("a deadline that raises")
    return effects


def _client_of(request: AnyRequest) -> str:
    return "" if isinstance(request, ConnectionClosed | TopicMetadata) else request.client_id


def leave_an_unreadable_state(
    key: tuple[bytes], frames: Iterable[pd.DataFrame], state: SparkGroupState
) -> Iterator[pd.DataFrame]:
    """Writes the state of a version that nobody knows."""
    state.update((99, b"from the future"))
    yield pd.DataFrame()


@dataclass(frozen=True)
class Measured:
    """An operator that also writes what memory its Python process had before the call, and at most in it."""

    operator: Operator

    def __call__(
        self, key: tuple[bytes], frames: Iterable[pd.DataFrame], state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        Path("/proc/self/clear_refs").write_text("5")  # begin a new peak
        before = _memory_bytes("VmRSS")
        yield from self.operator(key, frames, state)
        value = json.dumps({"before": before, "peak": _memory_bytes("VmHWM")}).encode()
        yield pd.DataFrame({"topic": [MEMORY_TOPIC], "partition": [-1], "key": [key[0]], "value": [value]})


def _memory_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
