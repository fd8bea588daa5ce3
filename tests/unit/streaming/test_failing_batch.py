"""The paragraph about the cause of a failing batch."""

from pathlib import Path

import pytest

from checkpoints.checkpoint import Checkpoint
from streaming.service.query.batches import (
    CommittedBatchRecorder,
    describe_damaged_checkpoint,
    describe_failing_batch,
)
from tests.harness.checkpoints import path_of, spark_of

ERROR = "PythonException: ... OperatorError: record eu-requests-1-42 of group 'g': boom"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    checkpoint = Checkpoint.at(tmp_path)
    checkpoint.own(1)
    (spark_of(checkpoint) / "offsets").mkdir(parents=True)
    return checkpoint


def plan(checkpoint: Checkpoint, batch: int, offsets: str) -> None:
    (spark_of(checkpoint) / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offsets}')


def test_failing_record_and_the_offsets_of_its_batch_are_named(checkpoint: Checkpoint) -> None:
    plan(checkpoint, 6, '{"eu-requests":{"0":10,"1":40,"10":7}}')
    plan(checkpoint, 7, '{"eu-requests":{"0":10,"10":8,"1":45}}')
    text = describe_failing_batch(checkpoint, 7, 3, ERROR)
    assert text.startswith("batch 7 failed 3 times and is tried again. ")
    assert "Its records: eu-requests[1] 40 to 44, eu-requests[10] 7 to 7. " in text
    assert "--skip-record eu-requests-1-42 to dead-letter it unread" in text
    assert text.endswith(f"Last error: {ERROR}")


@pytest.mark.parametrize(
    ("offsets", "error", "handled", "told"),
    [
        ('{"eu-requests":{"0":3}}', ERROR, [], "Its records: eu-requests[0] 0 to 2. "),
        *((offsets, ERROR, [], "Its records: not planned yet. ") for offsets in ("-", "", '{"logOffset":0}')),
        (None, ERROR, [], "Its records: not planned yet. "),
        (None, "the state of 'g' is damaged", [], "the error names no record"),
        (None, "the state of 'g' is damaged", [], "Last error: the state of 'g' is damaged"),
        # What a client sends is not taken for the record's name.
        (
            None,
            f"ValueError: record eu-requests-9-9 of group 'x'\n{ERROR}",
            [],
            "--skip-record eu-requests-1-42 ",
        ),
        (
            None,
            "it crashed",
            ["record eu-requests-1-42#7"],
            "the record at fault is eu-requests-1-42#7; start with --skip-record eu-requests-1-42#7 to",
        ),
        (
            None,
            "it crashed",
            ["record eu-requests-1-42", "the deadlines of group 'g'"],
            "Python workers died while they handled record eu-requests-1-42, the deadlines of group 'g'",
        ),
    ],
)
def test_failing_batch_is_described_with_what_is_known(
    checkpoint: Checkpoint, offsets: str | None, error: str, handled: list[str], told: str
) -> None:
    if offsets is not None:
        plan(checkpoint, 0, offsets)
    text = describe_failing_batch(checkpoint, 0, 3, error, handled)
    assert told in text
    assert ("--skip-record" in text) == (error != "the state of 'g' is damaged" and len(handled) < 2)
    assert len(describe_failing_batch(checkpoint, 0, 3, "x" * 10_000)) < 3_000


def test_only_the_first_of_hundreds_of_damaged_checkpoint_files_are_named() -> None:
    text = describe_damaged_checkpoint(7, [f"/c/{number} is missing" for number in range(12)], "stop it")
    assert text.startswith(
        "batch 7 cannot be run because the checkpoint is damaged: /c/0 is missing; /c/1 is missing;"
    )
    assert "/c/4 is missing (and 7 more files). Put back these files, or stop it" in text


def recorded(checkpoint: Checkpoint) -> int:
    committed = checkpoint.record().committed
    return -1 if committed is None else committed.batch


def test_batches_after_the_first_are_recorded_at_most_once_a_second(checkpoint: Checkpoint) -> None:
    now_s = 0.0
    recorder = CommittedBatchRecorder(checkpoint, "requests", now_s=lambda: now_s)
    for batch, at_s, expected in (
        (2, 0.0, 2),
        (3, 0.0, 3),
        (4, 0.0, 4),
        (5, 0.9, 4),
        (6, 1.0, 6),
        (7, 1.5, 6),
    ):
        now_s = at_s
        recorder.record_if_due(batch, {0: batch})
        assert recorded(checkpoint) == expected
    recorder.record(8)
    assert recorded(checkpoint) == 8, "the last one is recorded when the query ends"
    for earlier in (-1, 2):
        recorder.record(earlier)
        assert recorded(checkpoint) == 8


def test_full_disk_while_recording_a_batch_does_not_end_the_service(checkpoint: Checkpoint) -> None:
    full = path_of(checkpoint) / "owners" / "1.json.new"
    full.symlink_to("/dev/full")
    recorder = CommittedBatchRecorder(checkpoint, "requests")
    recorder.record(3)
    full.unlink()
    recorder.record(3)
    assert recorded(checkpoint) == 3
