"""The commands `assign`, `whatif` and `replay`, run for a reader of the page, and their pages: `/assign`,
`/whatif` and `/replay`, two of them also as JSON.

Each runs in its own process, as it would in a terminal. So a slow command costs other readers nothing and can
be ended, and the page can show the command line that repeats the question.

Opening an address runs a command only if the reader typed it or came from this page, because another site may
link to it. The response is streamed: first the page, then a sign of life each second, then the command's
output.
"""

import asyncio
import os
import re
import secrets
import shlex
import signal
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
from markupsafe import Markup, escape
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kafka_why.assign.model import InputError, Recorded, group_file, recorded_group
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.properties import properties_text
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.page.address import RequestRefused, parameter, time_parameter
from kafka_why.page.fleet import WINDOW_MS
from kafka_why.page.histories import Histories
from kafka_why.page.words import iso, isolated
from kafka_why.why.model import Rebalance
from kafka_why.why.report import report
from kafka_why.wording import duration_text

MAX_RUNNING = 2
LIMIT_S = 120.0
"""A process that runs longer is ended."""
MAX_OUTPUT_BYTES = 1 << 20
"""Maximum size of a command's output. The rest is dropped."""
MAX_TRIES, MAX_TRY_CHARS = 4, 300
_SILENCE = re.compile(r"session timeout of (\d+) ms")
_COOPERATIVE = "cooperative-sticky"
_STATIC = "group.instance.id=client.id"
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
        """Return the command as a person types it, with FILE instead of standard input."""
        return shlex.join(["group-coordinator", *("FILE" if a == _INPUT else a for a in self.arguments)])

    def __repr__(self) -> str:
        """Return the command without its standard input, which may contain secrets."""
        return f"Command({str(self)!r})"


class CoordinatorLog(Struct, frozen=True, kw_only=True):
    """The location of the coordinator's log for `whatif` and `replay`."""

    checkpoint: str  # path or URI
    properties: str  # of the cluster, in the format of Java's properties; may be secret

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
    """Return the command that compares the results of the clients' assignors in a rebalance."""
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
    if rebalance.is_shared:
        return ["share.assignment.interval.ms=0"]
    if rebalance.has_tasks:
        return [_STATIC, "streams.num.standby.replicas=1"]
    if rebalance.has_epochs:
        other = "range" if rebalance.protocol_name == "uniform" else "uniform"
        return [_STATIC, f"group.remote.assignor={other}"]
    silences = (_SILENCE.search(removed.reason) for removed in rebalance.removed)
    longest_ms = max((int(silence[1]) for silence in silences if silence), default=0)
    tries = [f"session.timeout.ms={2 * longest_ms}"] if longest_ms else []
    tries.append(_STATIC)
    if rebalance.protocol_name != _COOPERATIVE:
        tries.append(f"partition.assignment.strategy={_COOPERATIVE}")
    return tries


def replay_command(source: CoordinatorLog, group_id: str, at_ms: int) -> Command:
    """Return the command that shows the group as it was at a time."""
    return source.command("replay", "--from-topic", f"--group={group_id}", f"--at={iso(at_ms)}")


class CommandResult(NamedTuple):
    """The result of a process."""

    code: int | None  # None if the process ran too long and was ended
    output: str
    error: str


class CommandRunner:
    """A runner of commands. At most MAX_RUNNING run at the same time."""

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
        """Run a command. Yield repeatedly for how many seconds it has run, then its result.

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
    """End a process and its children. After the first signal it may delete folders."""
    for number, wait_s in ((signal.SIGINT, _GRACE_S), (signal.SIGKILL, None)):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), wait_s)


ASSIGN, WHATIF, REPLAY = "assign", "whatif", "replay"
_NO_LOG = "this page does not know where the checkpoint is; run the command on the coordinator's machine"


class CommandQuestion(NamedTuple):
    """A reader's question that a command answers."""

    kind: str
    group_id: str
    at_ms: int
    tries: Sequence[str]  # settings of a what-if
    command: Command


