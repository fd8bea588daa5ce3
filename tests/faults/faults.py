"""Operators with faults that the real one must not have. Python workers import this module."""

from collections.abc import Iterable, Iterator

import pandas as pd
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from streaming.query.admission import shard_of
from streaming.query.operator import Operator

POISON = "poison"
RUINED_GROUP = "ruined"
UNKNOWN_VERSION = 99


def poisoned_step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Return the core's step, but a request from the client `POISON` cannot even be refused."""
    request = getattr(event, "request", None)
    if request is not None and request.client_id == POISON:
        raise RuntimeError("poisoned")
    return step(group, group_id, event, now_ms, config)


class FaultyOperator(Operator):
    """An operator with a poisoned step that leaves an unreadable state for the group `RUINED_GROUP`."""

    def __call__(
        self, key: tuple[int], frames: Iterable[pd.DataFrame], state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        if key[0] == shard_of(RUINED_GROUP, int(key[0]) // self.shards, self.shards):
            state.update((UNKNOWN_VERSION, b"written by a later version"))
        else:
            yield from super().__call__(key, frames, state)
