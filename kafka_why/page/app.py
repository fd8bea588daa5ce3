"""The page's routes: pages for people, JSON for programs, and live updates."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import msgspec
import structlog
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from kafka.errors import KafkaError
from markupsafe import escape
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
    group_selection,
    is_only_time,
    limits_ms,
    members_selection,
    parameter,
    time_parameter,
)
from kafka_why.page.commands import PROGRAM, CommandPages
from kafka_why.page.coordinator import READ_AGE_MAX_S, CoordinatorPage, coordinator_page
from kafka_why.page.fleet import WINDOW_MS, GroupFacts
from kafka_why.page.group import GroupPage, RebalancePage, group_page, rebalance_page
from kafka_why.page.members import MEMBER_SORTS, MemberGrouping, causes_text, columns_of, most_causes_sentence
from kafka_why.page.overview import PAGE_LINES, SORTS, GroupProtocol
from kafka_why.page.rocketmq import RocketMqPage, rocketmq_page
from kafka_why.page.rocketmq_cluster import PolledPage
from kafka_why.page.security import Access, Guard
from kafka_why.page.sources import HeldVersion, PageSources
from kafka_why.topic_reader import ClientError
from kafka_why.web import ClientSlots
from kafka_why.why.history import HistoryUnavailable
from kafka_why.wording import duration_text

MAX_LIVE = 200
"""The maximum number of open pages that are notified of new versions. A further page takes the slot of
another one, which reconnects after some seconds.
"""
COORDINATOR_VERSION_MS = 5_000
"""The interval at which open pages of the coordinator reload."""
_LIVE_INTERVAL_S = 0.25
_KEEP_ALIVE_S = 10.0
_HERE = Path(__file__).parent
_TEMPLATES = {GroupPage: "group.html", RocketMqPage: "rocketmq.html", PolledPage: "rocketmq_polled.html"}

log = structlog.get_logger()


def app(sources: PageSources, access: Access) -> Starlette:
    """Return the page's ASGI application."""
    pages = _Pages(sources)
    return Starlette(
        routes=[
            Route("/", pages.groups, name="groups"),
            Route("/group", pages.group),
            Route("/rebalance", pages.rebalance),
            Route("/members", pages.members),
            Route("/coordinator", pages.coordinator),
            Route("/api/groups", pages.groups_json),
            Route("/api/group", lambda request: _json_response(pages.load_group(request))),
            Route("/api/rebalance", lambda request: _json_response(pages.load_rebalance(request))),
            Route("/api/members", pages.members_json),
            Route("/api/coordinator", lambda _: _json_response(pages.load_coordinator())),
            *CommandPages(sources.histories, sources.log, sources.now_ms, pages.render).routes,
            Route("/api/deliveries", pages.deliveries_json),
            Route("/live", pages.live),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ],
        middleware=[
            Middleware(Guard, access=access),
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=5),
        ],
        exception_handlers={
            RequestRefused: pages.on_refusal,
            KafkaError: pages.on_refusal,
            ClientError: pages.on_refusal,
            Exception: pages.on_failure,
        },
    )


