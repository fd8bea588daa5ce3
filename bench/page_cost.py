"""The cost of the page for a large group, and for many groups: `python -m bench.page_cost`.

Records come from memory, so reading them from brokers is not in the figures. Requests pass through the whole
application including gzip, but through no socket. Wall time and processor time are in milliseconds.
"""

import argparse
import asyncio
import gzip
import os
import re
import time
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from msgspec.structs import replace
from starlette.applications import Starlette

from bench.page_history import GROUP_ID, RestartedGroup
from bench.page_records import (
    ASSIGNORS,
    GROUPS,
    PAUSE_MS,
    RESTARTS,
    Record,
    entries_of,
    large_group,
    many_groups,
    offsets_of_large_group,
    small_group,
    view_record,
)
from kafka_why.contract.codec import encode
from kafka_why.contract.history_reader import AnyHistoryEntry, decode_any_entry
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.page.app import app
from kafka_why.page.fleet import Fleet
from kafka_why.page.histories import Analyses, Histories
from kafka_why.page.overview import Overview
from kafka_why.page.security import Access
from kafka_why.page.sources import PageSources
from kafka_why.page.topics_followers import ServiceTopics
from kafka_why.sticky.assignor import StickyAssignor
from kafka_why.why.history import History, entries_since

BEGIN_MS = 1_700_000_000_000
HOST = "localhost"
DRAGS = 5
SMALL_RESTARTS = 3
LAYOUT = TopicLayout.named("bench")
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class PageAnswer:
    """A response: wall time and processor time in milliseconds, the bytes that were sent, and the text."""

    ms: float
    cpu_ms: float
    sent_bytes: int
    text: str


class MemoryLog:
    """A group's records on the events topic, as a `kafka_why.why.history.GroupLog` with offsets from 0."""

    def __init__(self, records: Sequence[tuple[int, bytes]]) -> None:
        self._records = records
        self.begin, self.end = 0, len(records)

    def offset_at(self, at_ms: int) -> int:
        return next((n for n, (stamp_ms, _) in enumerate(self._records) if stamp_ms >= at_ms), self.end)

    def entries(self, first: int, end: int) -> Iterator[AnyHistoryEntry]:
        for _, value in self._records[first:end]:
            entry = decode_any_entry(value)
            assert isinstance(entry, HistoryEntry)
            yield entry

    def view(self) -> GroupSnapshot | None:
        return None


class InMemoryPage:
    """A page over records in memory."""

    def __init__(self, log: MemoryLog, now_ms: int) -> None:
        self.fleet = Fleet(LAYOUT)
        self.now_ms = now_ms
        self._log = log
        histories = Histories(self._read, self.fleet)
        self.analyses = Analyses(histories, self.fleet)
        self.overview = Overview(self.fleet)
        self.lines = self.overview.lines(now_ms)
        self._sources = PageSources(
            fleet=self.fleet,
            lines=lambda: self.lines,
            members=lambda: self.overview.members,
            lines_version=lambda: self.fleet.version,
            histories=histories,
            analyses=self.analyses,
            read_age_s=lambda: 0.0,
            service_topics=ServiceTopics(),
            service_state=None,
            connect_to="localhost:9092",
            now_ms=lambda: self.now_ms,
        )
        self._app = self.serve(Access([HOST]))

    def serve(self, access: Access) -> Starlette:
        """Return the application."""
        return app(self._sources, access)

    def apply(self, records: Iterable[Record]) -> None:
        """Apply these records, which are the whole content of the topics."""
        for record in records:
            self.fleet.apply(record.topic, record.key, record.value, self.now_ms)
        self.fleet.mark_complete()

    def _read(self, _: str, since_ms: int) -> History:
        return entries_since(self._log, since_ms)

    def get(self, path: str, **query: object) -> PageAnswer:
        """Send one request to the application."""
        return asyncio.run(self._get(path, query))

    async def _get(self, path: str, query: dict[str, object]) -> PageAnswer:
        bodies: list[bytes] = []
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": path,
            "query_string": urlencode(query).encode(),
            "headers": [(b"host", HOST.encode()), (b"accept-encoding", b"gzip")],
            "client": ("127.0.0.1", 1),
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            bodies.append(message.get("body", b""))

        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        await self._app(scope, receive, send)
        ms = (time.perf_counter() - began_s) * 1000
        cpu_ms = (time.process_time() - began_cpu_s) * 1000
        sent = b"".join(bodies)
        text = gzip.decompress(sent) if sent.startswith(_GZIP_MAGIC) else sent
        return PageAnswer(ms, cpu_ms, len(sent), text.decode())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.page_cost", description=__doc__)
    parser.add_argument("--assignor", choices=sorted(ASSIGNORS), default=StickyAssignor.name)
    parser.add_argument("--restarts", type=int, default=RESTARTS, help="each is two rebalances")
    args = parser.parse_args()
    print(f"{'':44}{'ms':>8}{'cpu ms':>8}{'kB sent':>9}{'kB':>9}")
    for name, answer in (*_of_large_group(args.assignor, args.restarts), *_of_many_groups()):
        sizes = (
            f"{answer.sent_bytes / 1000:9.0f}{len(answer.text.encode()) / 1000:7.0f}" if answer.text else ""
        )
        print(f"{name:44}{answer.ms:8.0f}{answer.cpu_ms:8.0f}{sizes}", flush=True)
    os._exit(0)  # without waiting for threads that repeat an analysis


