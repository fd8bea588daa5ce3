"""Members and committing clients beside 20 open pages, and without any.

The pages are live: half of them show all groups, half show one group each. The page and its readers are
paused every other turn, so both results are from one run.
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
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult
from bench.rows.hostile import MEMBERS, SESSION_TIMEOUT_MS, WARM_UP_S, run_members
from bench.systems import PREFIX, START_TIMEOUT_S, RunningSystems
from cli.processes.child import Child, family
from kafka_why.connections.address import Address

OPEN_PAGES = 20
RATIO = 1.05
_TURN_S, _QUICK_TURN_S = 15.0, 8.0
_READY = "ready: "


@dataclass
class PageTurns:
    """The members' results of each turn without and with the pages, and counts of the readers' responses."""

    without: list[LoadResult] = field(default_factory=list)
    with_pages: list[LoadResult] = field(default_factory=list)
    responses: Counter[str] = field(default_factory=Counter)


def measure(bench: Bench) -> RowResult:
    """Run members with and without open pages, in turns."""
    systems = bench.new_systems(NO_DELAY_MS).running
    servers = ("--bootstrap-servers", systems.servers, "--prefix", PREFIX)
    page = Child("page", ["page", *servers], bench.folder / "page.log")
    try:
        url = page.wait_for_line(lambda line: line.startswith(_READY), START_TIMEOUT_S)
        turns = bench.call_in_process(
            _run_turns, systems, url.removeprefix(_READY).strip(), page.pid, bench.plan
        )
    finally:
        page.stop()
    responses = ", ".join(f"{number:,} {what}" for what, number in sorted(turns.responses.items()))
    errors = sum((outcome.errors for outcome in (*turns.without, *turns.with_pages)), Counter[int]())
    row = RowResult(notes=[f"the readers of {OPEN_PAGES} pages were given: {responses}"])
    row.figures = [
        *(_figure(turns, quantile, name) for quantile, name in ((0.5, "p50"), (0.99, "p99"))),
        Figure(f"beside {OPEN_PAGES} pages: responses with an error", "", [float(errors.total())]),
    ]
    return row


def _figure(turns: PageTurns, quantile: float, name: str) -> Figure:
    with_pages, without = (
        [outcome.latency_ms(quantile) for outcome in side] for side in (turns.with_pages, turns.without)
    )
    what = f"heartbeats and commits beside {OPEN_PAGES} open pages, {name}"
    return Figure(what, "ms", with_pages, without, "no page", ratio_at_most(RATIO))


def _run_turns(systems: RunningSystems, url: str, page_pid: int, plan: Plan) -> PageTurns:
    return asyncio.run(_take_turns(systems.ours, url, page_pid, plan))


async def _take_turns(address: Address, url: str, page_pid: int, plan: Plan) -> PageTurns:
    seconds = _QUICK_TURN_S if plan.is_quick else _TURN_S
    group_ids = [f"read-{uuid.uuid4()}" for _ in range(MEMBERS)]
    members = await kafka_groups.form(address, group_ids, SESSION_TIMEOUT_MS)
    await run_members(address, members, WARM_UP_S)
    command = [sys.executable, "-m", "bench.load.readers", url, str(OPEN_PAGES), *group_ids[:OPEN_PAGES]]
    readers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    page_pids = [*family(page_pid), readers.pid]
    turns = PageTurns()
    for _ in range(plan.repeats):
        _signal(page_pids, signal.SIGSTOP)
        turns.without.append(await run_members(address, members, seconds))
        _signal(page_pids, signal.SIGCONT)
        await run_members(address, members, WARM_UP_S)
        turns.with_pages.append(await run_members(address, members, seconds))
    output, _ = readers.communicate(b"")
    turns.responses.update(msgspec.json.decode(output, type=dict[str, int]))
    return turns


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)
