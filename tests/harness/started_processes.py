"""The child processes that a test starts."""

import subprocess
import threading
from typing import Any

import pytest


class StartedProcesses:
    """The processes that this thread starts from now on. Other threads may serve other tests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._processes: list[subprocess.Popen[Any]] = []
        started, thread = self._processes, threading.get_ident()

        class Popen(subprocess.Popen):  # type: ignore[type-arg]
            def __init__(self, *positional: Any, **arguments: Any) -> None:
                super().__init__(*positional, **arguments)
                if threading.get_ident() == thread:
                    started.append(self)

        monkeypatch.setattr(subprocess, "Popen", Popen)

    def have_ended(self) -> bool:
        """Return True if there were some, all have been reaped, and no pipe to them is open."""
        pipes = [pipe for it in self._processes for pipe in (it.stdin, it.stdout, it.stderr) if pipe]
        return (
            self._processes != []
            and all(process.returncode is not None for process in self._processes)
            and all(pipe.closed for pipe in pipes)
        )
