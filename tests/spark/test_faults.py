"""A fault in the coordinator harms only the record or the group that it concerns."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.errors import StreamingQueryException

from checkpoints.checkpoint import Checkpoint
from checkpoints.codec import STATE_VERSION
from records.partitioner import partition_of
from records.sharding import DEFAULT_SHARDS, shard_of
from state.errors import ErrorCode
from streaming.service.query.failing_batch import describe_failing_batch
from tests.spark.harness import Bench, answers, dead_letters, events, make_operator, of_topic
from tests.spark.log import LAYOUT, T0, Log, heartbeat, join, release
from tests.spark.operators import DEADLY, FRAIL, POISON, faulty_step, leave_an_unreadable_state


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """A bench whose operator fails for some clients."""
    return make_bench(operator=replace(make_operator(), step=faulty_step))


def test_a_request_whose_handler_raises_is_answered_and_changes_nothing(bench: Bench) -> None:
    log = Log()
    records, member_id = log.stable_member(T0, "g")
    bench.run(records)
    poison = log.request(T0 + 1_000, join("g", POISON))
    alone = log.request(T0 + 1_000, join("h", POISON))
    after = log.request(T0 + 1_000, heartbeat("g", member_id))
    written = bench.run([poison, alone, after])
    found, letters = answers(written), dead_letters(written)
    for record in (poison, alone):
        assert found[record.id]["error_code"] == ErrorCode.UNKNOWN_SERVER_ERROR
        assert found[record.id]["type"] == "JoinGroup"
        letter = letters[record.id]
        assert (letter["reason"], letter["answered"]) == ("HANDLER_FAILED", True)
        assert "InjectedFault: a request that raises" in letter["message"]
    assert found[after.id]["error_code"] == ErrorCode.NONE
    assert len(written) == 5, "no history, no view: nothing changed"


def test_a_deadline_that_raises_stops_its_group_until_it_is_released(bench: Bench) -> None:
    log = Log()
    frail, frail_id = log.stable_member(T0, "g", FRAIL)
    sound, _ = log.stable_member(T0, "h")
    bench.run([*frail, *sound])
    written = bench.run_at(log, T0 + 11_000)
    assert events(written, "h", "MemberRemoved"), "the other group's deadline fired"
    (quarantined,) = events(written, "g")
    assert (quarantined["type"], quarantined["at_ms"]) == ("Quarantined", T0 + 10_000)
    letter = dead_letters(written)[""]
    assert (letter["reason"], letter["answered"]) == ("HANDLER_FAILED", False)
    assert letter["message"].startswith(f"heartbeat deadline of {frail_id} at {T0 + 10_000}\n")
    assert "InjectedFault: a deadline that raises" in letter["message"]
    assert not bench.run_at(log, T0 + 30_000), "its deadlines stand still"

    refused = log.request(T0 + 31_000, heartbeat("g", frail_id))
    released = log.request(T0 + 32_000, release("g"))
    served = log.request(T0 + 33_000, heartbeat("g", frail_id))
    written = bench.run([refused, released, served])
    assert [answer["error_code"] for answer in answers(written).values()] == [
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert [event["type"] for event in events(written, "g")] == ["Released"]
    assert events(bench.run_at(log, T0 + 44_000), "g", "Quarantined"), "the fault is still there"


def test_a_record_that_cannot_even_be_refused_is_named_and_can_be_skipped(bench: Bench) -> None:
    log = Log()
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


def test_an_unreadable_state_row_fails_the_query_and_is_named(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(operator=leave_an_unreadable_state)
    log = Log()
    bench.run([log.request(T0, join("broken"))])
    bench.stop()
    bench.operator = make_operator()
    partition = partition_of("broken", LAYOUT.request_partitions)
    name = f"shard {shard_of('broken', 0, DEFAULT_SHARDS)} of partition {partition}"
    expected = f"the state of '{name}' is of version 99; this code reads version 1, {STATE_VERSION}"
    with pytest.raises(StreamingQueryException, match=expected):
        bench.run([log.request(T0, join("broken"))])
    bench.query = None


def test_a_batch_that_runs_again_runs_under_the_configuration_it_had(
    make_bench: Callable[..., Bench],
) -> None:
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


def test_views_of_groups_follow_their_history(bench: Bench) -> None:
    """A view is written when the history grew. It is the view after the last entry."""
    log = Log()
    records, member_id = log.stable_member(T0, "g")
    (view,) = of_topic(bench.run(records), LAYOUT.groups_topic)
    assert (view["state"], view["seq"]) == ("Stable", events(bench.written, "g")[-1]["seq"])
    written = bench.run([log.request(T0 + 1_000, heartbeat("g", member_id))])
    assert not of_topic(written, LAYOUT.groups_topic)
