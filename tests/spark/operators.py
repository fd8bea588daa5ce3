"""Operators for tests. They have a module of their own because Python workers import them."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.protocol import Failed, Received
from streaming.query.operator import Operator

DEADLY = "deadly"
MEMORY_TOPIC = "memory"


def faulty_step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Return the core's step, which raises for a request of client DEADLY, even while it is refused."""
    if isinstance(event, Received | Failed) and getattr(event.request, "client_id", "") == DEADLY:
        raise RuntimeError("a request that cannot even be refused")
    return step(group, group_id, event, now_ms, config)


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
