"""Calls of functions in a separate process, so that a load has its own Python interpreter."""

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LoadFailed(RuntimeError):
    """The load client ended without a result; standard error has the reason."""


def call_in_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a module's function in a new process and return its result. Raises LoadFailed."""
    context = get_context("spawn")  # a fork would copy the threads' locks
    results, child_end = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(child_end, function, args, kwargs), daemon=True)
    process.start()
    child_end.close()
    try:
        result: T = results.recv()
    except EOFError:
        raise LoadFailed(f"{function.__module__}.{function.__name__} gave nothing") from None
    finally:
        process.terminate()
        process.join()
        results.close()
    return result


def _send(results: Connection, function: Callable[..., object], args: Any, kwargs: Any) -> None:
    results.send(function(*args, **kwargs))
