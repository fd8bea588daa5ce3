"""The commands `assign`, `whatif` and `replay`, run for a reader of the page.

Each runs in its own process, as it would in a terminal. So a slow command costs other readers nothing and can
be ended, and the page can show the command line that repeats the question.
"""

import asyncio
import os
import re
import shlex
import signal
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from msgspec import Struct

from kafka_why.assign.parsing import group_file
from kafka_why.assign.recorded import Recorded
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.properties import properties_text
from kafka_why.page.words import iso
from kafka_why.why.model import Rebalance

MAX_RUNNING = 2
LIMIT_S = 120.0
"""A process that runs longer is ended."""
MAX_OUTPUT_BYTES = 1 << 20
"""Maximum size of a command's output. The rest is dropped."""
MAX_TRIES, MAX_TRY_CHARS = 4, 300
_SILENCE = re.compile(r"session timeout of (\d+) ms")
_COOPERATIVE = "cooperative-sticky"
_INPUT = "/dev/stdin"
_NICENESS = 10
_JSON = ["-o", "json"]
_POLL_S, _GRACE_S = 1.0, 3.0
PROGRAM = Path(sysconfig.get_path("scripts")) / "group-coordinator"
"""The coordinator's command, which may be missing where only the explainer is installed."""


class Command(NamedTuple):
    """A command line of `group-coordinator`, and the text for its standard input."""

    arguments: list[str]
    given: bytes = b""

    def __str__(self) -> str:
        """Return the command as a person types it, with a file in place of standard input."""
        return shlex.join(["group-coordinator", *("FILE" if a == _INPUT else a for a in self.arguments)])

    def __repr__(self) -> str:
        """Return the command without its standard input, which may contain secrets."""
        return f"Command({str(self)!r})"


class CoordinatorLog(Struct, frozen=True, kw_only=True):
    """The location of the coordinator's log for `whatif` and `replay`: its checkpoint's path or URI, and its
    cluster.

    The cluster's settings are in the format of Java's properties and may be secret.
    """

    checkpoint: str
    properties: str

    @classmethod
    def of(cls, client_config: ClientConfig, checkpoint: str) -> Self:
        """Return the location of the log of the coordinator with this checkpoint."""
        return cls(checkpoint=checkpoint, properties=properties_text(client_config.java_settings()))

    def __repr__(self) -> str:
        return f"CoordinatorLog(checkpoint={self.checkpoint!r})"

    def command(self, *arguments: str) -> Command:
        location = [f"--checkpoint={self.checkpoint}", "--client-config", _INPUT]
        return Command([*arguments, *location], self.properties.encode())


def assign_command(recorded: Recorded, *, as_json: bool = False) -> Command:
    """Return the command that computes the result of each of the clients' assignors in a rebalance."""
    gone = [f"--without={member_id}" for member_id in recorded.gone]
    form = _JSON if as_json else ["--summary"]
    return Command(["assign", "--input", _INPUT, *gone, *form], group_file(recorded.group))


def whatif_command(
    source: CoordinatorLog, group_id: str, tries: Sequence[str], *, as_json: bool = False
) -> Command:
    """Return the command that replays the group's recorded time with other settings."""
    tried = [f"--try={text}" for text in tries]
    command = source.command("whatif", *tried, *(_JSON if as_json else []))
    return command._replace(arguments=[*command.arguments, "--", group_id])


def tries_for(rebalance: Rebalance) -> list[str]:
    """Return the settings that a reader of this rebalance would try first."""
    silences = (_SILENCE.search(removed.reason) for removed in rebalance.removed)
    longest_ms = max((int(silence[1]) for silence in silences if silence), default=0)
    tries = [f"session.timeout.ms={2 * longest_ms}"] if longest_ms else []
    tries.append("group.instance.id=client.id")
    if rebalance.protocol_name != _COOPERATIVE:
        tries.append(f"partition.assignment.strategy={_COOPERATIVE}")
    return tries


def replay_command(source: CoordinatorLog, group_id: str, at_ms: int) -> Command:
    """Return the command that shows the group as it was at a time, from its log."""
    return source.command("replay", "--from-topic", f"--group={group_id}", f"--at={iso(at_ms)}")


class CommandResult(NamedTuple):
    """The output of a process and its exit code, or `code` None if the process ran too long and was ended."""

    code: int | None
    output: str
    error: str


class CommandRunner:
    """A runner of commands, of which at most MAX_RUNNING run at the same time."""

    def __init__(
        self, program: Sequence[str] = (sys.executable, str(PROGRAM)), limit_s: float = LIMIT_S
    ) -> None:
        self._program = program
        self._limit_s = limit_s
        self._running = 0

    @property
    def is_full(self) -> bool:
        """True if no further command may start."""
        return self._running >= MAX_RUNNING

    async def run(
        self, command: Command, has_left: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[float | CommandResult]:
        """Run a command. Yield repeatedly the seconds that it has run, then its result.

        The command is ended if the reader has left.
        """
        self._running += 1
        try:
            process = await self._start(command)
            try:
                async for seen in self._follow(process, has_left):
                    yield seen
            finally:
                await _end(process)
        finally:
            self._running -= 1

    async def _start(self, command: Command) -> asyncio.subprocess.Process:
        with tempfile.TemporaryFile() as given:  # asyncio's pipe is a socket, which /dev/stdin cannot open
            given.write(command.given)
            given.seek(0)
            process = await asyncio.create_subprocess_exec(
                *self._program,
                *command.arguments,
                stdin=given,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        return process

    async def _follow(
        self, process: asyncio.subprocess.Process, has_left: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[float | CommandResult]:
        reading = asyncio.gather(_read(process.stdout), _read(process.stderr))
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            while not (await asyncio.wait({reading}, timeout=_POLL_S))[0]:
                ran_s = loop.time() - began_s
                if await has_left():
                    return
                if ran_s > self._limit_s:
                    yield CommandResult(None, "", "")
                    return
                yield ran_s
            output, error = reading.result()
            yield CommandResult(await process.wait(), output, error)
        finally:
            reading.cancel()


async def _read(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    found = bytearray()
    while part := await stream.read(65_536):
        found += part[: MAX_OUTPUT_BYTES - len(found)]
    return found.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and its children. It gets a signal first, because it may have folders to delete."""
    for number, wait_s in ((signal.SIGINT, _GRACE_S), (signal.SIGKILL, None)):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), wait_s)
