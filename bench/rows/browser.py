"""The page in a real browser: opening a page, dragging over the timeline, and live updates.

The topics have 2,000 groups and a large one. Their records are generated instead of sent by members, so only
the broker, the page and the browser run.
"""

import json
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from confluent_kafka import Producer
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from bench.browser import CHROMIUM, DRIVER, MISSING, browser
from bench.page_browser import Opened, drag, open_page, seen_ms, wait_for_exact_picture, watch_for_text
from bench.page_history import GROUP_ID, RestartedGroup
from bench.page_records import (
    GROUPS,
    MEMBERS,
    PARTITIONS,
    RESTARTS,
    Record,
    entries_of,
    large_group,
    many_groups,
    offsets_of_large_group,
    renamed,
    small_group,
    small_group_name,
    view_record,
)
from bench.report import Figure, Limit, at_most, say
from bench.rows.bench import Bench, RowResult
from bench.systems import PREFIX, START_TIMEOUT_S
from cli.processes.child import Child, ChildFailed
from embedded.broker import EmbeddedBroker
from kafka_why.contract.layout import TopicLayout
from kafka_why.sticky.assignor import StickyAssignor
from streaming.service.topics import prepare_topics

REPEATS = 5
SMALL_RESTARTS = 1
GROUPS_LIMIT_MS, GROUPS_LIMIT_KB, GROUP_LIMIT_MS, DRAG_LIMIT_MS, LIVE_LIMIT_MS = 300, 100, 1_000, 50, 2_000
_READY = "ready: "
_READ_TIMEOUT_S = 300.0
_LARGE_AGE_S, _SMALL_AGE_S = 3_040, 60
"""The ages of the large and of the small groups, in seconds. With these ages, all rebalances are in the last
hour, and the groups continue before a session of 30 min ends.
"""
_REJOIN_MS = 4_000
"""Longer than a rebalance of these groups takes."""
_PAUSE_S = 8.0
"""The pause between two changes. The server rebuilds the report of a large group in a third of it."""
_SCRIPT_TIMEOUT_S = 120


@dataclass
class Topics:
    """The groups, and the producer of their records."""

    layout: TopicLayout
    producer: Producer
    large: RestartedGroup
    small: RestartedGroup

    def write(self, records: Iterable[Record]) -> None:
        """Write records, and wait until all are acknowledged."""
        for record in records:
            while True:
                try:
                    self.producer.produce(record.topic, record.value, record.key, timestamp=record.at_ms)
                    break
                except BufferError:
                    self.producer.poll(0.1)
        self.producer.flush()

    def begin(self) -> None:
        """Write all records that exist before the page is opened."""
        self.write(many_groups(self.small, self.layout))
        at_ms = _now_ms()
        self.write(offsets_of_large_group(self.layout, at_ms))
        self.write(
            [view_record(self.large, self.layout, at_ms), *entries_of(self.large.history, self.layout)]
        )

    def new_group(self, number: int) -> Iterator[Record]:
        """Yield the records of another small group, whose name sorts before all others."""
        yield from renamed(self.small, f"a-new-group-{number}", self.layout)

    def leave_records(self, group: RestartedGroup, group_id: str) -> list[Record]:
        """Let a member leave the group now, and return the records of the rebalance."""
        entries_before = len(group.history)
        # `leave` lets the members join again after this time, so the last record is of about now.
        group.wait_until(_now_ms() - _REJOIN_MS)
        group.leave()
        return list(renamed(group, group_id, self.layout, entries_before))


def measure(bench: Bench) -> RowResult:
    """Measure each action several times. Raises ChildFailed if there is no browser."""
    if not (CHROMIUM and DRIVER):
        raise ChildFailed(MISSING)
    bench.close()
    say("making the histories")
    begin_ms = _now_ms() - _LARGE_AGE_S * 1000
    large = large_group(StickyAssignor.name, RESTARTS, begin_ms)
    small = small_group(SMALL_RESTARTS, _now_ms() - _SMALL_AGE_S * 1000)
    with EmbeddedBroker(bench.folder / "browser-broker") as broker:
        layout = TopicLayout.named(PREFIX)
        prepare_topics(broker.client_config, layout)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
        topics = Topics(layout, producer, large, small)
        topics.begin()
        with (
            _page(broker.bootstrap_servers, bench.folder) as (url, read_s),
            browser(bench.folder / "browser") as driver,
        ):
            driver.set_script_timeout(_SCRIPT_TIMEOUT_S)
            open_page(driver, f"{url}coordinator")  # so that the browser's start is in no figure
            figures = [
                *_overview_figures(driver, url),
                *_large_group_figures(driver, url),
                *_live_figures(driver, url, topics),
            ]
    entries = len(large.history)
    note = (
        f"the topics have {GROUPS:,} groups of {len(small.history)} entries and one of {entries:,}; "
        f"the page has read them {read_s:.0f} s after its start"
    )
    return RowResult(figures, notes=[note])


