"""Through the real query: a later owner's clock record ends it, earlier owners' advance time."""

from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row

from streaming.query.pipeline import LATER_OWNER
from tests.spark.harness import Bench, events
from tests.spark.log import LAYOUT, T0, Log, heartbeat


def test_only_clock_records_of_an_owner_move_time(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(owner_epoch=2)
    log = Log()
    records, _ = log.stable_member(T0, "g")
    bench.run(records)
    for owner_epoch in (None, 1):
        late_ms = T0 + 10_001 if owner_epoch else T0 + 5_000
        written = bench.run(*2 * [log.clock(late_ms + 1, late_ms, owner_epoch)])
        assert bool(events(written, "g", "MemberRemoved")) == bool(owner_epoch)


def test_no_partition_writes_after_a_later_claim(make_bench: Callable[..., Bench], tmp_path: Path) -> None:
    """The tasks of a batch write to Kafka one by one, as here into files, and not all at its end. The clock
    record of the later owner is the last record of one partition of requests.
    """

    def write(output: DataFrame, _: int) -> None:
        output.foreachPartition(write_partition)

    def write_partition(rows: Iterable[Row]) -> None:
        if written := [row.topic for row in rows]:
            (tmp_path / str(uuid4())).write_text("\n".join(written))

    bench = make_bench(owner_epoch=2, state_partitions=2, write=write)
    log = Log()
    members = {group_id: log.stable_member(T0, group_id) for group_id in "abcdefgh"}
    bench.run([record for records, _ in members.values() for record in records])
    assert len(list(tmp_path.glob("*-*-*"))) == 2, "each task has written"
    for path in tmp_path.glob("*-*-*"):
        path.unlink()
    asked = [log.request(T0 + 3, heartbeat(group_id, member)) for group_id, (_, member) in members.items()]
    assert {record.partition for record in asked} == set(range(LAYOUT.request_partitions))
    with pytest.raises(StreamingQueryException, match=f"{LATER_OWNER}3"):
        bench.run([*asked, log.clock(T0 + 4, T0 + 2, owner_epoch=3)[-1]])
    assert list(tmp_path.glob("*-*-*")) == []
    bench.query = None
    bench.owner_epoch = 3
    bench.run([])
    assert len(list(tmp_path.glob("*-*-*"))) == 2
