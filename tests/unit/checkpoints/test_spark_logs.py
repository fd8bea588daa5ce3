"""Spark's logs of a checkpoint, as files that Spark wrote."""

import json
from pathlib import Path

import pytest

from checkpoints.spark_logs import (
    PlannedBatch,
    SparkLogDamaged,
    read_next_watermark_ms,
    read_planned,
    rewrite_next_watermark_ms,
    rewrite_planned,
)
from kafka_why.local_files import LocalFiles

METADATA = {"batchWatermarkMs": 900, "batchTimestampMs": 1_000, "conf": {"spark.sql.shuffle.partitions": "1"}}
KAFKA = PlannedBatch({0: 5, 1: 12}, 2_000, 3_000)


@pytest.fixture
def checkpoint(tmp_path: Path) -> LocalFiles:
    """Return a checkpoint whose batch 0 read a folder of files."""
    for log, lines in {
        "offsets": ["v1", json.dumps(METADATA), '{"logOffset":0}'],
        "commits": ["v1", '{"nextBatchWatermarkMs":950,"stateUniqueIds":{}}'],
    }.items():
        (tmp_path / "spark" / log).mkdir(parents=True)
        (tmp_path / "spark" / log / "0").write_text("\n".join(lines))
        (tmp_path / "spark" / log / ".0.crc").write_bytes(b"crc\0 of the file as Spark wrote it")
    return LocalFiles(tmp_path)


@pytest.mark.parametrize("batch", [0, 1])
def test_planned_batch_round_trips_with_sparks_pinned_settings(checkpoint: LocalFiles, batch: int) -> None:
    rewrite_planned(checkpoint, batch, KAFKA, "requests")
    assert read_planned(checkpoint, batch, "requests") == KAFKA
    written = (checkpoint.local / "spark" / "offsets" / str(batch)).read_text()
    version, metadata, source = written.splitlines()
    assert version == "v1"
    assert json.loads(metadata) == METADATA | {"batchWatermarkMs": 2_000, "batchTimestampMs": 3_000}
    assert json.loads(source) == {"requests": {"0": 5, "1": 12}}
    with pytest.raises(SparkLogDamaged, match=f"offsets/{batch} is damaged: KeyError"):
        read_planned(checkpoint, batch, "others")


def test_the_next_watermark_is_changed_alone(checkpoint: LocalFiles) -> None:
    assert read_next_watermark_ms(checkpoint, 0) == 950
    rewrite_next_watermark_ms(checkpoint, 0, 2_500)
    assert read_next_watermark_ms(checkpoint, 0) == 2_500
    assert '"stateUniqueIds":{}' in (checkpoint.local / "spark" / "commits" / "0").read_text()


@pytest.mark.parametrize(
    "content", ["", "v1", "v1\n{}\n{}", 'v1\n{"batchWatermarkMs":1}\n{"requests":{"0":1}}']
)
def test_a_damaged_file_is_named(checkpoint: LocalFiles, content: str) -> None:
    for log in ("offsets", "commits"):
        (checkpoint.local / "spark" / log / "0").write_text(content)
    with pytest.raises(SparkLogDamaged, match="offsets/0 is damaged"):
        read_planned(checkpoint, 0, "requests")
    with pytest.raises(SparkLogDamaged, match="commits/0 is damaged"):
        read_next_watermark_ms(checkpoint, 0)
