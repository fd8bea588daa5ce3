"""The pages that run a command for their reader: `/assign`, `/whatif` and `/replay`, and two of them as JSON.

Opening an address runs a command only if the reader typed it or came from this page, because another site may
link to it. The response is streamed: first the page, then a sign of life each second, then the command's
output.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

import msgspec
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kafka_why.assign.model import InputError
from kafka_why.assign.recorded import recorded_group
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.page.address import RequestRefused, parameter, time_parameter
from kafka_why.page.commands import (
    LIMIT_S,
    MAX_TRIES,
    MAX_TRY_CHARS,
    PROGRAM,
    Command,
    CommandResult,
    CommandRunner,
    CoordinatorLog,
    assign_command,
    replay_command,
    tries_for,
    whatif_command,
)
from kafka_why.page.fleet import WINDOW_MS
from kafka_why.page.histories import Histories
from kafka_why.page.words import isolated
from kafka_why.why.model import Rebalance
from kafka_why.why.report import report
from kafka_why.wording import duration_text

ASSIGN, WHATIF, REPLAY = "assign", "whatif", "replay"
_NO_LOG = "this page does not know where the checkpoint is; run the command on the coordinator's machine"


class CommandQuestion(NamedTuple):
    """A reader's question that a command answers. `tries` are the settings of a what-if."""

    kind: str
    group_id: str
    at_ms: int
    tries: Sequence[str]
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

        Raises RequestRefused, HistoryUnavailable, KafkaError.
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
    """Return True unless another site led the browser here."""
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
