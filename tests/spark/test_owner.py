"""Through the real query: a later owner's clock record ends it, earlier owners' advance time."""

from collections.abc import Callable

import pytest
from pyspark.errors import StreamingQueryException

from state.errors import ErrorCode
from streaming.query.pipeline import LATER_OWNER
from tests.spark.harness import Bench, answers, events
from tests.spark.log import T0, Log, heartbeat


def test_batch_with_a_clock_record_of_a_later_owner_answers_nothing(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(owner_epoch=2)
    log = Log()
    records, member_id = log.stable_member(T0, "g")
    bench.run([*records, *log.clock(T0 + 1, T0, owner_epoch=1), *log.clock(T0 + 2, T0 + 1, owner_epoch=2)])
    before = len(bench.written)
    asked = log.request(T0 + 3, heartbeat("g", member_id))
    with pytest.raises(StreamingQueryException, match=f"{LATER_OWNER}3"):
        bench.run([asked, *log.clock(T0 + 4, T0 + 2, owner_epoch=3)])
    assert bench.written[before:] == []
    # The later owner's own query: the same batch, from the same checkpoint.
    bench.query = None
    bench.owner_epoch = 3
    assert answers(bench.run([]))[asked.id]["error_code"] == ErrorCode.NONE


def test_clock_records_of_earlier_owners_and_of_none_move_time(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(owner_epoch=2)
    log = Log()
    records, _ = log.stable_member(T0, "g")
    bench.run(records)
    for owner_epoch in (None, 1):
        late_ms = T0 + 10_001 if owner_epoch else T0 + 5_000
        written = bench.run(*2 * [log.clock(late_ms + 1, late_ms, owner_epoch)])
        assert bool(events(written, "g", "MemberRemoved")) == bool(owner_epoch)
