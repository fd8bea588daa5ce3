"""Another package under one of the project's names ends a start with a sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.own_packages import OWN_PACKAGES, ROOT

COMMAND = "from cli import main; main()"
ELSEWHERE = [name for name in OWN_PACKAGES if name != "cli"]  # another `cli` runs in the place of the command


def start(planted: Path | None, *args: str) -> subprocess.CompletedProcess[str]:
    folders = [str(folder) for folder in (planted, ROOT) if folder is not None]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.run(
        [sys.executable, "-P", "-c", COMMAND, *args],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("names", [["state"], ELSEWHERE], ids=["one", "all"])
def test_foreign_package_with_an_own_name_ends_the_start(names: list[str], tmp_path: Path) -> None:
    planted = {name: tmp_path / name / "__init__.py" for name in names}
    for foreign in planted.values():
        foreign.parent.mkdir()
        foreign.write_text("raise SystemExit('the foreign package was imported')\n")
    ended = start(tmp_path, "run", "--help")
    assert (ended.returncode, ended.stdout) == (78, "")
    which = ", ".join(f"'{name}' is {foreign}" for name, foreign in planted.items())
    assert ended.stderr == (
        f"Error: the project needs its own packages, which are in {ROOT}, but {which}: install it in a "
        "virtual environment that has nothing else, and take folders with such names off PYTHONPATH\n"
    )
