"""What holds the event loop up is counted and named, and nothing else is."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from gateway.metrics.numbers import GatewayCounts
from gateway.running import HELD_MAX_S, loop_watched

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


def use_processor(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def watched(run: Any, work: Coroutine[Any, Any, None]) -> tuple[GatewayCounts, list[Any]]:
    counts = GatewayCounts()

    async def play() -> None:
        with loop_watched(counts):
            await work
            await asyncio.sleep(3 * HELD_MAX_S)

    with capture_logs() as logs:
        run(play())
    return counts, logs


async def one_long_step() -> None:
    await asyncio.sleep(0)
    use_processor(20 * HELD_MAX_S)


async def many_short_steps(number: int = 200) -> None:
    for _ in range(number):
        use_processor(HELD_MAX_S / 20)
        await asyncio.sleep(0)


async def steps_beside_each_other() -> None:
    """One turn of the loop takes several times as long as a step may."""
    await asyncio.gather(*(many_short_steps(4) for _ in range(80)))


@LOOPS
def test_slow_step_of_the_event_loop_is_counted_and_its_code_location_logged(run: Any) -> None:
    counts, logs = watched(run, one_long_step())
    assert counts.held == 1
    assert HELD_MAX_S <= counts.held_s <= 21 * HELD_MAX_S
    (line,) = logs
    assert line["event"] == "the event loop was held up"
    assert "use_processor" in line["place"] or "one_long_step" in line["place"]


@LOOPS
@pytest.mark.parametrize("work", [many_short_steps, steps_beside_each_other])
def test_many_short_steps_are_not_reported_as_a_long_one(run: Any, work: Any) -> None:
    counts, logs = watched(run, work())
    assert (counts.held, logs) == (0, [])
