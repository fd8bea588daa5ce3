"""The operator works off a backlog of one group in bounded memory."""

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by

from kafka_why.contract.codec import encode
from kafka_why.contract.messages import ErrorCode
from state.kafka.context import new_member_id
from streaming.query.pipeline import FILE_SCHEMA
from tests.e2e.harness import note
from tests.spark.harness import Bench, make_operator
from tests.spark.log import LAYOUT, NAMESPACE, T0, Log, heartbeat, join
from tests.spark.operators import MEMORY_TOPIC, Measured

HEARTBEATS = 40_000
MAX_GROWTH_BYTES = 256 * 1024 * 1024
# Makes the heartbeats many times larger than the operator's bound on memory.
LONG_HOST = "h" * 10_000
MIB = 1024 * 1024


class Tally:
    """A sink that counts a batch's responses in Spark, and keeps the operator's memory figures."""

    def __init__(self) -> None:
        self.answers: dict[int, int] = {}
        self.bytes = 0
        self.memory: dict[str, int] = {}

    def __call__(self, output: DataFrame, batch: int) -> None:
        self.answers = {}
        text = F.col("value").cast("string")
        counted = output.groupBy(
            "topic",
            F.get_json_object(text, "$.error_code").alias("error"),
            F.when(F.col("topic") == MEMORY_TOPIC, text).alias("memory"),
        ).agg(F.count("*").alias("records"), F.sum(F.length("value")).alias("bytes"))
        for row in counted.collect():
            if row.topic == LAYOUT.responses_topic:
                self.answers[int(row.error)] = row.records
                self.bytes = row.bytes
            if row.topic == MEMORY_TOPIC:
                self.memory = json.loads(row.memory)


@pytest.mark.timeout(600)
def test_answers_over_two_gib_are_delivered(make_bench: Callable[..., Bench]) -> None:
    """A leader that gets no responses requests a member list of 4 MiB again and again."""
    tally = Tally()
    bench = make_bench(operator=Measured(make_operator(group_initial_rebalance_delay_ms=3_000)), write=tally)
    log = Log()
    leader = join("g", "leader", session_ms=60_000)
    joins = [log.request(T0, leader)]
    joins += [log.request(T0, join("g", f"c{n}", session_ms=60_000, metadata=b"m" * MIB)) for n in range(3)]
    bench.run(joins)
    bench.run_at(log, T0 + 6_001)
    again = structs.replace(leader, member_id=new_member_id("leader", joins[0].id, NAMESPACE))
    bench.run([log.request(T0 + 6_002, again) for _ in range(520)])
    assert tally.answers == {ErrorCode.NONE: 520}
    assert tally.bytes > 2**31
    assert tally.memory["peak"] < 1_024 * MIB


def test_backlog_is_processed_in_bounded_memory(
    make_bench: Callable[..., Bench], record_property: Callable[[str, object], None]
) -> None:
    tally = Tally()
    bench = make_bench(operator=Measured(make_operator()), write=tally)
    log = Log()
    records, member_id = log.stable_member(T0, "g")
    bench.run(records)
    bench.add_table(_heartbeats(member_id, records[-1].partition, records[-1].offset + 1))
    bench.run()
    assert tally.answers == {ErrorCode.NONE: HEARTBEATS}
    before, peak = tally.memory["before"], tally.memory["peak"]
    note(record_property, f"{HEARTBEATS} heartbeats", f"from {before // MIB} to {peak // MIB} MiB")
    assert peak - before < MAX_GROWTH_BYTES


def _heartbeats(member_id: str, partition: int, first: int) -> pa.Table:
    """Return one heartbeat every millisecond, in the reverse order of the log."""
    value = encode(structs.replace(heartbeat("g", member_id), client_host=LONG_HOST))
    back = np.arange(HEARTBEATS - 1, -1, -1)
    columns = {
        "key": pa.repeat(pa.scalar(b"g"), HEARTBEATS),
        "value": pa.repeat(pa.scalar(value), HEARTBEATS),
        "partition": pa.array(np.full(HEARTBEATS, partition, dtype=np.int32)),
        "offset": pa.array(first + back),
        "timestamp": pa.array((T0 + back) * 1_000).cast(FILE_SCHEMA.field("timestamp").type),
    }
    return pa.table(columns, schema=FILE_SCHEMA)
