"""The judge of the campaign of streams applications, and a sample of the campaign."""

import pytest

from tests.streams.judge import Violation, judge_tasks
from tests.streams.kinds import PLANTED
from tests.streams.running import campaign
from tests.transactions import checker

SEED = 3
# A member that comes back, and one that stays; the planted one adds a member whose session ends. The others
# take longer (`make streams-campaign`), or other tests play them: `test_campaign` kills the coordinator's
# processes.
KINDS = ("static instance rolled", "instance held still")
FIRST = {"active:0_0", "active:1_1", "standby:1_0"}
SECOND = {"active:0_1", "active:1_0", "standby:1_1"}


@pytest.mark.parametrize(
    ("second", "wrongs"),
    [
        (SECOND, []),
        (SECOND - {"active:1_0"}, [(Violation.OWNERS, "1_0")]),
        (SECOND | {"active:0_0"}, [(Violation.OWNERS, "0_0")]),
        (
            set(),
            [
                (Violation.OWNERS, "0_1"),
                (Violation.OWNERS, "1_0"),
                (Violation.IDLE, "second"),
                (Violation.STANDBY, "1_1"),
            ],
        ),
        (SECOND - {"standby:1_1"}, [(Violation.STANDBY, "1_1")]),
        (SECOND | {"standby:1_0"}, [(Violation.STANDBY, "1_0")]),
    ],
    ids=["sound", "without an owner", "two owners", "idle", "without a standby", "two standbys"],
)
def test_streams_judge_finds_wrongly_assigned_tasks(
    second: set[str], wrongs: list[tuple[Violation, str]]
) -> None:
    verdicts = judge_tasks({"first": FIRST, "second": second}, 2, 0)
    assert [(verdict.violation, verdict.place) for verdict in verdicts] == wrongs


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_kafka_streams_counts_each_word_once_whatever_breaks() -> None:
    """After the other faults, an instance without exactly-once processing is killed. The judge finds the
    consequences, and nothing else.
    """
    result = campaign(SEED, len(KINDS), KINDS, last=[PLANTED])
    where = f"seed {SEED}, folder {result.folder}: {result.failure} {result.sentences[:20]}"
    assert not result.failure, where
    assert {wrong for wrong, _ in result.found} == {checker.Violation.TWICE}, where
    assert {struck.fault for struck in result.struck} == {*KINDS, PLANTED.name}
    result.remove_folder()
