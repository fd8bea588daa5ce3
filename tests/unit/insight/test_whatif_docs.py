"""The worked example of docs/whatif.md, made again from its recording."""

import re
from datetime import UTC
from pathlib import Path

from insight.replay.recording_file import RecordingFile
from insight.whatif.answer import answer
from insight.whatif.changes import parse_changes
from insight.whatif.recorded import log_of
from insight.whatif.text import answer_text
from insight.whatif.validation import Match
from insight.why.clock import Clock

ROOT = Path(__file__).parents[3]
RECORDING = ROOT / "tests" / "data" / "demo_recording.zst"
EXPERIMENTS = (
    ["session.timeout.ms=10000"],
    ["group.instance.id=client.id"],
    ["partition.assignment.strategy=cooperative-sticky"],
)


def test_the_worked_example_is_what_the_command_prints() -> None:
    found = answer(log_of(RecordingFile(RECORDING), "demo"), [parse_changes(e) for e in EXPERIMENTS])
    text = (ROOT / "docs" / "whatif.md").read_text()
    shown = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    assert shown[1] == f"{answer_text(found, Clock(UTC))}\n"
    assert all(setting in text for experiment in EXPERIMENTS for setting in experiment)


def test_real_clients_are_reproduced() -> None:
    """Real processes of kafka-python, a kill of a consumer, and two kills of the coordinator."""
    validation = answer(log_of(RecordingFile(RECORDING), "demo"), []).validation
    assert [pair.match for pair in validation.pairs] == [Match.MATCHED] * 6
    assert validation.worst_ms() == 0
    assert validation.objections == []
