"""A sample of the campaign of docs/observed.md, and Kafka Streams and Connect at our own coordinator."""

from pathlib import Path

import pytest

from tests.harness.shared import Services
from tests.observed.applications import (
    CONNECT,
    ConnectPlay,
    SharePlay,
    StreamsEpochsPlay,
    StreamsPlay,
)
from tests.observed.lines import Source
from tests.observed.member import SHARE, STREAMS, STREAMS_EPOCHS
from tests.observed.running import Result, campaign, exact_reasons
from tests.observed.stage import OURS, Stage
from tests.observed.stories import STORIES, Story

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

SHARED = "start a, start b, leave a"
SAMPLE = (
    STORIES["mixed"],
    STORIES["librdkafka-epochs"],
    Story("share", SHARE, SHARED, kind=SharePlay),
    Story("streams-protocol", STREAMS_EPOCHS, SHARED, kind=StreamsEpochsPlay),
)


def test_reports_from_every_source_match_what_happened(tmp_path: Path) -> None:
    """Groups of each type, at the broker's own coordinator."""
    stage = Stage("Kafka 4.4", tmp_path / "stage")
    result = campaign(stage, SAMPLE, seed=1, together=2)
    assert_well(result)
    assert len(result.stories) == len(SAMPLE) * len((*stage.sources, *stage.cleaned))
    exact, of = exact_reasons([told for told in result.stories if told.source is Source.BOTH])
    # Of a share group's partitions the log has only that they were initialized.
    assert exact >= 0.9 * of


def test_reports_name_the_work_of_kafka_streams_and_connect(services: Services, tmp_path: Path) -> None:
    """Tasks, standbys and follow-up rebalances; connectors, and the delay after a worker was killed. The
    other worker writes what has come since.
    """
    stage = Stage(OURS, tmp_path / "stage", services)
    stories = [
        # The first instance gives tasks up, and the second one gets them with the follow-up rebalance.
        Story("tasks-here", STREAMS, "start a, start b", kind=StreamsPlay),
        Story(
            "workers-here", CONNECT, "start a, sink 2, start b, kill b, produce, written 30", kind=ConnectPlay
        ),
    ]
    assert_well(campaign(stage, stories, seed=1, together=2))
    tasks = words_of(stage, "tasks-here")
    for line in ("a-StreamThread-1-consumer active 0_", "; standby 0_", "follow-up"):
        assert line in tasks
    workers = words_of(stage, "workers-here")
    for line in (
        "+ connector sink",
        "tasks sink ",
        "next another",
        "delayed the work of a worker that left waits",
    ):
        assert line in workers


def words_of(stage: Stage, group_id: str) -> str:
    """Return what `why` said, with one blank between words: how wide a column is follows from all its
    lines.
    """
    return " ".join((stage.folder / f"{group_id}.why.txt").read_text().split())


def assert_well(result: Result) -> None:
    assert result.sentences == []
    assert {told.story for told in result.stories if not told.verdicts} == set()
