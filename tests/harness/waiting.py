"""Waits of a test for what nobody announces: another process, a file, a log line."""

import asyncio
import time
from collections.abc import Callable

WAIT_TIMEOUT_S = 60.0


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
    """Wait until a condition holds. Fails, and says what did not come."""
    give_up_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < give_up_s, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.05)


async def until(holds: Callable[[], object], timeout_s: float = WAIT_TIMEOUT_S) -> None:
    """Wait likewise on an event loop. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.001)
