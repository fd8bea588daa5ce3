"""Tests that are coroutines."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any


def as_test(
    test: Callable[..., Awaitable[None]], call: Callable[[dict[str, Any]], None], *, given: int = 0
) -> Callable[..., Any]:
    """Return a test with the name and the arguments of this coroutine, which it hands to `call`. The first
    `given` arguments are not the test's.
    """
    signature = inspect.signature(test)
    signature = signature.replace(parameters=list(signature.parameters.values())[given:])

    def run(*positional: Any, **arguments: Any) -> None:
        call(signature.bind(*positional, **arguments).arguments)

    run.__name__ = run.__qualname__ = test.__name__
    run.__doc__ = test.__doc__
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Any]:
    """Make a test of a coroutine, in an event loop of its own."""
    return as_test(test, lambda arguments: asyncio.run(test(**arguments)))
