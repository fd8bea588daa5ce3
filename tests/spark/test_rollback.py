"""A checkpoint goes back to an earlier batch, and every request since gets the same answer again.

The bench reads files where the coordinator reads Kafka: `as_kafka` and `as_files` rewrite what its batches
have read, one into the other.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import CommittedBatch, Epoch, Identity, KnownOutage, OwnerRecord
from kafka_why.contract.messages import ErrorCode
from kafka_why.errors import UserFacingError
from state.protocol import Outage
from streaming.query.operator import ConfigEpoch
from streaming.service.query.batches import describe_failing_batch
from streaming.service.stored_state.moving import retained_batches
from streaming.service.stored_state.rollback import Rollback, roll_back
from tests.spark.harness import Bench, Written, answers, dead_letters, events, make_operator
from tests.spark.log import LAYOUT, NAMESPACE, T0, Log, Record, heartbeat, join
from tests.spark.moved_story import SESSION_MS
from tests.spark.operators import DEADLY, faulty_step
from tests.spark.test_cuttings import said_once
from tests.spark.test_moving import groups_of

SILENT, ALIVE, LATE = "d", "a", "b"
# No coordinator ran in this time. Known from batch 3 on.
OUTAGE = KnownOutage(3, Outage(T0 + 3_000, T0 + 60_000))
IDENTITY = Identity("c", LAYOUT.requests_topic, "t", LAYOUT.request_partitions, NAMESPACE, 64)
LAST = 5


def story() -> list[list[Record]]:
    """Return the batches 0 to LAST and three more. The members are silent in the outage, of more than a
    session.


    SILENT's member expires in batch 5, LATE's joins in batch 4.
    """
    log = Log()
    first, members = log.clock(T0, T0), {}
    for group_id in (SILENT, ALIVE):
        records, members[group_id] = log.stable_member(T0 + 1, group_id, session_ms=SESSION_MS)
        first += records

    def beat(at_ms: int) -> Record:
        return log.request(at_ms, heartbeat(ALIVE, members[ALIVE]))

    joined, members[LATE] = log.stable_member(T0 + 61_001, LATE, session_ms=SESSION_MS)
    return [
        first,
        [*log.clock(T0 + 2_000, T0 + 1_000), beat(T0 + 2_000)],
        [*log.clock(T0 + 3_000, T0 + 2_000), beat(T0 + 3_000)],
        [beat(T0 + 60_500), *log.clock(T0 + 61_000, T0 + 61_000)],
        [*joined, beat(T0 + 69_000), *log.clock(T0 + 71_000, T0 + 70_500)],
        log.clock(T0 + 71_500, T0 + 71_001),
        [beat(T0 + 72_000), *log.clock(T0 + 80_000, T0 + 72_000)],
        log.clock(T0 + 81_000, T0 + 80_000),
        log.clock(T0 + 81_001, T0 + 81_000),
    ]


def operator_of(record: OwnerRecord) -> object:
    """Return what a start makes of an owner's record."""
    config = make_operator().epochs[0].config
    return replace(
        make_operator(),
        epochs=tuple(
            ConfigEpoch(e.from_batch, config.with_settings(e.settings), after_ms=e.after_ms)
            for e in record.epochs
        ),
        outages=tuple(record.outages),
    )


# From the outage until batch 4 was planned, sessions as short as these are refused.
STRICT = {"group.min.session.timeout.ms": SESSION_MS + 1}
EPOCHS = [
    Epoch(0, {}, [], "0.1.0"),
    Epoch(OUTAGE.from_batch, STRICT, [], "0.1.0", OUTAGE.outage.after_ms),
    Epoch(LAST, {}, [], "0.1.0", T0 + 71_000),
]
RECORD = OwnerRecord(EPOCHS, [OUTAGE])


def as_kafka(bench: Bench) -> Checkpoint:
    """Return the bench's checkpoint, its batches as if they had read as many records of the requests
    topic.
    """
    checkpoint = Checkpoint.at(bench.folder)
    for path in numbered(bench, "offsets"):
        lines = path.read_text().splitlines()
        end = json.loads(lines[2])["logOffset"]
        rewrite(path, [*lines[:2], json.dumps({LAYOUT.requests_topic: {"0": end, "1": 0}})])
    if not (bench.folder / "identity.json").exists():
        checkpoint.create(IDENTITY, structs.replace(RECORD, committed=CommittedBatch(LAST, {0: LAST, 1: 0})))
    return checkpoint


def as_files(bench: Bench) -> None:
    for path in numbered(bench, "offsets"):
        lines = path.read_text().splitlines()
        ends = json.loads(lines[2])
        rewrite(path, [*lines[:2], json.dumps({"logOffset": ends[LAYOUT.requests_topic]["0"]})])


def numbered(bench: Bench, log: str) -> list[Path]:
    return [path for path in (bench.folder / "spark" / log).iterdir() if path.name.isdigit()]


def rewrite(path: Path, lines: list[str]) -> None:
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.unlink()  # the checkpoint that was kept has a link to it
    path.write_text("\n".join(lines))


