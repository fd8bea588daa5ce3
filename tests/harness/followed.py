"""`why --follow` in a process of its own."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any


class Followed:
    """Lines of JSON that the command has printed so far."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def of(self, kind: str) -> list[Any]:
        return [line[kind] for line in self.lines if kind in line]


@contextmanager
def follow(group: str, *options: str) -> Iterator[Followed]:
    """Follow a group in another process, which ends in order."""
    command = [sys.executable, "-c", "from cli import main; main()", "why", group, *options]
    process = subprocess.Popen([*command, "--follow", "-o", "json"], stdout=subprocess.PIPE, text=True)
    followed = Followed()

    def read() -> None:
        assert process.stdout is not None
        for line in iter(process.stdout.readline, ""):
            followed.lines.append(json.loads(line))

    reader = Thread(target=read, daemon=True)
    with process:
        reader.start()
        try:
            yield followed
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            reader.join()
