"""Callers that come at the same time share a round, and its work is done one piece at a time."""

import asyncio
from itertools import count

import pytest

from gateway.coordinator.fresh_groups import Rounds
from tests.harness.waiting import asynchronous, until


class Played:
    """Rounds whose beginnings have numbers, and work that ends when the test lets it."""

    def __init__(self) -> None:
        self.rounds = Rounds(self._begin)
        self.begun = count(1)
        self.log: list[str] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def _begin(self) -> int:
        return next(self.begun)

    def ask(self, key: str) -> asyncio.Task[str]:
        async def work(number: int) -> str:
            self.log.append(f"{key} begins")
            await asyncio.sleep(0)
            await self.go_on.wait()
            self.log.append(f"{key} ends")
            return f"{key} of round {number}"

        return asyncio.create_task(self.rounds.run(key, work))


@asynchronous
async def test_callers_with_equal_keys_share_one_result() -> None:
    it = Played()
    asked = [it.ask(key) for key in ("a", "b", "a", "a", "b")]
    a, b = "a of round 1", "b of round 1"
    assert await asyncio.gather(*asked) == [a, b, a, a, b]
    assert it.log == ["a begins", "a ends", "b begins", "b ends"]


@asynchronous
async def test_caller_during_a_running_round_gets_the_next_rounds_result() -> None:
    it = Played()
    it.go_on.clear()
    first = it.ask("a")
    await until(lambda: it.log)
    later = [it.ask("a"), it.ask("a")]
    await asyncio.sleep(0)
    it.go_on.set()
    assert await first == "a of round 1"
    assert await asyncio.gather(*later) == ["a of round 2"] * 2
    assert it.log == ["a begins", "a ends"] * 2


@asynchronous
async def test_work_whose_callers_are_cancelled_is_skipped() -> None:
    it = Played()
    it.go_on.clear()
    first, left, other = it.ask("a"), it.ask("b"), it.ask("b")
    alone = it.ask("c")
    await until(lambda: it.log)
    left.cancel()
    alone.cancel()
    it.go_on.set()
    assert await first == "a of round 1"
    assert await other == "b of round 1"
    await it.ask("d")
    assert "c begins" not in it.log


@asynchronous
async def test_error_of_one_key_reaches_only_its_callers() -> None:
    it = Played()

    async def fail(_: int) -> str:
        raise ValueError("no such luck")

    failing, other = asyncio.create_task(it.rounds.run("f", fail)), it.ask("a")
    with pytest.raises(ValueError, match="no such luck"):
        await failing
    assert await other == "a of round 1"
    assert await it.ask("a") == "a of round 2"


@asynchronous
async def test_error_at_the_start_of_a_round_reaches_all_its_callers() -> None:
    numbers = count(1)

    async def begin() -> int:
        if next(numbers) == 1:
            raise ValueError("not yet")
        return 2

    async def same(number: int) -> int:
        return number

    rounds = Rounds(begin)
    failed = await asyncio.gather(*(rounds.run(key, same) for key in "ab"), return_exceptions=True)
    assert [type(error) for error in failed] == [ValueError, ValueError]
    assert await rounds.run("a", same) == 2
