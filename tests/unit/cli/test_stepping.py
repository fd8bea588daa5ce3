"""`replay --step` in a real terminal: keys go through the entries."""

import os
import pty
import select
import subprocess
import sysconfig
import termios
import time
from pathlib import Path
from typing import Self

from operations.replay.recording import write_recording
from tests.unit.operations.test_replay import a_member_expires

COMMAND = str(Path(sysconfig.get_path("scripts")) / "group-coordinator")
# Beside other tests with a tenth of a core, the command alone takes half a minute to start.
PATIENCE_S = 200.0


class Terminal:
    """A terminal with the command in it."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "110", "LINES": "50"}
        self.process = subprocess.Popen(
            [COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)

    def press(self, keys: str, until: str) -> str:
        """Press keys, and return what the screen shows when it has this text."""
        self._await_reader()
        os.write(self._ours, keys.encode())
        return self.read(until) if until else ""

    def type(self, line: str, until: str) -> str:
        """Type a line, and return what the screen shows when it has this text."""
        os.write(self._ours, line.encode())
        return self.read(until)

    def _await_reader(self) -> None:
        """Wait until the command has drawn its screen and reads keys. It drops a key that comes before."""
        give_up_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_s:
            if select.select([self._ours], [], [], 0.1)[0]:
                os.read(self._ours, 65_536)
            elif not termios.tcgetattr(self._ours)[3] & termios.ICANON:
                return

    def read(self, until: str) -> str:
        shown, give_up_s = "", time.monotonic() + PATIENCE_S
        while until not in shown and time.monotonic() < give_up_s:
            if select.select([self._ours], [], [], 0.1)[0]:
                shown += os.read(self._ours, 65_536).decode(errors="replace")
        assert until in shown, shown
        return shown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def test_replay_keys_move_through_the_entries(tmp_path: Path) -> None:
    recording = a_member_expires().recording()
    write_recording(tmp_path / "file", recording.header, recording.lines)
    arguments = "replay", "--group", "a", "--from", str(tmp_path / "file"), "--step"
    with Terminal(*arguments) as terminal:
        assert "JoinGroup of c" in terminal.read("quit: q")
        terminal.press("n", "entry 2 of 5")
        terminal.press("\x1b[C", "entry 3 of 5")
        terminal.press("b", "entry 2 of 5")
        terminal.press("/", "search: ")
        assert "MemberRemoved" in terminal.type("heartbeat deadline\n", "entry 5 of 5")
        terminal.press(".", "no later entry names heartbeat deadline")
        terminal.press("g", "entry 1 of 5")
        terminal.press("h", "entry 2 of 5")
        terminal.press("q", "")
        assert terminal.process.wait(PATIENCE_S) == 0
