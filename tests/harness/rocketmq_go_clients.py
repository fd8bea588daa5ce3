"""RocketMQ's Go clients, as many consumers and a producer in one process."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from embedded.jars import cache_dir
from tests.harness.java_tools import ReportingProgram

SOURCES = Path(__file__).with_name("rocketmq_go")
_BUILD_TIMEOUT_S = 280


class GoReceived(NamedTuple):
    """A message at a consumer. `queue` is ``broker:number``."""

    consumer: str
    queue: str
    offset: int
    body: str


class GoClients(ReportingProgram):
    """Go consumers of a topic with these names, which join a group at once, and a producer."""

    def __init__(
        self, name_server: str, group: str, topic: str, names: Sequence[str], *, is_orderly: bool = False
    ) -> None:
        self.received: list[GoReceived] = []
        self.is_ready = False
        order = "orderly" if is_orderly else "concurrently"
        super().__init__([str(go_program()), name_server, group, topic, ",".join(names), order])

    def send(self, bodies: Sequence[str]) -> None:
        """Send messages, one by one."""
        for body in bodies:
            self.command(body)

    def handle_line(self, line: str) -> None:
        if line == "ready":
            self.is_ready = True
        else:
            consumer, queue, offset, body = line.split(" ")
            self.received.append(GoReceived(consumer, queue, int(offset), body))

    def on_end(self) -> None:
        pass


def go_program() -> Path:
    """Return the program, built in the cache. Skips the test where Go is not installed."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("the Go client is built by Go, which is not installed")
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(SOURCES.iterdir())))
    program = cache_dir() / "rocketmq-go" / digest.hexdigest()[:12]
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            built = Path(folder) / "program"
            command = [go, "build", "-buildvcs=false", "-mod=readonly", "-o", str(built), "."]
            environment = {**os.environ, "GOFLAGS": "", "GOTOOLCHAIN": "local"}
            subprocess.run(command, cwd=SOURCES, env=environment, timeout=_BUILD_TIMEOUT_S, check=True)
            built.replace(program)
    return program
