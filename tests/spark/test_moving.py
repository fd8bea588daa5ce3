"""A state that was exported and imported goes on as if it had never moved.

The bench reads files where the coordinator reads Kafka. So these tests write Kafka's offsets into the log of
the folder that is exported, and a file source's into that of the imported one.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from checkpoints import codec
from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Identity
from checkpoints.sealed_file import ExportFile
from checkpoints.spark_logs import PlannedBatch, rewrite_planned
from kafka_why.contract.codec import clock_record, encode
from state.kafka.classic_group import ClassicGroup
from streaming.query.admission import DEFAULT_SHARDS, MAX_SHARDS
from streaming.query.operator import Operator
from streaming.query.pipeline import read_state
from streaming.service.stored_state import moving
from tests.harness.checkpoints import path_of, spark_of
from tests.spark.harness import Bench, Written, answers, events, make_operator, of_topic
from tests.spark.log import LAYOUT, NAMESPACE, T0, Log, Record, heartbeat
from tests.spark.moved_story import GROUPS, LEAVING, SESSION_MS, SILENT, Story
from tests.spark.test_cuttings import said_once

ENDS = {0: 100, 1: 200}


def as_of_kafka(spark: Path, path: Path) -> Checkpoint:
    """Return a coordinator's folder with a copy of this checkpoint, whose batches have read Kafka's topic."""
    checkpoint = Checkpoint.at(path)
    shutil.copytree(spark, spark_of(checkpoint))
    for batch in range(checkpoint.last_batch("offsets") + 1):
        metadata = json.loads((spark_of(checkpoint) / "offsets" / str(batch)).read_text().splitlines()[1])
        planned = PlannedBatch(ENDS, metadata["batchWatermarkMs"], metadata["batchTimestampMs"])
        rewrite_planned(checkpoint.files, batch, planned, LAYOUT.requests_topic)
    identity = Identity(
        "cluster", LAYOUT.requests_topic, "id", LAYOUT.request_partitions, NAMESPACE, DEFAULT_SHARDS
    )
    checkpoint.pin(identity)
    checkpoint.own(1)
    checkpoint.store_epoch({}, [], "0.1.0", after_ms=0)
    return checkpoint


def move(
    spark: SparkSession, old: Checkpoint, target: Path, *, shards: int | None = None, **new_topics: str | int
) -> Checkpoint:
    """Export a folder and import it."""
    path = path_of(old) / "state.export"
    header = structs.replace(moving.header_of(old, None), unread=dict.fromkeys(ENDS, 0))
    moving.export_state(old, spark, header, path)
    import_(spark, path, target, shards=shards, **new_topics)
    return Checkpoint.at(target)


def import_(spark: SparkSession, path: Path, target: Path, **given: str | int | None) -> None:
    export = ExportFile(path)
    identity = moving.identity_for(export.header, **given)  # type: ignore[arg-type]
    moving.import_state(export, target, identity, lambda: nullcontext(spark))


def read_files(bench: Bench, cut_off: Iterable[Record] | None) -> None:
    """Make this bench's files the source of an imported folder. A planned batch has read the first one."""
    offsets = bench.folder / "spark" / "offsets"
    for batch, offset in {0: -1, 1: 0}.items():
        if (offsets / str(batch)).exists():
            lines = (offsets / str(batch)).read_text().splitlines()
            (offsets / str(batch)).write_text("\n".join([*lines[:2], f'{{"logOffset":{offset}}}']))
    if cut_off is not None:
        bench.add_file(cut_off)
        file = bench.folder / "input" / "00000.parquet"
        sources = bench.folder / "spark" / "sources" / "0"
        sources.mkdir(parents=True)
        entry = {"path": file.as_uri(), "timestamp": 1_700_000_000_000, "batchId": 0}
        (sources / "0").write_text(f"v1\n{json.dumps(entry)}")


def groups_of(spark: SparkSession, checkpoint: Checkpoint, batch: int) -> dict[str, tuple[int, bytes]]:
    """Return the encoded groups of a state, from every shard."""
    groups = moving.groups_in(read_state(spark, checkpoint.spark_uri, batch))
    return {group.group_id: (group.version, group.group) for group in groups}


def positions(groups: Mapping[str, tuple[int, bytes]]) -> set[tuple[int, int]]:
    found = set()
    for group_id, (version, encoded) in groups.items():
        group = codec.decode_group(group_id, codec.StoredGroup(version, None, encoded))
        assert isinstance(group, ClassicGroup)
        found |= {offset.position for offsets in group.offsets.values() for offset in offsets.values()}
    return found


