"""A backlog of one group is worked off in bounded memory."""

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by

from state.errors import ErrorCode
from streaming.records import encode
from tests.spark.harness import FILE_SCHEMA, Bench, make_operator
from tests.spark.log import LAYOUT, T0, Log, heartbeat
from tests.spark.operators import MEMORY_TOPIC, Measured

MAX_GROWTH_BYTES = 320 * 1024 * 1024
MIB = 1024 * 1024


class Tally:
    """A sink that counts on Spark's side, and keeps what the operator's memory was."""

    def __init__(self) -> None:
        self.answers: dict[int, int] = {}
        self.memory: dict[str, int] = {}

    def __call__(self, output: DataFrame, batch: int) -> None:
        text = F.col("value").cast("string")
        counted = output.groupBy(
            "topic",
            F.get_json_object(text, "$.error_code").alias("error"),
            F.when(F.col("topic") == MEMORY_TOPIC, text).alias("memory"),
        ).count()
        for row in counted.collect():
            if row.topic == LAYOUT.responses_topic:
                self.answers[int(row.error)] = row["count"]
            if row.topic == MEMORY_TOPIC:
                self.memory = json.loads(row.memory)


def check_backlog(make_bench: Callable[..., Bench], heartbeats: int, tell: Callable[[str], None]) -> None:
    tally = Tally()
    bench = make_bench(operator=Measured(make_operator()), write=tally)
    log = Log()
    records, member_id = log.stable_member(T0, "g")
    bench.run(records)
    partition, first = records[-1].partition, records[-1].offset + 1
    bench.add_table(_heartbeats(member_id, partition, first, heartbeats))
    tally.answers = {}
    bench.run()
    assert tally.answers == {ErrorCode.NONE: heartbeats}
    grown = tally.memory["peak"] - tally.memory["before"]
    tell(f"{heartbeats} heartbeats: from {tally.memory['before'] // MIB} to {tally.memory['peak'] // MIB} MiB")
    assert grown < MAX_GROWTH_BYTES


def _heartbeats(member_id: str, partition: int, first: int, count: int) -> pa.Table:
    """One heartbeat every millisecond, in the reverse order of the log."""
    value = encode(heartbeat("g", member_id))
    back = np.arange(count - 1, -1, -1)
    columns = {
        "key": pa.repeat(pa.scalar(b"g"), count),
        "value": pa.repeat(pa.scalar(value), count),
        "partition": pa.array(np.full(count, partition, dtype=np.int32)),
        "offset": pa.array(first + back),
        "timestamp": pa.array((T0 + back) * 1_000).cast(FILE_SCHEMA.field("timestamp").type),
    }
    return pa.table(columns, schema=FILE_SCHEMA)


def test_a_backlog_is_worked_off_in_bounded_memory(
    make_bench: Callable[..., Bench], record_property: Callable[[str, object], None]
) -> None:
    check_backlog(make_bench, 100_000, lambda line: record_property("memory", line))


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_backlog_of_a_million_is_worked_off_in_bounded_memory(
    make_bench: Callable[..., Bench], capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}")

    check_backlog(make_bench, 1_000_000, tell)