@contextmanager
def _page(servers: str, folder: Path) -> Iterator[tuple[str, float]]:
    """Start a page in its own process. Yield its address, and the seconds until it had read the topics."""
    began_s = time.monotonic()
    page = Child("page", ["page", "--bootstrap-servers", servers, "--prefix", PREFIX], folder / "page.log")
    try:
        url = page.wait_for_line(lambda line: line.startswith(_READY), START_TIMEOUT_S)
        url = url.removeprefix(_READY).strip()
        while _total(url) < GROUPS + 1:
            if time.monotonic() - began_s > _READ_TIMEOUT_S:
                raise page.failure(f"it has not read {GROUPS:,} groups within {_READ_TIMEOUT_S:.0f} s")
            time.sleep(0.5)
        read_s = time.monotonic() - began_s
        time.sleep(_PAUSE_S)
        yield url, read_s
    finally:
        page.stop()


def _total(url: str) -> int:
    """Return the number of groups that the page has read."""
    with urllib.request.urlopen(f"{url}api/groups", timeout=60) as response:
        return int(json.load(response)["total"])


def _overview_figures(driver: Chrome, url: str) -> Iterator[Figure]:
    pages = [open_page(driver, url) for _ in range(REPEATS)]
    what = f"the page of {GROUPS:,} groups opened"
    yield _open_figure(what, pages, GROUPS_LIMIT_MS)
    sent_kb = [page.received_bytes / 1000 for page in pages]
    yield Figure(f"{what}: sent, with its own files", "kB", sent_kb, required=at_most(GROUPS_LIMIT_KB))


def _large_group_figures(driver: Chrome, url: str) -> Iterator[Figure]:
    address = _address(url, GROUP_ID)
    what = f"group of {MEMBERS} members, {PARTITIONS:,} partitions, {2 * RESTARTS} rebalances"
    yield _open_figure(f"{what}: opened first", [open_page(driver, address)], GROUP_LIMIT_MS)
    with urllib.request.urlopen(_address(f"{url}api/", GROUP_ID), timeout=_READ_TIMEOUT_S) as response:
        response.read()  # the server answers once it has the whole history
    pages = [open_page(driver, address) for _ in range(REPEATS)]
    yield _open_figure(f"{what}: opened again", pages, GROUP_LIMIT_MS)
    drags_ms, exact_ms = [], []
    for _ in range(REPEATS):
        open_page(driver, address)
        dragged = drag(driver, 0.25, 0.75)
        drags_ms.append(dragged.ms)
        exact_ms.append(wait_for_exact_picture(driver))
    yield _ms_figure(f"{what}: a drag until the picture has its time", drags_ms, at_most(DRAG_LIMIT_MS))
    yield _ms_figure(f"{what}: a drag until the server's exact picture", exact_ms, None)


def _live_figures(driver: Chrome, url: str, topics: Topics) -> Iterator[Figure]:
    open_page(driver, url)
    delays_ms = []
    for number in range(REPEATS):
        records = list(topics.new_group(number))
        watch_for_text(driver, ".groups th a", f"a-new-group-{number}")
        delays_ms.append(_write_until_seen_ms(driver, topics, records))
    yield _ms_figure("live: a new group, on the page of all groups", delays_ms, at_most(LIVE_LIMIT_MS))
    for what, group, group_id in (
        (f"a rebalance of {MEMBERS} members", topics.large, GROUP_ID),
        ("a rebalance of 10 members", topics.small, small_group_name(0)),
    ):
        open_page(driver, _address(url, group_id))
        delays_ms = []
        for _ in range(REPEATS):
            records = topics.leave_records(group, group_id)
            watch_for_text(driver, ".rebalances a", f"#{_newest(driver) + 1}")
            delays_ms.append(_write_until_seen_ms(driver, topics, records))
        yield _ms_figure(f"live: {what}, on the group's page", delays_ms, at_most(LIVE_LIMIT_MS))


def _write_until_seen_ms(driver: Chrome, topics: Topics, records: list[Record]) -> float:
    """Write records, and return the milliseconds until the page shows the watched text."""
    began_ms = time.time_ns() / 1e6
    topics.write(records)
    delay_ms = seen_ms(driver) - began_ms
    time.sleep(_PAUSE_S)
    return delay_ms


def _newest(driver: Chrome) -> int:
    """Return the number of the last rebalance that the page shows."""
    return int(driver.find_element(By.CSS_SELECTOR, ".rebalances a").text.removeprefix("#"))


def _address(url: str, group_id: str) -> str:
    return f"{url}group?{urlencode({'id': group_id})}"


def _open_figure(what: str, pages: list[Opened], limit_ms: float) -> Figure:
    return _ms_figure(what, [page.ms for page in pages], at_most(limit_ms))


def _ms_figure(what: str, values_ms: list[float], required: Limit | None) -> Figure:
    return Figure(what, "ms", values_ms, required=required)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