@pytest.fixture
def stayed(make_bench: Callable[..., Bench]) -> Bench:
    """Return a bench whose batch 1 was planned and had written half of its output when it was cut off."""
    bench, story = make_bench(failures={1: [0.5]}), Story()
    bench.run(story.first)
    with pytest.raises(StreamingQueryException, match="SinkFailure"):
        bench.run(story.cut_off)
    bench.query = None
    return bench


@pytest.mark.parametrize(("shards", "state_partitions"), [(1, 3), (MAX_SHARDS, 1)])
def test_exported_and_imported_state_gives_the_outcome_of_the_original(
    make_bench: Callable[..., Bench], stayed: Bench, tmp_path: Path, shards: int, state_partitions: int
) -> None:
    """The planned batch runs again under its own watermark."""
    spark, story = stayed.spark, Story()
    old = as_of_kafka(stayed.folder / "spark", tmp_path / "old")
    operator = replace(make_operator(), shards=shards)
    sizes = {"shards": shards, "state_partitions": state_partitions}
    moved = make_bench(**sizes, operator=operator, written=list(stayed.written))
    move(spark, old, moved.folder, **sizes)
    assert moved.partitions_of_state == state_partitions
    of_moved, of_stayed = (groups_of(spark, Checkpoint.at(bench.folder), 0) for bench in (moved, stayed))
    assert of_moved == of_stayed
    read_files(moved, story.cut_off)
    for bench in (stayed, moved):
        bench.run(*story.rest)
    assert said_once(moved.written) == said_once(stayed.written)
    assert {answer["error_code"] for answer in answers(moved.written).values()} == {0}
    assert events(moved.written, SILENT)[-1]["at_ms"] == T0 + 1 + SESSION_MS
    assert groups_of(spark, Checkpoint.at(moved.folder), 4) == groups_of(
        spark, Checkpoint.at(stayed.folder), 4
    )


def test_first_batch_writes_every_view_and_offset_to_new_topics(
    make_bench: Callable[..., Bench], tmp_path: Path
) -> None:
    story, layout = Story(), replace(LAYOUT, requests_topic="new-requests", request_partitions=1)
    old = make_bench()
    old.run(story.first, story.cut_off)
    old.stop()
    new = make_bench(operator=Operator(layout, make_operator().epochs))
    folder = as_of_kafka(old.folder / "spark", tmp_path / "old")
    move(old.spark, folder, new.folder, prefix="new", request_partitions=1)
    read_files(new, None)
    before = positions(groups_of(old.spark, folder, 1))
    after = positions(groups_of(old.spark, Checkpoint.at(new.folder), 0))
    assert min(before) > (0, 0) > max(after), "every request of the new topic comes later"
    log = Log()

    def clock(at_ms: int) -> list[Record]:
        return [log.append(at_ms, None, clock_record(at_ms), 0)]

    first = new.run(clock(T0 + 4_000), clock(T0 + 4_001))
    assert views(first) == views(old.written)
    assert offsets(first) == offsets(old.written) == {g: 42 for g in GROUPS if g != SILENT}
    assert new.run(clock(T0 + 4_002)) == [], "the groups are at rest again"
    alive = encode(heartbeat("a", story.members["a"]))
    (answer,) = answers(new.run([log.append(T0 + 9_000, b"a", alive, 0)])).values()
    assert (answer["request"], answer["error_code"]) == ("new-requests-0-3", 0)
    new.run(clock(T0 + 11_000), clock(T0 + 11_001))
    assert events(new.written, SILENT)[-1]["at_ms"] == T0 + 1 + SESSION_MS
    assert events(new.written, "a") == events(new.written, LEAVING) == []


def views(written: Iterable[Written]) -> dict[str, object]:
    """Return the content of the compacted groups topic without times: a group's time goes on without a new
    view.
    """
    return {view.pop("group_id"): view | {"at_ms": 0} for view in of_topic(written, LAYOUT.groups_topic)}


def offsets(written: Iterable[Written]) -> dict[str, int]:
    """Return the committed offset of each group in the compacted offsets topic."""
    return {offset["group_id"]: offset["offset"] for offset in of_topic(written, LAYOUT.offsets_topic)}