class CommandPages:
    """The request handlers. `render` returns the HTML of a template."""

    def __init__(
        self,
        histories: Histories,
        log: CoordinatorLog | None,
        now_ms: Callable[[], int],
        render: Callable[..., str],
    ) -> None:
        self._histories = histories
        self._log = log
        self._now_ms = now_ms
        self._render = render
        self._runner = CommandRunner()

    @property
    def routes(self) -> list[Route]:
        return [
            *(Route(f"/{kind}", self._page) for kind in (ASSIGN, WHATIF, REPLAY)),
            *(Route(f"/api/{kind}", self._json) for kind in (ASSIGN, WHATIF)),
        ]

    async def _page(self, request: Request) -> Response:
        kind = request.url.path.removeprefix("/")
        question = await asyncio.to_thread(self._question, kind, request)
        runs = "run" in request.query_params and _is_from_this_page(request)
        mark = secrets.token_hex(16)
        text = self._render(
            "command.html", it=question, runs=runs, answer=mark, now_ms=self._now_ms(), limit_s=int(LIMIT_S)
        )
        before, _, after = text.partition(mark)
        if not runs:
            return Response(before + after, media_type="text/html")
        self._check_capacity()
        # Compression would hold back the signs of life.
        plain = {"Content-Encoding": "identity"}
        parts = self._stream(before, question.command, request, after)
        return StreamingResponse(parts, media_type="text/html", headers=plain)

    async def _stream(
        self, before: str, command: Command, request: Request, after: str
    ) -> AsyncIterator[str]:
        yield before
        async for seen in self._runner.run(command, request.is_disconnected):
            if isinstance(seen, CommandResult):
                yield _result_html(seen)
            else:
                yield f"<span>{duration_text(int(seen) * 1000)}</span> "
        yield after

    async def _json(self, request: Request) -> Response:
        kind = request.url.path.removeprefix("/api/")
        question = await asyncio.to_thread(self._question, kind, request, as_json=True)
        if not _is_from_this_page(request):
            raise RequestRefused(403, "another site may not run commands")
        self._check_capacity()
        async for seen in self._runner.run(question.command, request.is_disconnected):
            if isinstance(seen, CommandResult) and seen.output:
                return Response(seen.output, media_type="application/json")
            if isinstance(seen, CommandResult):
                return Response(
                    msgspec.json.encode({"error": _error(seen)}), 503, media_type="application/json"
                )
        return Response(status_code=499)

    def _check_capacity(self) -> None:
        if self._runner.is_full:
            raise RequestRefused(503, "this page already runs as many commands as it may; try again later")

    def _question(self, kind: str, request: Request, *, as_json: bool = False) -> CommandQuestion:
        """Return the question that the address asks.

        Raises RequestRefused, HistoryUnavailable or KafkaError.
        """
        group_id, at_ms = parameter(request, "group"), time_parameter(request)
        tries = [text for text in request.query_params.getlist("try") if text.strip()]
        if len(tries) > MAX_TRIES or any(len(text) > MAX_TRY_CHARS for text in tries):
            raise RequestRefused(400, f"at most {MAX_TRIES} tries of {MAX_TRY_CHARS} characters")
        if not PROGRAM.exists():
            raise RequestRefused(
                404, f"{kind} is a command of {PROGRAM.name}, which is not installed where this page runs"
            )
        if kind != ASSIGN and self._log is None:
            raise RequestRefused(404, f"{kind} reads the coordinator's log: {_NO_LOG}")
        if kind == WHATIF and not tries:
            _, rebalance = self._rebalance(group_id, at_ms)
            tries = tries_for(rebalance)
        command = self._command(kind, group_id, at_ms, tries, as_json=as_json)
        return CommandQuestion(kind, group_id, at_ms, tries, command)

    def _command(self, kind: str, group_id: str, at_ms: int, tries: list[str], *, as_json: bool) -> Command:
        if kind == ASSIGN:
            try:
                return assign_command(recorded_group(*self._rebalance(group_id, at_ms)), as_json=as_json)
            except InputError as error:
                raise RequestRefused(404, f"this rebalance cannot be compared: {error}") from error
        assert self._log is not None, "it was refused"
        if kind == REPLAY:
            return replay_command(self._log, group_id, at_ms)
        return whatif_command(self._log, group_id, tries, as_json=as_json)

    def _rebalance(self, group_id: str, at_ms: int) -> tuple[list[HistoryEntry], Rebalance]:
        now_ms = self._now_ms()
        history = self._histories.read(group_id, max(at_ms - WINDOW_MS, 0), now_ms).history
        entries = [entry for entry in history.entries if isinstance(entry, HistoryEntry)]
        found = report(group_id, entries, now_ms, unread=history.unread, from_start=history.from_start)
        at = [rebalance for rebalance in found.rebalances if rebalance.began_ms == at_ms]
        if not at:
            raise RequestRefused(404, "the history has no rebalance that began then")
        return entries, at[-1]


def _is_from_this_page(request: Request) -> bool:
    """Return False if another site led the browser here."""
    return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _result_html(ended: CommandResult) -> Markup:
    text = escape(isolated(ended.output or _error(ended)))
    return (
        Markup('done.</p>\n<pre class="report answer" tabindex="0" id="answer">') + text + Markup("</pre><p>")
    )


def _error(ended: CommandResult) -> str:
    if ended.code is None:
        return f"It took longer than {duration_text(int(LIMIT_S * 1000))}, and was ended."
    return ended.error.strip() or f"It ended with code {ended.code} and printed nothing."
