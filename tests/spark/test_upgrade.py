"""The query goes on with a state that an earlier state version wrote."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pandas as pd
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from records.partitioner import partition_of
from streaming.query.operator import Operator
from streaming.query.seeding import read_state
from tests.harness.planted_version import planted, row_of
from tests.spark.harness import Bench, answers, make_operator
from tests.spark.log import LAYOUT, T0, Log, heartbeat

EARLIER = 0


@dataclass(frozen=True)
class OfEarlierVersion:
    """An operator that leaves its state as the earlier version did."""

    operator: Operator

    def __call__(
        self, key: tuple[int], frames: Iterable[pd.DataFrame], state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        yield from self.operator(key, frames, state)
        entries = codec.read_row("shard", *state.get)
        groups = {name: codec.decode_group(name, entry) for name, entry in entries.items()}
        state.update(row_of(EARLIER, groups))


@dataclass(frozen=True)
class Migrating:
    """An operator that reads the earlier version."""

    operator: Operator

    def __call__(
        self, key: tuple[int], frames: Iterable[pd.DataFrame], state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        with planted():
            yield from self.operator(key, frames, state)


def versions_of(bench: Bench, batch: int) -> tuple[int, dict[str, int]]:
    """The versions of the only row and of its groups, after a batch."""
    with planted():
        (row,) = read_state(bench.spark, str(bench.folder / "spark"), batch)
        entries = codec.read_row(row.key, row.version, row.payload)
    return row.version, {name: entry.version for name, entry in entries.items()}


def test_a_state_of_an_earlier_version_goes_on_group_by_group(make_bench: Callable[..., Bench]) -> None:
    operator, log = make_operator(), Log()
    touched, resting = [name for name in "abcdef" if partition_of(name, LAYOUT.request_partitions) == 0][:2]
    bench = make_bench(operator=OfEarlierVersion(operator), shards=1)
    members, first = {}, []
    for group_id in (touched, resting):
        records, members[group_id] = log.stable_member(T0, group_id)
        first += records
    bench.run(first)
    bench.stop()
    assert versions_of(bench, 0) == (EARLIER, {touched: EARLIER, resting: EARLIER})
    bench.operator = Migrating(operator)
    request = log.request(T0 + 1, heartbeat(touched, members[touched]))
    (answer,) = answers(bench.run([request])).values()
    assert answer["error_code"] == 0
    assert versions_of(bench, 1) == (
        codec.STATE_VERSION,
        {touched: codec.STATE_VERSION, resting: EARLIER},
    )