class _Pages:
    """The request handlers. Those that read or compute are not `async`, so Starlette runs them in threads."""

    def __init__(self, sources: PageSources) -> None:
        self._sources = sources
        # An open page is never idle, so a new one replaces a busy one.
        self._live_slots = ClientSlots[asyncio.Event](MAX_LIVE, is_idle=lambda _: False, ends_busy=True)
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=words.finalize,
        )
        self._templates.filters.update(
            iso=words.iso, utc_time=words.utc_time, exact=escape, merged=lambda ours, more: {**ours, **more}
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
        # Read before the lines. A version that is newer than the lines would keep the page from reloading.
        version = self._sources.lines_version()
        selected = self._select_groups(request)
        return self._html_response(
            "groups.html",
            now_ms=self._sources.now_ms(),
            sorts=SORTS,
            protocols=list(GroupProtocol),
            version=version,
            broker_groups=self._sources.broker_groups(),
            **selected,
        )

    def groups_json(self, request: Request) -> Response:
        selected = self._select_groups(request)
        return _json_response(
            {
                "groups": selected["lines"],
                "unwell": selected["unwell"],
                "total": selected["total"],
                "broker_groups": self._sources.broker_groups(),
                "remarks": self._sources.remarks(),
            }
        )

    def group(self, request: Request) -> Response:
        """Show one group of Kafka or RocketMQ. If only its deliveries are known, show these."""
        group_id, between_ms = parameter(request, "id"), limits_ms(request, self._sources.now_ms())
        version = self._sources.fleet.group_version(group_id) or 0
        try:
            group = self.load_group(request)
        except (HistoryUnavailable, RequestRefused):
            deliveries = self._sources.deliveries.view(group_id, between_ms)
            if deliveries is None:
                raise
            return self._html_response(
                "deliveries.html",
                group_id=group_id,
                deliveries=deliveries,
                window=request.query_params.get("since", "1h"),
                now_ms=self._sources.now_ms(),
            )
        is_shared = isinstance(group, GroupPage) and group.protocol == GroupProtocol.SHARE
        return self._html_response(
            _TEMPLATES[type(group)],
            group=group,
            now_ms=group.now_ms,
            window="" if "from" in request.query_params else request.query_params.get("since", "1h"),
            is_live="to" not in request.query_params,
            only_time=is_only_time(request),
            version=version,
            deliveries=self._sources.deliveries.view(group_id, between_ms) if is_shared else None,
        )

    def deliveries_json(self, request: Request) -> Response:
        group_id, between_ms = parameter(request, "id"), limits_ms(request, self._sources.now_ms())
        report = self._sources.deliveries.report(group_id, between_ms)
        if report is None:
            raise RequestRefused(404, "no gateway counted deliveries of this group in this time")
        return _json_response(report)

    def rebalance(self, request: Request) -> Response:
        """Show one rebalance."""
        return self._html_response(
            "rebalance.html",
            it=self.load_rebalance(request),
            now_ms=self._sources.now_ms(),
            can_run_commands=PROGRAM.exists(),
        )

    def members(self, request: Request) -> Response:
        """Show the clients or hosts of all groups, or those that the address selects."""
        version = self._sources.lines_version()
        selected = self._select_members(request)
        return self._html_response(
            "members.html",
            now_ms=self._sources.now_ms(),
            kinds=MemberGrouping,
            sorts=MEMBER_SORTS,
            version=version,
            **selected,
        )

    def members_json(self, request: Request) -> Response:
        selected = self._select_members(request)
        members = selected["members"]
        common = {name: selected[name] for name in ("sentence", "by", "lines", "found", "total")}
        return _json_response({**common, "rebalances": members.rebalances, "of_nobody": members.of_nobody})

    def coordinator(self, request: Request) -> Response:
        """Show the coordinator itself."""
        page = self.load_coordinator()
        return self._html_response(
            "coordinator.html", it=page, now_ms=page.now_ms, version=self._coordinator_version()
        )

    async def live(self, request: Request) -> Response:
        """Send the version of the page's content and the age of its data as server-sent events."""
        return StreamingResponse(self._events(request), media_type="text/event-stream")

    def on_refusal(self, request: Request, error: Exception) -> Response:
        """Return the response to a request that cannot be answered, with the reason."""
        status = 404 if isinstance(error, HistoryUnavailable) else 503
        if isinstance(error, RequestRefused):
            status = error.status
        message = str(error) if not isinstance(error, KafkaError) else f"no broker answers: {error}"
        if request.url.path.startswith("/api/"):
            return _json_response({"error": message}, status)
        return self._html_response("message.html", status, message=message, now_ms=self._sources.now_ms())

    def on_failure(self, request: Request, error: Exception) -> Response:
        """Return the response to a request that raised an unexpected error."""
        log.error("the page failed", path=request.url.path, exc_info=error)
        return _json_response({"error": f"unexpected {type(error).__name__}"}, 500)

    def _html_response(self, template: str, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(self.render(template, **values), status)

    def render(self, template: str, **values: Any) -> str:
        """Return the HTML of a page."""
        return self._templates.get_template(template).render(
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

    def _select_groups(self, request: Request) -> dict[str, Any]:
        """Return the values of the template: the selected lines, and the unwell groups among all."""
        lines = self._sources.lines()
        selection = group_selection(request)
        return {
            "selection": selection,
            **_page_of_lines(selection.select(lines), selection.page),
            "total": len(lines),
            "unwell": [line for line in lines if line.is_unwell],
        }

    def _select_members(self, request: Request) -> dict[str, Any]:
        members = self._sources.members()
        selection = members_selection(request)
        return {
            "members": members,
            "selection": selection,
            "by": selection.by,
            "sentence": most_causes_sentence(members, selection.by),
            **_page_of_lines(selection.select(members), selection.page),
            "total": len(members.lines[selection.by]),
        }

    def load_coordinator(self) -> CoordinatorPage:
        """Return the data of the coordinator's page. Raises RequestRefused."""
        sources, now_ms = self._sources, self._sources.now_ms()
        if sources.service_topics is None:
            raise RequestRefused(404, "the brokers' own coordinator leaves no record about itself")
        return coordinator_page(
            sources.service_topics.facts(now_ms),
            sources.fleet.recent_starts(now_ms),
            None if sources.service_state is None else sources.service_state.poll(),
            sources.read_age_s(),
            now_ms,
        )

    def _coordinator_version(self) -> int:
        """Return a number that changes every COORDINATOR_VERSION_MS, so that open pages reload then."""
        return self._sources.now_ms() // COORDINATOR_VERSION_MS

    def load_group(self, request: Request) -> GroupPage | RocketMqPage | PolledPage:
        """Return the group that the address names.

        Raises RequestRefused, HistoryUnavailable, KafkaError or ClientError.
        """
        now_ms = self._sources.now_ms()
        group_id, between_ms = parameter(request, "id"), limits_ms(request, now_ms)
        if self._sources.polled is not None:
            return self._sources.polled(group_id)
        # The findings need the last hour.
        needed_from_ms = min(between_ms[0], now_ms - WINDOW_MS)
        is_live = request.url.path == "/group" and "to" not in request.query_params
        cached = self._sources.analyses.analysis(
            group_id, (needed_from_ms, between_ms[1]), now_ms, is_patient=not is_live
        )
        unfolded = "all" in request.query_params
        if cached.rocketmq:
            polled = self._sources.polled_with_history(group_id)
            return rocketmq_page(
                group_id, cached.rocketmq, between_ms, now_ms, unfolded=unfolded, polled=polled
            )
        facts = self._sources.fleet.facts(group_id) or GroupFacts(
            group_id, view=None, lags={}, entries=(), version=0
        )
        if cached.analysis is None and not isinstance(facts.view, GroupSnapshot):
            raise RequestRefused(404, "the history of this group is older than what its topic keeps")
        note = f"entries before {words.utc_time(cached.since_ms)} UTC are being read"
        return group_page(
            facts,
            cached.analysis,
            between_ms,
            now_ms,
            unfolded=unfolded,
            only_time=is_only_time(request),
            notes=[note] if cached.since_ms > needed_from_ms else [],
        )

    def load_rebalance(self, request: Request) -> RebalancePage:
        """Return the rebalance that the address names.

        Raises RequestRefused, HistoryUnavailable or KafkaError.
        """
        group_id, now_ms = parameter(request, "group"), self._sources.now_ms()
        at_ms = time_parameter(request)
        page = None
        # The page links to the previous rebalance. An hour more is read only if it is missing.
        for since_ms in (at_ms, max(at_ms - WINDOW_MS, 0)):
            cached = self._sources.analyses.analysis(group_id, (since_ms, now_ms), now_ms, is_patient=True)
            analysis = cached.analysis
            page = None if analysis is None else rebalance_page(group_id, analysis, at_ms, now_ms)
            if page is None or page.earlier_ms is not None or cached.from_start:
                break
        if page is None:
            raise RequestRefused(404, "the history has no rebalance that began then")
        return page

    def _version(self, request: Request) -> int | None:
        """Return the version of the page: of the coordinator, all groups, or a group (None if unknown)."""
        group_id, fleet = request.query_params.get("group"), self._sources.fleet
        if "coordinator" in request.query_params:
            return self._coordinator_version()
        return self._sources.lines_version() if group_id is None else fleet.group_version(group_id)

    def _shows_newest(self, request: Request) -> bool:
        """Return True if a page that is loaded now shows the newest data."""
        group_id = request.query_params.get("group")
        return group_id is None or self._sources.analyses.has_newest(group_id, self._sources.now_ms())

    async def _events(self, request: Request) -> AsyncIterator[str]:
        """Yield the events of one open page, until it is closed or another page takes its slot."""
        fleet = self._sources.fleet
        sent_state, sent_at_s = None, time.monotonic()
        held_version, lost_slot = HeldVersion(), asyncio.Event()
        evicted_page = self._live_slots.add(request.client.host if request.client else "", lost_slot)
        if evicted_page is not None:
            evicted_page.set()
        try:
            while not lost_slot.is_set() and not await request.is_disconnected():
                version = held_version.version(
                    self._version(request), lambda: self._shows_newest(request), time.monotonic()
                )
                is_current = self._sources.read_age_s() <= READ_AGE_MAX_S
                if (version, is_current) != sent_state or time.monotonic() - sent_at_s > _KEEP_ALIVE_S:
                    event = {"version": version, "read": is_current, "last_entry_ms": fleet.last_entry_ms}
                    yield f"data: {json.dumps(event)}\n\n"
                    sent_state, sent_at_s = (version, is_current), time.monotonic()
                await asyncio.sleep(_LIVE_INTERVAL_S)
        finally:
            self._live_slots.remove(lost_slot)


def _page_of_lines(selected: Sequence[object], page: int) -> dict[str, Any]:
    """Return the lines of one page, and the numbers of all selected lines and of pages."""
    first = (page - 1) * PAGE_LINES
    return {
        "lines": selected[first : first + PAGE_LINES],
        "found": len(selected),
        "pages": max(ceil(len(selected) / PAGE_LINES), 1),
    }


def _json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
