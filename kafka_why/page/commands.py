"""The commands `assign`, `whatif` and `replay`, run for a reader of the page, and their pages: `/assign`,
`/whatif` and `/replay`, two of them also as JSON.

Each command runs in its own process, as in a terminal. So a slow command does not delay other readers and can
be ended, and the page can show the same command for a terminal.

Opening an address runs a command only if the reader typed it or came from this page, because another site may
link to it. The response is streamed: first the page, then each second the time that the command has run, then
its output.
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
"""The maximum number of settings that one `whatif` tries, and the maximum length of each."""
_SESSION_TIMEOUT = re.compile(r"session timeout of (?P<ms>\d+) ms")
_COOPERATIVE = "cooperative-sticky"
# Makes each client a static member, whose restarts cause no rebalance.
_STATIC_MEMBERS = "group.instance.id=client.id"
_STDIN = "/dev/stdin"
_NICENESS = 10
_JSON = ["-o", "json"]
_PROGRESS_INTERVAL_S = 1.0
_GRACE_S = 3.0  # between SIGINT and SIGKILL
PROGRAM = Path(sysconfig.get_path("scripts")) / "group-coordinator"
"""The coordinator's command, which may be missing where only the explainer is installed."""


class Command(NamedTuple):
    """A command line of `group-coordinator`, and the text for its standard input."""

    arguments: list[str]
    stdin: bytes = b""

    def __str__(self) -> str:
        """Return the command as a person types it, with FILE instead of standard input."""
        return shlex.join(["group-coordinator", *("FILE" if a == _STDIN else a for a in self.arguments)])

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
        """Return a command that reads this log."""
        location = [f"--checkpoint={self.checkpoint}", "--client-config", _STDIN]
        return Command([*arguments, *location], self.properties.encode())


def assign_command(recorded: Recorded, *, as_json: bool = False) -> Command:
    """Return the command that compares the results of the clients' assignors in a rebalance."""
    without = [f"--without={member_id}" for member_id in recorded.gone]
    output = _JSON if as_json else ["--summary"]
    return Command(["assign", "--input", _STDIN, *without, *output], group_file(recorded.group))


def whatif_command(
    source: CoordinatorLog, group_id: str, tries: Sequence[str], *, as_json: bool = False
) -> Command:
    """Return the command that replays the group's recorded time with other settings."""
    experiments = [f"--try={text}" for text in tries]
    command = source.command("whatif", *experiments, *(_JSON if as_json else []))
    return command._replace(arguments=[*command.arguments, "--", group_id])


def suggested_tries(rebalance: Rebalance) -> list[str]:
    """Return the settings that a reader of this rebalance would try first."""
    if rebalance.is_shared:
        return ["share.assignment.interval.ms=0"]
    if rebalance.has_tasks:
        return [_STATIC_MEMBERS, "streams.num.standby.replicas=1"]
    if rebalance.has_epochs:
        other_assignor = "range" if rebalance.protocol_name == "uniform" else "uniform"
        return [_STATIC_MEMBERS, f"group.remote.assignor={other_assignor}"]
    # Twice the longest session timeout that a removed member exceeded.
    timeouts = (_SESSION_TIMEOUT.search(removed.reason) for removed in rebalance.removed)
    longest_ms = max((int(timeout["ms"]) for timeout in timeouts if timeout), default=0)
    tries = [f"session.timeout.ms={2 * longest_ms}"] if longest_ms else []
    tries.append(_STATIC_MEMBERS)
    if rebalance.protocol_name != _COOPERATIVE:
        tries.append(f"partition.assignment.strategy={_COOPERATIVE}")
    return tries


