"""The paragraph about the cause of a failing batch."""

from pathlib import Path

import pytest

from checkpoints.checkpoint import Checkpoint
from streaming.service.query.failing_batch import describe_damaged_checkpoint, describe_failing_batch
from tests.harness.checkpoints import spark_of

ERROR = "PythonException: ... OperatorError: record eu-requests-1-42 of group 'g': boom"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    checkpoint = Checkpoint.at(tmp_path)
    (spark_of(checkpoint) / "offsets").mkdir(parents=True)
    return checkpoint


def plan(checkpoint: Checkpoint, batch: int, offsets: str) -> None:
    (spark_of(checkpoint) / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offsets}')


def test_the_record_and_the_batchs_records_are_named(checkpoint: Checkpoint) -> None:
    plan(checkpoint, 6, '{"eu-requests":{"0":10,"1":40,"10":7}}')
    plan(checkpoint, 7, '{"eu-requests":{"0":10,"10":8,"1":45}}')
    text = describe_failing_batch(checkpoint, 7, 3, ERROR)
    assert text.startswith("batch 7 failed 3 times and is tried again. ")
    assert "Its records: eu-requests[1] 40 to 44, eu-requests[10] 7 to 7. " in text
    assert "--skip-record eu-requests-1-42 to dead-letter it unread" in text
    assert text.endswith(f"Last error: {ERROR}")


def test_the_first_batch_begins_at_the_beginning(checkpoint: Checkpoint) -> None:
    plan(checkpoint, 0, '{"eu-requests":{"0":3}}')
    assert "eu-requests[0] 0 to 2" in describe_failing_batch(checkpoint, 0, 3, ERROR)


def test_an_error_that_names_no_record_is_quoted(checkpoint: Checkpoint) -> None:
    plan(checkpoint, 0, '{"eu-requests":{"0":3}}')
    text = describe_failing_batch(checkpoint, 0, 3, "StateError: the state of 'g' is damaged")
    assert "the error names no record" in text
    assert "StateError: the state of 'g' is damaged" in text


@pytest.mark.parametrize("offsets", ["-", "", '{"logOffset":0}'])
def test_offsets_that_cannot_be_read_do_not_hide_the_error(checkpoint: Checkpoint, offsets: str) -> None:
    plan(checkpoint, 0, offsets)
    assert "not planned yet" in describe_failing_batch(checkpoint, 0, 3, ERROR)


def test_a_batch_that_is_not_planned_says_so(checkpoint: Checkpoint) -> None:
    assert "Its records: not planned yet. " in describe_failing_batch(checkpoint, 0, 3, ERROR)


def test_what_a_client_sends_is_not_taken_for_the_records_name(checkpoint: Checkpoint) -> None:
    error = f"ValueError: record eu-requests-9-9 of group 'x'\n{ERROR}"
    assert "--skip-record eu-requests-1-42 " in describe_failing_batch(checkpoint, 0, 3, error)


def test_a_long_error_is_cut(checkpoint: Checkpoint) -> None:
    assert len(describe_failing_batch(checkpoint, 0, 3, "x" * 10_000)) < 3_000


def test_the_files_of_a_damaged_checkpoint_are_named_but_not_all_of_hundreds() -> None:
    text = describe_damaged_checkpoint(7, [f"/c/{number} is missing" for number in range(12)], "stop it")
    assert text.startswith(
        "batch 7 cannot be run because the checkpoint is damaged: /c/0 is missing; /c/1 is missing;"
    )
    assert "/c/4 is missing (and 7 files more). Put back these files, or stop it" in text


def test_the_record_that_a_dead_worker_handled_is_named(checkpoint: Checkpoint) -> None:
    text = describe_failing_batch(checkpoint, 0, 3, "it crashed", ["record eu-requests-1-42#7"])
    assert "the record at fault is eu-requests-1-42#7; start with --skip-record eu-requests-1-42#7 to" in text


def test_all_that_dead_workers_handled_is_said_where_it_may_be_any(checkpoint: Checkpoint) -> None:
    handled = ["record eu-requests-1-42", "the deadlines of group 'g'"]
    text = describe_failing_batch(checkpoint, 0, 3, "it crashed", handled)
    assert "Python workers died, and handled record eu-requests-1-42, the deadlines of group 'g' then" in text
    assert "--skip-record" not in text
