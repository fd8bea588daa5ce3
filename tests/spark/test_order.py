"""Spark promises no order of rows. The operator applies them in the log's order."""

from collections.abc import Callable
from random import Random

from state.config import CoordinatorConfig
from tests.spark import recorded_log
from tests.spark.harness import Bench, make_operator
from tests.spark.log import Record
from tests.spark.test_cuttings import said_once

CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=0)
LOG_SEED = 99
FILES = 4


def test_rows_in_any_order_give_the_same_bytes(make_bench: Callable[..., Bench]) -> None:
    """A batch of several files, its rows shuffled over the files and over Spark's partitions."""
    rows = recorded_log.record(LOG_SEED, 250, CONFIG)
    partitions, attested_ms = recorded_log.with_clock(rows, LOG_SEED)
    in_order = [record for records in partitions for record in records]
    shuffled = in_order.copy()
    Random(LOG_SEED).shuffle(shuffled)
    sorted_bench = make_bench(operator=make_operator())
    sorted_bench.run(in_order, [])
    shuffled_bench = make_bench(
        operator=make_operator(), files_per_batch=FILES, rearrange=lambda records: records.repartition(3)
    )
    files: list[list[Record]] = [shuffled[n::FILES] for n in range(FILES)]
    shuffled_bench.run(*files)
    shuffled_bench.run([])
    assert {record.batch for record in shuffled_bench.written} <= {0, 1}, "the files were one batch"
    assert sorted_bench.written == shuffled_bench.written
    assert said_once(sorted_bench.written) == recorded_log.expected(rows, attested_ms, CONFIG)
