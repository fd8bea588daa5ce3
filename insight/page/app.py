"""The page's addresses: pages for people, JSON for programs, and what is live."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from kafka.errors import KafkaError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from insight.page import words
from insight.page.courses import Courses
from insight.page.fleet import WINDOW_MS, Fleet, GroupFacts
from insight.page.group import group_page
from insight.page.overview import PAGE_LINES, SORTS, GroupLine, Protocol, Selection
from insight.page.rebalance import rebalance_page
from insight.page.security import Access, Guard
from insight.why.clock import Clock, duration_text
from insight.why.history import HistoryUnavailable
from insight.why.rocketmq.report import report as rocketmq_report
from insight.why.rocketmq.text import report_text as rocketmq_text
from insight.why.since import parse_since
from state.kafka.snapshot import GroupSnapshot

MAX_LIVE = 200
"""Pages that are live at the same time. Those beyond are complete, and say that they are not live."""
MAX_TEXT_CHARS = 32_767
"""Of a parameter in an address: a group id is not longer."""
_LIVE_INTERVAL_S = 0.5
_ALIVE_INTERVAL_S = 10.0
_HERE = Path(__file__).parent

log = structlog.get_logger()


class Refused(Exception):
    """A request that cannot be answered. The message is for the reader."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Sources(NamedTuple):
    """What the page reads. `lines` are all groups, `read_age_s` is how long ago the topics were read."""

    fleet: Fleet
    lines: Callable[[], list[GroupLine]]
    courses: Courses
    read_age_s: Callable[[], float]
    connect_to: str
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


def app(sources: Sources, access: Access) -> Starlette:
    """Return the application."""
    pages = _Pages(sources)
    return Starlette(
        routes=[
            Route("/", pages.groups, name="groups"),
            Route("/group", pages.group),
            Route("/rebalance", pages.rebalance),
            Route("/api/groups", pages.groups_json),
            Route("/api/group", pages.group_json),
            Route("/api/rebalance", pages.rebalance_json),
            Route("/live", pages.live),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ],
        middleware=[
            Middleware(Guard, access=access),
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=5),
        ],
        exception_handlers={
            Refused: pages.refused,
            HistoryUnavailable: pages.refused,
            KafkaError: pages.refused,
            Exception: pages.failed,
        },
    )


