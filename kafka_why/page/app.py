"""The page's routes: pages for people, JSON for programs, and live updates."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

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

from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.page import words
from kafka_why.page.address import (
    RequestRefused,
    is_only_time,
    limits_ms,
    members_selection,
    parameter,
    selection,
    time_parameter,
)
from kafka_why.page.commands import PROGRAM, CommandPages
from kafka_why.page.coordinator import CoordinatorPage, coordinator_page
from kafka_why.page.deliveries import routes as delivery_routes
from kafka_why.page.fleet import WINDOW_MS, GroupFacts
from kafka_why.page.group import GroupPage, RebalancePage, group_page, rebalance_page
from kafka_why.page.members import MEMBER_SORTS, MemberGrouping, causes_text, columns_of, sentence
from kafka_why.page.overview import PAGE_LINES, SORTS, GroupProtocol
from kafka_why.page.rocketmq import RocketMqPage, rocketmq_page
from kafka_why.page.rocketmq_cluster import PolledPage
from kafka_why.page.security import Access, Guard
from kafka_why.page.sources import HeldVersion, LiveReader, PageSources
from kafka_why.page.words import exact, finalize
from kafka_why.topic_reader import ClientError
from kafka_why.web import ClientSlots
from kafka_why.why.history import HistoryUnavailable
from kafka_why.wording import duration_text

MAX_LIVE = 200
"""The maximum number of live pages. A further page takes the slot of an open one, which reconnects after some
seconds.
"""
CHANGES_MS = 5_000
"""The interval at which the page of the coordinator counts as changed."""
_LIVE_INTERVAL_S = 0.25
_ALIVE_INTERVAL_S = 10.0
_HERE = Path(__file__).parent
_TEMPLATES = {GroupPage: "group.html", RocketMqPage: "rocketmq.html", PolledPage: "rocketmq_polled.html"}

log = structlog.get_logger()


def app(sources: PageSources, access: Access) -> Starlette:
    """Return the application."""
    pages = _Pages(sources)
    return Starlette(
        routes=[
            Route("/", pages.groups, name="groups"),
            Route("/group", pages.group),
            Route("/rebalance", pages.rebalance),
            Route("/members", pages.members),
            Route("/coordinator", pages.coordinator),
            Route("/api/groups", pages.groups_json),
            Route("/api/group", lambda request: _json(pages.load_group(request))),
            Route("/api/rebalance", lambda request: _json(pages.load_rebalance(request))),
            Route("/api/members", pages.members_json),
            Route("/api/coordinator", lambda _: _json(pages.load_coordinator())),
            *CommandPages(sources.histories, sources.log, sources.now_ms, pages.text).routes,
            *delivery_routes(sources.deliveries, sources.now_ms),
            Route("/live", pages.live),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ],
        middleware=[
            Middleware(Guard, access=access),
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=5),
        ],
        exception_handlers={
            RequestRefused: pages.refused,
            HistoryUnavailable: pages.refused,
            KafkaError: pages.refused,
            ClientError: pages.refused,
            Exception: pages.failed,
        },
    )


class _Pages:
    """The request handlers. Starlette runs those that read from brokers or compute in threads."""

    def __init__(self, sources: PageSources) -> None:
        self._sources = sources
        self._live = ClientSlots[LiveReader](MAX_LIVE, lambda live: False, ends_busy=True)
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=finalize,
        )
        self._templates.filters.update(
            iso=words.iso, utc_time=words.utc_time, exact=exact, merged=lambda ours, more: {**ours, **more}
        )
        self._templates.globals.update(
            duration=duration_text,
            thousands=words.thousands,
            ago=words.ago,
            causes_text=causes_text,
            columns_of=columns_of,
        )

    def groups(self, request: Request) -> Response:
        """Show all groups, or those that the address selects."""
        version = self._sources.lines_version()  # read before the lines, which may be newer but not older
        shown = self._selected(request)
        return self._page(
            "groups.html",
            now_ms=self._sources.now_ms(),
            sorts=SORTS,
            protocols=list(GroupProtocol),
            version=version,
            broker_groups=self._sources.broker_groups(),
            **shown,
        )

    def groups_json(self, request: Request) -> Response:
        shown = self._selected(request)
        return _json(
            {
                "groups": shown["lines"],
                "unwell": shown["unwell"],
                "total": shown["total"],
                "broker_groups": self._sources.broker_groups(),
                "remarks": self._sources.remarks(),
            }
        )

    def group(self, request: Request) -> Response:
        """Show one group of Kafka or RocketMQ."""
        group_id, between_ms = parameter(request, "id"), limits_ms(request, self._sources.now_ms())
        version = self._sources.fleet.group_version(group_id) or 0
        try:
            found = self.load_group(request)
        except (HistoryUnavailable, RequestRefused):
            alone = self._only_deliveries(request, group_id, between_ms)
            if alone is None:
                raise
            return alone
        is_shared = isinstance(found, GroupPage) and found.protocol == GroupProtocol.SHARE
        return self._page(
            _TEMPLATES[type(found)],
            group=found,
            now_ms=found.now_ms,
            window="" if "from" in request.query_params else request.query_params.get("since", "1h"),
            is_live="to" not in request.query_params,
            only_time=is_only_time(request),
            version=version,
            deliveries=self._sources.deliveries.view(group_id, between_ms) if is_shared else None,
        )

    def _only_deliveries(
        self, request: Request, group_id: str, between_ms: tuple[int, int]
    ) -> Response | None:
        """Return the page of a group that has deliveries but no history, or None."""
        found = self._sources.deliveries.view(group_id, between_ms)
        if found is None:
            return None
        window = request.query_params.get("since", "1h")
        return self._page(
            "deliveries.html",
            group_id=group_id,
            deliveries=found,
            window=window,
            now_ms=self._sources.now_ms(),
        )

    def rebalance(self, request: Request) -> Response:
        """Show one rebalance."""
        return self._page(
            "rebalance.html",
            it=self.load_rebalance(request),
            now_ms=self._sources.now_ms(),
            asks=PROGRAM.exists(),
        )

    def members(self, request: Request) -> Response:
        """Show the clients or hosts of all groups, or those that the address selects."""
        version = self._sources.lines_version()
        shown = self._selected_members(request)
        return self._page(
            "members.html",
            now_ms=self._sources.now_ms(),
            kinds=MemberGrouping,
            sorts=MEMBER_SORTS,
            version=version,
            **shown,
        )

    def members_json(self, request: Request) -> Response:
        shown = self._selected_members(request)
        common = {name: shown[name] for name in ("sentence", "by", "lines", "found", "total")}
        return _json(
            {**common, "rebalances": shown["members"].rebalances, "of_nobody": shown["members"].of_nobody}
        )

    def coordinator(self, request: Request) -> Response:
        """Show the coordinator itself."""
        found = self.load_coordinator()
        return self._page("coordinator.html", it=found, now_ms=found.now_ms, version=self._version_of_time())

    async def live(self, request: Request) -> Response:
        """Send the version of the page's content and the age of its data as server-sent events."""
        return StreamingResponse(self._events(request), media_type="text/event-stream")

    def refused(self, request: Request, error: Exception) -> Response:
        """Return the response to a refused request."""
        status = (
            error.status
            if isinstance(error, RequestRefused)
            else 404
            if isinstance(error, HistoryUnavailable)
            else 503
        )
        message = str(error) if not isinstance(error, KafkaError) else f"no broker answers: {error}"
        if request.url.path.startswith("/api/"):
            return _json({"error": message}, status)
        return self._page("message.html", status, message=message, now_ms=self._sources.now_ms())

    def failed(self, request: Request, error: Exception) -> Response:
        """Return the response to a request that raised an unexpected error."""
        log.error("the page failed", path=request.url.path, exc_info=error)
        return _json({"error": f"unexpected {type(error).__name__}"}, 500)

    def _page(self, template: str, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self.text(template, **values), status)

    def text(self, template: str, **values: Any) -> str:
        """Return the HTML of a page."""
        text: str = self._templates.get_template(template).render(
            version=values.pop("version", self._sources.lines_version()),
            last_entry_ms=self._sources.fleet.last_entry_ms,
            read_age_s=self._sources.read_age_s(),
            is_complete=self._sources.fleet.is_complete,
            connect_to=self._sources.connect_to,
            connect_by="bootstrap.servers" if self._sources.polled is None else "namesrvAddr",
            has_coordinator=self._sources.service_topics is not None,
            remarks=self._sources.remarks(),
            here=template.removesuffix(".html"),
            **values,
        )
        return text

    def _selected(self, request: Request) -> dict[str, Any]:
        lines = self._sources.lines()
        wanted = selection(request)
        return {
            "selection": wanted,
            **_lines_of_page(wanted.of(lines), wanted.page),
            "total": len(lines),
            "unwell": [line for line in lines if line.is_unwell],
        }

    def _selected_members(self, request: Request) -> dict[str, Any]:
        members = self._sources.members()
        wanted = members_selection(request)
        return {
            "members": members,
            "selection": wanted,
            "by": wanted.by,
            "sentence": sentence(members, wanted.by),
            **_lines_of_page(wanted.of(members), wanted.page),
            "total": len(members.lines[wanted.by]),
        }

    def load_coordinator(self) -> CoordinatorPage:
        """Return the data of the coordinator's page. Raises RequestRefused."""
        sources, now_ms = self._sources, self._sources.now_ms()
        if sources.service_topics is None:
            raise RequestRefused(404, "the brokers' own coordinator leaves no record about itself")
        return coordinator_page(
            sources.service_topics.facts(now_ms),
            sources.fleet.starts(now_ms),
            None if sources.service_state is None else sources.service_state.poll(),
            sources.read_age_s(),
            now_ms,
        )

    def _version_of_time(self) -> int:
        """Return a version that changes every few seconds."""
        return self._sources.now_ms() // CHANGES_MS

    def load_group(self, request: Request) -> GroupPage | RocketMqPage | PolledPage:
        """Return the group that the address names.

        Raises RequestRefused, HistoryUnavailable, KafkaError or ClientError.
        """
        now_ms = self._sources.now_ms()
        group_id, between_ms = parameter(request, "id"), limits_ms(request, now_ms)
        if self._sources.polled is not None:
            return self._sources.polled(group_id)
        needed_ms = min(between_ms[0], now_ms - WINDOW_MS), between_ms[1]
        is_live = request.url.path == "/group" and "to" not in request.query_params
        cached = self._sources.analyses.analysis(group_id, needed_ms, now_ms, is_patient=not is_live)
        unfolded = "all" in request.query_params
        if cached.rocketmq:
            polls = self._sources.polled_beside
            polled = None if polls is None else polls(group_id)
            return rocketmq_page(
                group_id, cached.rocketmq, between_ms, now_ms, unfolded=unfolded, polled=polled
            )
        facts = self._sources.fleet.facts(group_id) or GroupFacts(group_id, None, {}, (), 0, 0)
        if cached.analysis is None and not isinstance(facts.view, GroupSnapshot):
            raise RequestRefused(404, "the history of this group is older than what its topic keeps")
        notes = []
        if cached.since_ms > needed_ms[0]:
            notes.append(f"entries before {words.utc_time(cached.since_ms)} UTC are being read")
        only_time = is_only_time(request)
        return group_page(
            facts, cached.analysis, between_ms, now_ms, unfolded=unfolded, only_time=only_time, notes=notes
        )

    def load_rebalance(self, request: Request) -> RebalancePage:
        """Return the rebalance that the address names.

        Raises RequestRefused, HistoryUnavailable or KafkaError.
        """
        group_id, now_ms = parameter(request, "group"), self._sources.now_ms()
        at_ms = time_parameter(request)
        found = None
        for since_ms in (at_ms, max(at_ms - WINDOW_MS, 0)):
            cached = self._sources.analyses.analysis(group_id, (since_ms, now_ms), now_ms, is_patient=True)
            found = (
                None if cached.analysis is None else rebalance_page(group_id, cached.analysis, at_ms, now_ms)
            )
            if found is None or found.earlier_ms is not None or cached.from_start:
                break  # else read more, because it may have an earlier neighbour
        if found is None:
            raise RequestRefused(404, "the history has no rebalance that began then")
        return found

    def _version(self, request: Request) -> int | None:
        """Return the version of what the page shows: the coordinator, a group, or all groups."""
        group_id, fleet = request.query_params.get("group"), self._sources.fleet
        if "coordinator" in request.query_params:
            return self._version_of_time()
        return self._sources.lines_version() if group_id is None else fleet.group_version(group_id)

    def _shows_newest(self, request: Request) -> bool:
        """Return True if the page would show all known data if it were loaded now."""
        group_id = request.query_params.get("group")
        return group_id is None or self._sources.analyses.has_newest(group_id, self._sources.now_ms())

    async def _events(self, request: Request) -> AsyncIterator[str]:
        fleet, sent, sent_at_s = self._sources.fleet, None, time.monotonic()
        held, live = HeldVersion(), LiveReader()
        ended = self._live.add(request.client.host if request.client else "", live)
        if ended is not None:
            ended.has_ended = True
        try:
            while not live.has_ended and not await request.is_disconnected():
                version = held.version(
                    self._version(request), lambda: self._shows_newest(request), time.monotonic()
                )
                state = (version, self._sources.read_age_s() < 5)
                if state != sent or time.monotonic() - sent_at_s > _ALIVE_INTERVAL_S:
                    event = {"version": version, "read": state[1], "last_entry_ms": fleet.last_entry_ms}
                    yield f"data: {json.dumps(event)}\n\n"
                    sent, sent_at_s = state, time.monotonic()
                await asyncio.sleep(_LIVE_INTERVAL_S)
        finally:
            self._live.remove(live)


def _lines_of_page(found: Sequence[object], page: int) -> dict[str, Any]:
    first = (page - 1) * PAGE_LINES
    return {
        "lines": found[first : first + PAGE_LINES],
        "found": len(found),
        "pages": max(-(-len(found) // PAGE_LINES), 1),
    }


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
