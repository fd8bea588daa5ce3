"""Members and committing clients beside 20 open pages, and the same without any.

The pages are live, half of all groups and half of one group each. The page and its readers stand still by
turns, so both sides are of one run.
"""

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from bench.load import kafka_groups
from bench.load.load_result import LoadResult
from bench.report import Figure, ratio_at_most
from bench.rows.bench import AT_ONCE_MS, Bench, Found, Plan
from bench.rows.hostile import MEMBERS, SESSION_TIMEOUT_MS, WARM_UP_S, go_on
from bench.systems import PREFIX, START_TIMEOUT_S, RunningSystems
from cli.processes.child import Child, family
from kafka_why.connections.address import Address

OPEN_PAGES = 20
RATIO = 1.05
_TURN_S, _QUICK_TURN_S = 15.0, 8.0
_READY = "ready: "


@dataclass
class Turns:
    """The results of each turn without and with the pages, for members and for the pages' readers."""

    without: list[LoadResult] = field(default_factory=list)
    beside: list[LoadResult] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)


def measure(bench: Bench) -> Found:
    """Open the pages, and close them, by turns."""
    world = bench.new_systems(AT_ONCE_MS).world
    servers = ("--bootstrap-servers", world.servers, "--prefix", PREFIX)
    page = Child("page", ["page", *servers], bench.folder / "page.log")
    try:
        url = page.wait_for_line(lambda line: line.startswith(_READY), START_TIMEOUT_S)
        turns = bench.load(_turns, world, url.removeprefix(_READY).strip(), page.pid, bench.plan)
    finally:
        page.stop()
    seen = ", ".join(f"{number:,} {what}" for what, number in sorted(turns.seen.items()))
    errors = sum((outcome.errors for outcome in (*turns.without, *turns.beside)), Counter[int]())
    found = Found(notes=[f"the readers of {OPEN_PAGES} pages were given: {seen}"])
    found.figures = [
        *(_figure(turns, quantile, name) for quantile, name in ((0.5, "p50"), (0.99, "p99"))),
        Figure(f"beside {OPEN_PAGES} pages: responses with an error", "", [float(errors.total())]),
    ]
    return found


def _figure(turns: Turns, quantile: float, name: str) -> Figure:
    beside, without = (
        [outcome.latency_ms(quantile) for outcome in side] for side in (turns.beside, turns.without)
    )
    what = f"heartbeats and commits beside {OPEN_PAGES} open pages, {name}"
    return Figure(what, "ms", beside, without, "no page", ratio_at_most(RATIO))


def _turns(world: RunningSystems, url: str, page_pid: int, plan: Plan) -> Turns:
    return asyncio.run(_take_turns(world.ours, url, page_pid, plan))


async def _take_turns(address: Address, url: str, page_pid: int, plan: Plan) -> Turns:
    seconds = _QUICK_TURN_S if plan.is_quick else _TURN_S
    group_ids = [f"read-{uuid.uuid4()}" for _ in range(MEMBERS)]
    members = await kafka_groups.form(address, group_ids, SESSION_TIMEOUT_MS)
    await go_on(address, members, WARM_UP_S)
    command = [sys.executable, "-m", "bench.load.readers", url, str(OPEN_PAGES), *group_ids[:OPEN_PAGES]]
    readers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    of_page = [*family(page_pid), readers.pid]
    turns = Turns()
    for _ in range(plan.repeats):
        _tell(of_page, signal.SIGSTOP)
        turns.without.append(await go_on(address, members, seconds))
        _tell(of_page, signal.SIGCONT)
        await go_on(address, members, WARM_UP_S)
        turns.beside.append(await go_on(address, members, seconds))
    output, _ = readers.communicate(b"")
    turns.seen.update(msgspec.json.decode(output, type=dict[str, int]))
    return turns


def _tell(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)