@pytest.fixture
def stayed(make_bench: Callable[..., Bench]) -> Bench:
    """Return a bench that ran to batch LAST, which was planned and had written half of its output."""
    bench = make_bench(failures={LAST: [0.5]}, operator=operator_of(RECORD))
    bench.run(*story()[:LAST])
    with pytest.raises(StreamingQueryException, match="SinkFailure"):
        bench.run(story()[LAST])
    bench.query = None
    return bench


@pytest.fixture
def stopped(stayed: Bench) -> Iterator[Callable[[], Bench]]:
    """Each call gives that bench again as it was when it stopped. All are in the same folder, whose files
    the checkpoint names.
    """
    saved = stayed.folder.with_name("saved")
    benches: list[Bench] = []
    shutil.copytree(stayed.folder, saved)

    def again() -> Bench:
        for bench in benches:
            bench.stop()
        shutil.rmtree(stayed.folder)
        shutil.copytree(saved, stayed.folder)
        bench = replace(stayed, written=list(stayed.written))
        benches.append(bench)
        return bench

    yield again
    for bench in benches:
        bench.stop()


def roll(bench: Bench, spark: SparkSession, to_batch: int | None = None, **given: object) -> Rollback:
    """Roll the bench back, and create its operator again from the record of the checkpoint."""
    checkpoint = as_kafka(bench)
    keep = bench.folder / f"kept-{to_batch}"
    try:
        return roll_back(checkpoint, keep, lambda: nullcontext(spark), to_batch=to_batch, **given)  # type: ignore[arg-type]
    finally:
        as_files(bench)
        bench.operator = operator_of(checkpoint.record())  # type: ignore[assignment]


def go_on(bench: Bench) -> list[Written]:
    """Run the rest of the story."""
    return bench.run(*story()[LAST + 1 :])


def test_requests_replayed_after_a_rollback_get_the_same_answers(
    stopped: Callable[[], Bench], spark: SparkSession
) -> None:
    """Over an outage that began since, an expiry, a join, two changes of the configuration, and a batch that
    was not committed.
    """
    stayed = stopped()
    go_on(stayed)
    assert events(stayed.written, SILENT)[-1]["at_ms"] == T0 + 60_000 + SESSION_MS
    assert events(stayed.written, ALIVE, "MemberRemoved") == []
    said = answers(stayed.written)
    assert len(said) == 11
    assert ErrorCode.INVALID_SESSION_TIMEOUT in {answer["error_code"] for answer in said.values()}
    end = groups_of(spark, Checkpoint.at(stayed.folder), len(story()) - 1)
    for to_batch in (0, 3):
        bench = stopped()
        done = roll(bench, spark, to_batch)
        assert (done.batch, done.last) == (to_batch, LAST)
        written = go_on(bench)
        assert min(record.batch for record in written) == to_batch + 1
        assert said_once(bench.written) == said_once(stayed.written), f"to batch {to_batch}"
        newest = to_batch + len(story()) - LAST
        assert retained_batches(Checkpoint.at(bench.folder))[-1] == newest
        assert groups_of(spark, Checkpoint.at(bench.folder), newest) == end


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def test_rollback_repairs_a_damaged_changelog(stopped: Callable[[], Bench], spark: SparkSession) -> None:
    stayed = stopped()
    go_on(stayed)
    bench = stopped()
    flip(bench.folder / "spark" / "state" / "0" / "0" / f"{LAST - 1}.changelog")
    with pytest.raises(StreamingQueryException, match="LOAD_STATE"):
        bench.run()
    bench.query = None
    flip(bench.folder / "spark" / "metadata")  # the id of the query
    with pytest.raises(UserFacingError, match="batch 3 are damaged; batch 2 is the newest intact one"):
        roll(bench, spark, 3)
    done = roll(bench, spark)
    assert done.batch == LAST - 3
    assert (done.kept / "spark" / "state" / "0" / "0" / f"{LAST - 1}.changelog").exists()
    go_on(bench)
    assert said_once(bench.written) == said_once(stayed.written)


def test_impossible_rollback_is_refused_and_changes_nothing(
    stopped: Callable[[], Bench], spark: SparkSession
) -> None:
    bench = stopped()
    checkpoint = as_kafka(bench)
    before = {str(path) for path in bench.folder.rglob("*")}
    start: Callable[[], AbstractContextManager[SparkSession]] = lambda: nullcontext(spark)  # noqa: E731
    with pytest.raises(UserFacingError, match="nothing is damaged"):
        roll_back(checkpoint, bench.folder / "kept", start)
    with pytest.raises(UserFacingError, match="batch 9 is not kept: it can go back to batches 0 to 4"):
        roll_back(checkpoint, bench.folder / "kept", start, to_batch=9)
    other = [EPOCHS[0], structs.replace(EPOCHS[1], code_version="0.0.1")]
    checkpoint.rewrite(structs.replace(RECORD, epochs=other))
    with pytest.raises(UserFacingError, match=r"version 0\.0\.1 ran batches after batch 2"):
        roll_back(checkpoint, bench.folder / "kept", start, to_batch=2)
    assert {str(path) for path in bench.folder.rglob("*")} == before


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
