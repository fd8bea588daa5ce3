"""Calls the operator as Spark does, with a real GroupState of PySpark and hand-made frames."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from pyspark.sql.streaming.state import GroupState as SparkGroupState
from pyspark.sql.types import StructType

from state.config import CoordinatorConfig
from streaming.query.operator import ConfigEpoch, Operator
from tests.spark.log import LAYOUT, Record

CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=0)
OPERATOR = Operator(LAYOUT, (ConfigEpoch(0, CONFIG),))
NO_TIMEOUT = -1


def spark_state(
    row: tuple[int, bytes] | None = None, *, watermark_ms: int = 0, timed_out: bool = False
) -> SparkGroupState:
    """Return the state as Spark passes it. Its timeout is unset, although an earlier call set one."""
    return SparkGroupState(
        optionalValue=row,  # type: ignore[arg-type]
        batchProcessingTimeMs=0,
        eventTimeWatermarkMs=watermark_ms,
        timeoutConf="EventTimeTimeout",
        hasTimedOut=timed_out,
        watermarkPresent=True,
        defined=row is not None,
        updated=False,
        removed=False,
        timeoutTimestamp=NO_TIMEOUT,
        keyAsUnsafe=b"",
        valueSchema=StructType(),
    )


def frame_of(records: Iterable[Record]) -> pd.DataFrame:
    """Return the packed column as `streaming.query.pipeline` makes it."""
    return pd.DataFrame(
        {
            "row": [
                b"%d %d %d %d\n" % (r.partition, r.offset, r.at_ms, len(r.key or b""))
                + (r.key or b"")
                + (r.value or b"")
                for r in records
            ]
        }
    )


def call(
    records: Sequence[Record],
    state: SparkGroupState,
    *,
    operator: Operator = OPERATOR,
    shard: int = 0,
    chunks: int = 1,
) -> list[pd.DataFrame]:
    frames = [frame_of(records[n::chunks]) for n in range(chunks)]
    return list(operator((shard,), iter(frames), state))


def contents(frames: Iterable[pd.DataFrame], topic: str) -> list[Any]:
    """Return the contents of the records of a topic, None for a tombstone."""
    return [
        None if value is None else json.loads(value)
        for frame in frames
        for record_topic, value in zip(frame["topic"], frame["value"], strict=True)
        if record_topic == topic
    ]
