"""A Java program that takes commands and prints what it does, a line each."""

import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

_END_TIMEOUT_S = 60.0


class JavaProgram:
    """It runs by this command line, in this folder, and ends with its input."""

    def __init__(
        self, command: Sequence[str], errors: IO[str] | None = None, folder: Path | None = None
    ) -> None:
        self._jvm = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            text=True,
            bufsize=1,
        )
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._commands, self._output = self._jvm.stdin, self._jvm.stdout

    def command(self, line: str) -> None:
        """Give it a line to do."""
        self._commands.write(f"{line}\n")

    def answer(self, line: str) -> str:
        """Give it a line to do, and return the line that it prints then, "" if it has ended."""
        self.command(line)
        return self._output.readline().rstrip("\n")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._jvm.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL: its clients do not leave their groups."""
        self.signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """End it. Clients that are not closed do not leave their group."""
        with suppress(BrokenPipeError):  # it has ended, and a command is still in the buffer
            self._commands.close()
        self._wait()
        self._output.close()

    def _wait(self) -> None:
        try:
            self._jvm.wait(_END_TIMEOUT_S)
        finally:
            self._jvm.kill()
            self._jvm.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReportingProgram(JavaProgram, ABC):
    """A thread takes what it prints, from the end of `__init__` on."""

    def __init__(
        self, command: Sequence[str], errors: IO[str] | None = None, folder: Path | None = None
    ) -> None:
        super().__init__(command, errors, folder)
        self._reader = threading.Thread(target=self._read, name=type(self).__name__, daemon=True)
        self._reader.start()

    @abstractmethod
    def take(self, line: str) -> None:
        """Take over a line."""

    @abstractmethod
    def note_end(self) -> None:
        """Note that there are no more lines."""

    def _read(self) -> None:
        for line in self._output:
            self.take(line.rstrip("\n"))
        self.note_end()

    def _wait(self) -> None:
        super()._wait()
        self._reader.join()
