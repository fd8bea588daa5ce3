"""The demo: the whole of it, and a recording of its log, judged by `replay`.

`tests.e2e.test_start_failures` has its processes.
"""

import subprocess
import sysconfig
from pathlib import Path

import pytest

from cli.demo.consumer import SESSION_TIMEOUT_MS
from cli.replay import record, replay
from tests.harness.commands import invoke

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("quick_java")]

COMMAND = str(Path(sysconfig.get_path("scripts")) / "group-coordinator")


@pytest.mark.timeout(1_200)
def test_demo_plays_its_story_and_its_recording_is_identical(tmp_path: Path) -> None:
    folder = str(tmp_path / "demo")
    demo = subprocess.run([COMMAND, "demo", "--data-dir", folder], capture_output=True, text=True)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert f"no heartbeat within its session timeout of {SESSION_TIMEOUT_MS} ms [T5]" in demo.stdout
    assert "TakenOver: no coordinator ran for" in demo.stdout
    assert demo.stdout.count("  ok    ") == 4
    recording = tmp_path / "demo.zst"
    recorded = invoke(record, ["--data-dir", folder, str(recording)])
    assert recorded.exit_code == 0, recorded.output
    assert recording.stat().st_mode & 0o777 == 0o600
    replayed = invoke(replay, ["--all", "--from", str(recording)])
    assert replayed.exit_code == 0, replayed.output
    assert replayed.stdout.startswith("identical: ")


def test_rocketmq_demo_plays_its_story(tmp_path: Path) -> None:
    command = [COMMAND, "demo", "--rocketmq", "--data-dir", str(tmp_path / "demo")]
    demo = subprocess.run(command, capture_output=True, text=True)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stdout.count("  ok    ") == 3
