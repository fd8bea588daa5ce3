"""The page in a real browser, as a reader meets it: opened, dragged, and live.

The topics have 2,000 groups and a large one. Their records are made, not sent by members, so nothing runs but
the broker, the page and the browser.
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
from bench.page_browser import Opened, drag, opened, seen_ms, wait_for_answer, watch
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
    many_name,
    named,
    offsets_of_large_group,
    small_group,
    view_record,
)
from bench.report import Figure, Limit, at_most, say
from bench.rows.bench import Bench, Found
from bench.systems import PREFIX, START_TIMEOUT_S
from cli.processes.child import Child, ChildFailed
from embedded.broker import EmbeddedBroker
from kafka_why.contract.layout import TopicLayout
from kafka_why.sticky.assignor import StickyAssignor
from streaming.service.topics import prepare_topics

LOOKS = 5
SMALL_RESTARTS = 1
GROUPS_LINE_MS, GROUPS_LINE_KB, GROUP_LINE_MS, DRAG_LINE_MS, LIVE_LINE_MS = 300, 100, 1_000, 50, 2_000
_READY = "ready: "
_READ_TIMEOUT_S = 300.0
_BEGAN_S, _SMALL_BEGAN_S = 3_040, 60
"""How long ago the groups formed, in seconds. All rebalances are of the last hour, and the last one is so
young that no session of these groups (30 min) has ended when they go on.
"""
_REJOIN_MS = 4_000
"""Longer than a rebalance of these groups takes."""
_PAUSE_S = 8.0
"""Between two changes. The server makes a report of a large group again in a third of the time at most."""
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
        """Write all that was before the page was opened."""
        self.write(many_groups(self.small, self.layout))
        at_ms = _now_ms()
        self.write(offsets_of_large_group(self.layout, at_ms))
        self.write(
            [view_record(self.large, self.layout, at_ms), *entries_of(self.large.history, self.layout)]
        )

    def new_group(self, number: int) -> Iterator[Record]:
        """Return another small group, which is the first by name."""
        yield from named(self.small, f"a-new-group-{number}", self.layout)

    def left(self, group: RestartedGroup, group_id: str) -> list[Record]:
        """Return the records of a member of a group that leaves now."""
        first = len(group.history)
        group.wait_until(_now_ms() - _REJOIN_MS)
        group.leave()
        return list(named(group, group_id, self.layout, first))


def measure(bench: Bench) -> Found:
    """Measure all, each several times. Raises ChildFailed if there is no browser."""
    if not (CHROMIUM and DRIVER):
        raise ChildFailed(MISSING)
    bench.close()
    say("making the histories")
    began_ms = _now_ms() - _BEGAN_S * 1000
    large = large_group(StickyAssignor.name, RESTARTS, began_ms)
    small = small_group(SMALL_RESTARTS, _now_ms() - _SMALL_BEGAN_S * 1000)
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
            opened(driver, f"{url}coordinator")  # the browser's own first page
            figures = [*_many(driver, url), *_large(driver, url), *_live(driver, url, topics)]
    entries = len(large.history)
    note = (
        f"the topics have {GROUPS:,} groups of {len(small.history)} entries and one of {entries:,}; "
        f"the page has read them {read_s:.0f} s after its start"
    )
    return Found(figures, notes=[note])


@contextmanager
def _page(servers: str, folder: Path) -> Iterator[tuple[str, float]]:
    """Start a page in its own process. Return its address, and the seconds until it has read the topics."""
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
    with urllib.request.urlopen(f"{url}api/groups", timeout=60) as response:
        return int(json.load(response)["total"])


def _many(driver: Chrome, url: str) -> Iterator[Figure]:
    looks = [opened(driver, url) for _ in range(LOOKS)]
    what = f"the page of {GROUPS:,} groups opened"
    yield _opened(what, looks, GROUPS_LINE_MS)
    sent_kb = [look.sent_bytes / 1000 for look in looks]
    yield Figure(f"{what}: sent, with its own files", "kB", sent_kb, line=at_most(GROUPS_LINE_KB))


def _large(driver: Chrome, url: str) -> Iterator[Figure]:
    address = _address(url, GROUP_ID)
    what = f"group of {MEMBERS} members, {PARTITIONS:,} partitions, {2 * RESTARTS} rebalances"
    yield _opened(f"{what}: opened first", [opened(driver, address)], GROUP_LINE_MS)
    with urllib.request.urlopen(_address(f"{url}api/", GROUP_ID), timeout=_READ_TIMEOUT_S) as response:
        response.read()  # it waits for the whole history
    looks = [opened(driver, address) for _ in range(LOOKS)]
    yield _opened(f"{what}: opened again", looks, GROUP_LINE_MS)
    drags_ms, exact_ms = [], []
    for _ in range(LOOKS):
        opened(driver, address)
        dragged = drag(driver, 0.25, 0.75)
        drags_ms.append(dragged.ms)
        exact_ms.append(wait_for_answer(driver))
    yield _line(f"{what}: a drag until the picture has its time", drags_ms, at_most(DRAG_LINE_MS))
    yield _line(f"{what}: a drag until the server's exact picture", exact_ms, None)


def _live(driver: Chrome, url: str, topics: Topics) -> Iterator[Figure]:
    opened(driver, url)
    found_ms = []
    for number in range(LOOKS):
        records = list(topics.new_group(number))
        watch(driver, ".groups th a", f"a-new-group-{number}")
        found_ms.append(_until_seen(driver, topics, records))
    yield _line("live: a new group, on the page of all groups", found_ms, at_most(LIVE_LINE_MS))
    for what, group, group_id in (
        (f"a rebalance of {MEMBERS} members", topics.large, GROUP_ID),
        ("a rebalance of 10 members", topics.small, many_name(0)),
    ):
        opened(driver, _address(url, group_id))
        found_ms = []
        for _ in range(LOOKS):
            records = topics.left(group, group_id)
            watch(driver, ".rebalances a", f"#{_newest(driver) + 1}")
            found_ms.append(_until_seen(driver, topics, records))
        yield _line(f"live: {what}, on the group's page", found_ms, at_most(LIVE_LINE_MS))


def _until_seen(driver: Chrome, topics: Topics, records: list[Record]) -> float:
    """Return the milliseconds from before records are written until the page shows what is watched."""
    began_ms = time.time_ns() / 1e6
    topics.write(records)
    found_ms = seen_ms(driver) - began_ms
    time.sleep(_PAUSE_S)
    return found_ms


def _newest(driver: Chrome) -> int:
    """Return the number of the last rebalance that the page shows."""
    return int(driver.find_element(By.CSS_SELECTOR, ".rebalances a").text.removeprefix("#"))


def _address(url: str, group_id: str) -> str:
    return f"{url}group?{urlencode({'id': group_id})}"


def _opened(what: str, looks: list[Opened], line_ms: float) -> Figure:
    return _line(what, [look.ms for look in looks], at_most(line_ms))


def _line(what: str, values_ms: list[float], line: Limit | None) -> Figure:
    return Figure(what, "ms", values_ms, line=line)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
