"""Polling for conditions that nobody announces (a process, a file, a log line), and coroutines as tests."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import FunctionType
from typing import Any

WAIT_TIMEOUT_S = 60.0


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
    """Wait until a condition condition. Raise AssertionError with `what` if it does not."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.05)


async def until(condition: Callable[[], object], timeout_s: float = WAIT_TIMEOUT_S) -> None:
    """Wait in an event loop until a condition condition. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


def as_test(
    test: Callable[..., Awaitable[None]], call: Callable[[dict[str, Any]], None], *, skipped: int = 0
) -> Callable[..., Any]:
    """Return a test with the coroutine's name and arguments except the first `skipped` ones. It passes the
    arguments to `call`.
    """
    signature = inspect.signature(test)
    signature = signature.replace(parameters=list(signature.parameters.values())[skipped:])

    def run(*positional: Any, **arguments: Any) -> None:
        call(signature.bind(*positional, **arguments).arguments)

    run.__name__ = run.__qualname__ = test.__name__
    run.__doc__ = test.__doc__
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def evaluated_options(options: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, with functions replaced by their results for the arguments that they name."""
    return {
        name: value(**{argument: arguments[argument] for argument in inspect.signature(value).parameters})
        if isinstance(value, FunctionType)
        else value
        for name, value in options.items()
    }


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Any]:
    """Decorate a coroutine as a test, which runs in a new event loop."""
    return as_test(test, lambda arguments: asyncio.run(test(**arguments)))
