"""A child process that cannot be started."""

from pathlib import Path

import pytest

from cli.processes.child import Child, ChildFailed
from tests.harness.started_processes import StartedProcesses


def test_missing_program_is_named_and_leaves_no_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = StartedProcesses(monkeypatch)
    with pytest.raises(ChildFailed, match=r"(?s)it could not be started\..*FileNotFoundError.*none"):
        Child("child", (), tmp_path / "child.log", program=tmp_path / "none")
    assert started.have_ended()
