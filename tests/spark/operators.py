"""Operators with deliberate faults. They have a module of their own because Python workers import them."""

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
from state.kafka.requests import Unanswered
from state.kafka.timers import DeadlineReached
from state.rocketmq.requests import ConnectionClosed
from streaming.query.operator import Operator

POISON = "poison"
DEADLY = "deadly"
FRAIL = "frail"
MEMORY_TOPIC = "memory"


class InjectedFault(Exception):
    """The error of a faulty step."""


def faulty_step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """The core's step, which raises after its work for three kinds of clients.

    A request of client POISON raises. A request of client DEADLY raises even while it is refused. The
    deadlines of members of client FRAIL raise.
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
    return "" if isinstance(request, ConnectionClosed | Unanswered) else request.client_id


def leave_an_unreadable_state(
    key: tuple[int], frames: Iterable[pd.DataFrame], state: SparkGroupState
) -> Iterator[pd.DataFrame]:
    """Write a state of an unknown version."""
    state.update((99, b"from the future"))
    yield pd.DataFrame()


@dataclass(frozen=True)
class Measured:
    """An operator that also writes its Python process's memory before the call, and the peak during it."""

    operator: Operator

    def __call__(
        self, key: tuple[int], frames: Iterable[pd.DataFrame], state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _memory_bytes("VmRSS")
        yield from self.operator(key, frames, state)
        value = json.dumps({"before": before, "peak": _memory_bytes("VmHWM")}).encode()
        yield pd.DataFrame({"topic": [MEMORY_TOPIC], "partition": [-1], "key": [b""], "value": [value]})


def _memory_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