def page_of(group: RestartedGroup) -> InMemoryPage:
    """Return a page over the records of a large group, a moment after its last entry."""
    entries = list(entries_of(group.history, LAYOUT))
    now_ms = entries[-1].at_ms + PAUSE_MS
    page = InMemoryPage(MemoryLog([(record.at_ms, record.value) for record in entries]), now_ms)
    page.apply((*offsets_of_large_group(LAYOUT, now_ms), view_record(group, LAYOUT, now_ms), *entries))
    return page


def _of_large_group(assignor: str, restarts: int) -> Iterator[tuple[str, PageAnswer]]:
    group = large_group(assignor, restarts, BEGIN_MS)
    page = page_of(group)
    now_ms = page.now_ms
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    first = page.get("/group", id=GROUP_ID)
    yield f"open, {len(group.history):,} entries: the last {_rebalances(first)} rebalances", first
    as_json = page.get("/api/group", id=GROUP_ID)
    ms = (time.perf_counter() - began_s) * 1000
    cpu_ms = (time.process_time() - began_cpu_s) * 1000
    yield "from there until the whole of it is there", PageAnswer(ms, cpu_ms, 0, "")
    yield "the same as JSON", as_json
    yield "open again", page.get("/group", id=GROUP_ID)
    for part in range(DRAGS):
        from_ms, to_ms = now_ms - 3_000_000 + part * 60_000, now_ms - 600_000
        dragged = page.get("/group", **{"id": GROUP_ID, "from": from_ms, "to": to_ms, "part": "time"})
        yield f"drag {part + 1}", dragged
    new_entry = replace(group.history[-1], seq=group.history[-1].seq + 1)
    page.fleet.apply(LAYOUT.events_topic, None, encode(new_entry), now_ms)
    yield "live, after an entry came", page.get("/group", id=GROUP_ID)


def _rebalances(answer: PageAnswer) -> int:
    """Return the number of rebalances that the page draws."""
    return len(re.findall(r'class="band"', answer.text))


def _of_many_groups() -> Iterator[tuple[str, PageAnswer]]:
    records = list(many_groups(small_group(SMALL_RESTARTS, BEGIN_MS), LAYOUT))
    now_ms = max(record.at_ms for record in records) + PAUSE_MS
    page = InMemoryPage(MemoryLog([]), now_ms)
    page.apply(records)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    page.lines = page.overview.lines(now_ms)
    ms = (time.perf_counter() - began_s) * 1000
    cpu_ms = (time.process_time() - began_cpu_s) * 1000
    yield f"lines of {GROUPS:,} groups, in the background", PageAnswer(ms, cpu_ms, 0, "")
    yield f"the first page of {GROUPS:,} groups", page.get("/")
    yield "the same again", page.get("/")


if __name__ == "__main__":
    main()