class _Pages:
    """The handlers. What reads from brokers or reckons runs in threads, which Starlette starts and bounds."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._live = 0
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(iso=words.iso, utc_time=words.utc_time)
        self._templates.globals.update(duration=duration_text, thousands=words.thousands, ago=words.ago)

    def groups(self, request: Request) -> Response:
        """All groups, or those that the address selects."""
        shown = self._selected(request)
        return self._page(
            "groups.html", now_ms=self._sources.now_ms(), sorts=SORTS, protocols=list(Protocol), **shown
        )

    def groups_json(self, request: Request) -> Response:
        shown = self._selected(request)
        return _json({"groups": shown["lines"], "unwell": shown["unwell"], "total": shown["total"]})

    def group(self, request: Request) -> Response:
        """One group of Kafka's, or the report on one of RocketMQ's."""
        group_id, limits_ms = _parameter(request, "id"), self._limits(request)
        found = self._group(request, group_id, limits_ms)
        if isinstance(found, str):
            return self._page("rocketmq.html", group_id=group_id, text=found, now_ms=self._sources.now_ms())
        return self._page(
            "group.html",
            group=found,
            now_ms=found.now_ms,
            window="" if "from" in request.query_params else request.query_params.get("since", "1h"),
            is_live="to" not in request.query_params,
            only_time=_is_only_time(request),
            version=self._sources.fleet.group_version(group_id) or 0,
        )

    def group_json(self, request: Request) -> Response:
        return _json(self._group(request, _parameter(request, "id"), self._limits(request)))

    def rebalance(self, request: Request) -> Response:
        """One rebalance."""
        return self._page("rebalance.html", it=self._rebalance(request), now_ms=self._sources.now_ms())

    def rebalance_json(self, request: Request) -> Response:
        return _json(self._rebalance(request))

    async def live(self, request: Request) -> Response:
        """Server-sent events: what the page shows has changed, and how old the data is."""
        group_id = request.query_params.get("group")
        if self._live >= MAX_LIVE:
            return Response("too many pages are live\n", 503, media_type="text/plain")
        return StreamingResponse(self._events(request, group_id), media_type="text/event-stream")

    def refused(self, request: Request, error: Exception) -> Response:
        """The answer to what cannot be answered."""
        status = (
            error.status
            if isinstance(error, Refused)
            else 404
            if isinstance(error, HistoryUnavailable)
            else 503
        )
        message = str(error) if not isinstance(error, KafkaError) else f"no broker answers: {error}"
        if request.url.path.startswith("/api/"):
            return _json({"error": message}, status)
        return self._page("message.html", status, message=message, now_ms=self._sources.now_ms())

    def failed(self, request: Request, error: Exception) -> Response:
        """The answer where the page itself fails."""
        log.error("the page failed", path=request.url.path, exc_info=error)
        return _json({"error": f"unexpected {type(error).__name__}"}, 500)

    def _page(self, template: str, status: int = 200, **values: Any) -> Response:
        fleet = self._sources.fleet
        text = self._templates.get_template(template).render(
            version=values.pop("version", fleet.version),
            last_entry_ms=fleet.last_entry_ms,
            read_age_s=self._sources.read_age_s(),
            is_complete=fleet.is_complete,
            connect_to=self._sources.connect_to,
            **values,
        )
        return HTMLResponse(text, status)

    def _selected(self, request: Request) -> dict[str, Any]:
        lines = self._sources.lines()
        selection = _selection(request)
        found = selection.of(lines)
        first = (selection.page - 1) * PAGE_LINES
        return {
            "selection": selection,
            "lines": found[first : first + PAGE_LINES],
            "found": len(found),
            "pages": max(-(-len(found) // PAGE_LINES), 1),
            "total": len(lines),
            "unwell": [line for line in lines if line.is_unwell],
        }

    def _limits(self, request: Request) -> tuple[int, int]:
        """The times between which the reader wants to see the group."""
        now_ms = self._sources.now_ms()
        query = request.query_params
        try:
            to_ms = min(int(query["to"]), now_ms) if "to" in query else now_ms
            from_ms = (
                int(query["from"]) if "from" in query else parse_since(query.get("since", "1h")[:64], now_ms)
            )
        except ValueError as error:
            raise Refused(400, f"a time cannot be read: {error}") from error
        if not 0 <= from_ms < to_ms:
            raise Refused(400, "the time from which to show the group is not before that to which")
        return from_ms, to_ms

    def _group(self, request: Request, group_id: str, limits_ms: tuple[int, int]) -> Any:
        now_ms = self._sources.now_ms()
        needed_ms = min(limits_ms[0], now_ms - WINDOW_MS), limits_ms[1]
        is_told = request.url.path == "/group" and "to" not in request.query_params
        made = self._sources.courses.made(group_id, needed_ms, now_ms, is_patient=not is_told)
        if made.rocketmq:
            return rocketmq_text(rocketmq_report(group_id, made.rocketmq, now_ms, limits_ms[0]), Clock())
        facts = self._sources.fleet.facts(group_id) or GroupFacts(group_id, None, {}, (), 0, 0)
        if made.course is None and not isinstance(facts.view, GroupSnapshot):
            raise Refused(404, "the history of this group is older than the events topic's retention")
        unfolded = "all" in request.query_params
        notes = []
        if made.since_ms > needed_ms[0]:
            notes.append(f"what was before {words.utc_time(made.since_ms)} UTC is being read")
        only_time = _is_only_time(request)
        return group_page(
            facts, made.course, limits_ms, now_ms, unfolded=unfolded, only_time=only_time, notes=notes
        )

    def _rebalance(self, request: Request) -> Any:
        group_id, now_ms = _parameter(request, "group"), self._sources.now_ms()
        try:
            at_ms = int(_parameter(request, "at"))
        except ValueError as error:
            raise Refused(400, "`at` is the time of the rebalance in milliseconds") from error
        found = None
        for since_ms in (at_ms, max(at_ms - WINDOW_MS, 0)):
            made = self._sources.courses.made(group_id, (since_ms, now_ms), now_ms, is_patient=True)
            found = None if made.course is None else rebalance_page(group_id, made.course, at_ms, now_ms)
            if found is None or found.earlier_ms is not None or made.from_start:
                break  # else it may have an earlier neighbour
        if found is None:
            raise Refused(404, "the history has no rebalance that began then")
        return found

    async def _events(self, request: Request, group_id: str | None) -> AsyncIterator[str]:
        fleet, sent, said_at_s = self._sources.fleet, None, time.monotonic()
        self._live += 1
        try:
            while not await request.is_disconnected():
                version = fleet.version if group_id is None else fleet.group_version(group_id)
                state = (version, self._sources.read_age_s() < 5)
                if state != sent or time.monotonic() - said_at_s > _ALIVE_INTERVAL_S:
                    told = {"version": version, "read": state[1], "last_entry_ms": fleet.last_entry_ms}
                    yield f"data: {json.dumps(told)}\n\n"
                    sent, said_at_s = state, time.monotonic()
                await asyncio.sleep(_LIVE_INTERVAL_S)
        finally:
            self._live -= 1


def _selection(request: Request) -> Selection:
    query = request.query_params
    page = query.get("page", "1")
    return Selection(
        text=query.get("q", "")[:MAX_TEXT_CHARS],
        state=query.get("state", ""),
        protocol=query.get("protocol", ""),
        sort=query.get("sort", SORTS[0]),
        page=max(int(page), 1) if page.isascii() and page.isdigit() and len(page) < 7 else 1,
    )


def _is_only_time(request: Request) -> bool:
    """Whether the reader has the page, and asks for another time of it."""
    return request.query_params.get("part") == "time"


def _parameter(request: Request, name: str) -> str:
    found = request.query_params.get(name)
    if not found or len(found) > MAX_TEXT_CHARS:
        raise Refused(400, f"the address has no {name}, or one that is too long")
    return found


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