def replay_command(source: CoordinatorLog, group_id: str, at_ms: int) -> Command:
    """Return the command that shows the group as it was at `at_ms`."""
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
        self._running_count = 0

    @property
    def is_full(self) -> bool:
        """True if no further command may start."""
        return self._running_count >= MAX_RUNNING

    async def run(
        self, command: Command, has_left: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[float | CommandResult]:
        """Run a command. Yield every second the time in seconds that it has run, and at the end its result.

        If the reader `has_left`, the command is ended and has no result.
        """
        self._running_count += 1
        try:
            process = await self._start(command)
            try:
                async for progress in self._follow(process, has_left):
                    yield progress
            finally:
                await _stop(process)
        finally:
            self._running_count -= 1

    async def _start(self, command: Command) -> asyncio.subprocess.Process:
        """Start a process of low priority, in its own process group so that `_stop` can end its children."""
        with tempfile.TemporaryFile() as stdin:  # asyncio's pipe is a socket, which /dev/stdin cannot open
            stdin.write(command.stdin)
            stdin.seek(0)
            process = await asyncio.create_subprocess_exec(
                *self._program,
                *command.arguments,
                stdin=stdin,
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
        """Yield the time that the process has run, until it has closed its outputs. Then yield its result."""
        outputs = asyncio.gather(_read_output(process.stdout), _read_output(process.stderr))
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            # `wait` returns the finished futures first. After a time-out there are none.
            while not (await asyncio.wait({outputs}, timeout=_PROGRESS_INTERVAL_S))[0]:
                ran_s = loop.time() - began_s
                if await has_left():
                    return
                if ran_s > self._limit_s:
                    yield CommandResult(code=None, output="", error="")
                    return
                yield ran_s
            output, error = outputs.result()
            yield CommandResult(await process.wait(), output, error)
        finally:
            outputs.cancel()


async def _read_output(stream: asyncio.StreamReader | None) -> str:
    """Read a stream to its end. Return its first MAX_OUTPUT_BYTES as text."""
    assert stream is not None
    output = bytearray()
    while part := await stream.read(65_536):
        output += part[: MAX_OUTPUT_BYTES - len(output)]
    return output.decode(errors="replace")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End a running process and its children. It first gets SIGINT, so that it can delete its folders."""
    for signal_number, wait_s in ((signal.SIGINT, _GRACE_S), (signal.SIGKILL, None)):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), wait_s)


ASSIGN, WHATIF, REPLAY = "assign", "whatif", "replay"
_NO_LOG = "this page does not know where the checkpoint is; run the command on the coordinator's machine"


class CommandQuestion(NamedTuple):
    """A reader's question that a command answers."""

    kind: str  # ASSIGN, WHATIF or REPLAY
    group_id: str
    at_ms: int  # beginning of the rebalance in question, or the time that REPLAY shows
    tries: Sequence[str]  # settings for WHATIF
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
        question = await asyncio.to_thread(self._parse_question, request.url.path.removeprefix("/"), request)
        may_run = "run" in request.query_params and _is_from_this_page(request)
        # The rendered page is split at the placeholder, where the command's output comes later.
        placeholder = secrets.token_hex(16)
        text = self._render(
            "command.html",
            it=question,
            runs=may_run,
            answer=placeholder,
            now_ms=self._now_ms(),
            limit_s=int(LIMIT_S),
        )
        head, _, tail = text.partition(placeholder)
        if not may_run:
            return Response(head + tail, media_type="text/html")
        self._check_capacity()
        parts = self._stream(head, question.command, request, tail)
        # The compressing middleware skips responses with an encoding. It would hold back the running times.
        return StreamingResponse(parts, media_type="text/html", headers={"Content-Encoding": "identity"})

    async def _stream(self, head: str, command: Command, request: Request, tail: str) -> AsyncIterator[str]:
        """Run the command. Yield the page's `head`, the running times, the output, and the page's `tail`."""
        yield head
        async for progress in self._runner.run(command, request.is_disconnected):
            if isinstance(progress, CommandResult):
                yield _result_html(progress)
            else:
                yield f"<span>{duration_text(int(progress) * 1000)}</span> "
        yield tail

    async def _json(self, request: Request) -> Response:
        kind = request.url.path.removeprefix("/api/")
        question = await asyncio.to_thread(self._parse_question, kind, request, as_json=True)
        if not _is_from_this_page(request):
            raise RequestRefused(403, "another site may not run commands")
        self._check_capacity()
        async for progress in self._runner.run(question.command, request.is_disconnected):
            if isinstance(progress, CommandResult):
                if progress.output:
                    return Response(progress.output, media_type="application/json")
                return Response(
                    msgspec.json.encode({"error": _error_text(progress)}), 503, media_type="application/json"
                )
        return Response(status_code=499)  # the reader has left

    def _check_capacity(self) -> None:
        if self._runner.is_full:
            raise RequestRefused(503, "this page already runs as many commands as it may; try again later")

    def _parse_question(self, kind: str, request: Request, *, as_json: bool = False) -> CommandQuestion:
        """Return the question that the address asks, with suggested tries for WHATIF if it has none.

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
            _, rebalance = self._find_rebalance(group_id, at_ms)
            tries = suggested_tries(rebalance)
        command = self._build_command(kind, group_id, at_ms, tries, as_json=as_json)
        return CommandQuestion(kind, group_id, at_ms, tries, command)

    def _build_command(
        self, kind: str, group_id: str, at_ms: int, tries: list[str], *, as_json: bool
    ) -> Command:
        if kind == ASSIGN:
            try:
                return assign_command(recorded_group(*self._find_rebalance(group_id, at_ms)), as_json=as_json)
            except InputError as error:
                raise RequestRefused(404, f"this rebalance cannot be compared: {error}") from error
        assert self._log is not None, "`_parse_question` refuses commands without a log"
        if kind == REPLAY:
            return replay_command(self._log, group_id, at_ms)
        return whatif_command(self._log, group_id, tries, as_json=as_json)

    def _find_rebalance(self, group_id: str, at_ms: int) -> tuple[list[HistoryEntry], Rebalance]:
        """Return the history's entries, and the rebalance that began at `at_ms`. Raises RequestRefused."""
        now_ms = self._now_ms()
        history = self._histories.read(group_id, max(at_ms - WINDOW_MS, 0), now_ms).history
        entries = [entry for entry in history.entries if isinstance(entry, HistoryEntry)]
        rebalances = report(
            group_id, entries, now_ms, unread=history.unread, from_start=history.from_start
        ).rebalances
        began_then = [rebalance for rebalance in rebalances if rebalance.began_ms == at_ms]
        if not began_then:
            raise RequestRefused(404, "the history has no rebalance that began then")
        return entries, began_then[-1]  # the last one replaced the others


def _is_from_this_page(request: Request) -> bool:
    """Return True if a link of this page led the browser here, or the reader typed the address."""
    # Programs and old browsers do not send the header.
    return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _result_html(result: CommandResult) -> Markup:
    """Return the output or the error. It ends the paragraph of the times, and begins an empty one.

    The template ends the empty one.
    """
    text = escape(isolated(result.output or _error_text(result)))
    return (
        Markup('done.</p>\n<pre class="report answer" tabindex="0" id="answer">') + text + Markup("</pre><p>")
    )


def _error_text(result: CommandResult) -> str:
    if result.code is None:
        return f"It took longer than {duration_text(int(LIMIT_S * 1000))}, and was ended."
    return result.error.strip() or f"It ended with code {result.code} and printed nothing."
