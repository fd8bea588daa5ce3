"""What a start adds to the configurations, and what a batch does under them."""

from dataclasses import replace
from pathlib import Path

import pytest

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Epoch, Identity
from state.config import CoordinatorConfig
from streaming.query.operator import ConfigEpoch
from streaming.service.starts import config_epochs, unhandled
from tests.harness.checkpoints import spark_of
from tests.harness.operator_call import CONFIG, OPERATOR
from tests.spark.log import T0

IDENTITY = Identity("cluster", "eu-requests", "topic", 2, "00000000-0000-0000-0000-000000000001", 64)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Batch 1 is planned and not committed. Record 7 of partition 0 was skipped by an earlier start."""
    checkpoint = Checkpoint.at(tmp_path)
    checkpoint.own(1)
    for log in ("offsets", "commits"):
        (spark_of(checkpoint) / log).mkdir(parents=True)
    for batch, end in ((0, 10), (1, 20)):
        plan = f'v1\n{{}}\n{{"eu-requests":{{"0":{end},"1":0}}}}'
        (spark_of(checkpoint) / "offsets" / str(batch)).write_text(plan)
    checkpoint.store_epoch({}, ["eu-requests-0-7"], "1", after_ms=0)
    (spark_of(checkpoint) / "commits" / "0").write_text("v1\n{}")
    return checkpoint


@pytest.mark.parametrize(
    ("record", "is_skipped"),
    [
        ("eu-requests-0-9", False),
        ("eu-requests-0-9#3", False),
        ("eu-requests-0-10", True),
        ("eu-requests-0-19#1", True),
        ("eu-requests-1-0", True),
        ("eu-requests-0-7", True),
    ],
)
def test_record_handled_by_a_committed_batch_is_not_skipped(
    checkpoint: Checkpoint, record: str, is_skipped: bool
) -> None:
    """A replay knows no batches. It skips what any configuration skips."""
    assert unhandled(checkpoint, "eu-requests", [record]) == [record] * is_skipped


def test_operator_receives_every_field_of_a_configuration() -> None:
    (epoch,) = config_epochs([Epoch(3, {"group.max.size": 5}, ["eu-requests-0-7"], "1", 900)], IDENTITY)
    expected = CoordinatorConfig(member_id_namespace=IDENTITY.member_id_namespace, group_max_size=5)
    assert (epoch.from_batch, epoch.after_ms, epoch.config) == (3, 900, expected)
    assert epoch.skip == {"eu-requests-0-7"}


STRICTER = replace(CONFIG, group_min_session_timeout_ms=20_000)


def test_a_batch_knows_the_configurations_of_its_first_run() -> None:
    epochs = (
        ConfigEpoch(0, CONFIG),
        ConfigEpoch(7, STRICTER, frozenset("x"), T0),
        ConfigEpoch(7, CONFIG, after_ms=T0 + 5),
    )
    operator = replace(OPERATOR, epochs=epochs)
    strict = {
        batch: [operator.configs(batch).at(T0 + n) is STRICTER for n in (0, 1, 6)] for batch in (6, 7, None)
    }
    assert strict == {6: [False] * 3, 7: [False, True, False], None: [False, True, False]}
    operator = replace(OPERATOR, epochs=epochs[:2])
    assert [operator.skip(batch) for batch in (6, 7, None)] == [frozenset(), frozenset("x"), frozenset("x")]
