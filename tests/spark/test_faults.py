"""A record at fault and a batch that runs again, through Spark: its errors and its numbers of batches."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.errors import StreamingQueryException

from checkpoints.checkpoint import Checkpoint
from kafka_why.contract.messages import ErrorCode
from streaming.service.query.batches import describe_failing_batch
from tests.spark.harness import Bench, answers, dead_letters, make_operator
from tests.spark.log import T0, Log, heartbeat, join
from tests.spark.operators import DEADLY, faulty_step


def test_unanswerable_record_is_named_and_can_be_skipped(make_bench: Callable[..., Bench]) -> None:
    bench, log = make_bench(operator=replace(make_operator(), step=faulty_step)), Log()
    records, member_id = log.stable_member(T0, "g")
    bench.run(records)
    deadly = log.request(T0 + 1_000, heartbeat("g", member_id, client=DEADLY))
    after = log.request(T0 + 2_000, heartbeat("g", member_id))
    with pytest.raises(StreamingQueryException) as raised:
        bench.run([deadly, after])
    text = describe_failing_batch(Checkpoint.at(bench.folder), 1, 3, str(raised.value))
    assert f"start with --skip-record {deadly.id}" in text
    bench.query = None
    (epoch,) = make_operator().epochs
    skipping = replace(epoch, from_batch=1, skip=frozenset({deadly.id}))
    bench.operator = replace(make_operator(), step=faulty_step, epochs=(epoch, skipping))
    written = bench.run()
    letter = dead_letters(written)[deadly.id]
    assert (letter["reason"], letter["answered"]) == ("SKIPPED", False)
    assert list(answers(written)) == [after.id]


def test_rerun_batch_uses_its_original_configuration(make_bench: Callable[..., Bench]) -> None:
    """The interrupted batch runs under the old configuration, the next batch under the new one."""
    bench = make_bench(failures={1: [1.0]})
    log = Log()
    first = log.request(T0, join("a", session_ms=8_000))
    interrupted = log.request(T0, join("b", session_ms=8_000))
    later = log.request(T0, join("c", session_ms=8_000))
    bench.run([first])
    with pytest.raises(StreamingQueryException, match="SinkFailure"):
        bench.run([interrupted])
    bench.query = None
    (old,) = make_operator().epochs
    stricter = replace(old.config, group_min_session_timeout_ms=9_000)
    bench.operator = replace(make_operator(), epochs=(old, replace(old, from_batch=2, config=stricter)))
    found = answers(bench.run([later]))
    assert found[interrupted.id]["error_code"] == ErrorCode.NONE
    assert found[later.id]["error_code"] == ErrorCode.INVALID_SESSION_TIMEOUT
    runs = [record for record in bench.written if record.batch == 1]
    assert runs[: len(runs) // 2] == runs[len(runs) // 2 :]
