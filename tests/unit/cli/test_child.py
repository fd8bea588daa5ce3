"""A child process that cannot be started."""

from pathlib import Path

import pytest

from cli.processes.child import Child, ChildFailed
from tests.harness.open_files import open_files


def test_missing_program_is_named_and_leaves_no_open_files(tmp_path: Path) -> None:
    before = open_files()
    with pytest.raises(ChildFailed, match=r"(?s)it could not be started\..*FileNotFoundError.*none"):
        Child("child", (), tmp_path / "child.log", program=tmp_path / "none")
    assert open_files() == before
