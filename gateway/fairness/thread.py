"""A thread that works for all clients."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from gateway.fairness.queue import FairQueue

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Work:
    """Work that waits for the thread."""

    work: Callable[[], Any]
    result: Future[Any]

    def done(self) -> bool:
        return self.result.done()


class FairThread:
    """One thread, in which tenants take turns."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._waiting: FairQueue[_Work] = FairQueue()
        self._lock = Lock()

    def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
        """Return the result of work in the thread. What is cancelled in time does not begin."""
        result: Future[R] = Future()
        with self._lock:
            self._waiting.append(_Work(partial(work, *args, **kwargs), result))
        self._executor.submit(self._run_next)
        return asyncio.wrap_future(result)

    def _run_next(self) -> None:
        """Do what is next now, whatever was next when this was submitted."""
        with self._lock:
            if self._waiting.first() is None:
                return  # it was cancelled
            waiting = self._waiting.popleft()
        result = waiting.result
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(waiting.work())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the result gets it
            result.set_exception(error)
        finally:
            del waiting, result  # the error's traceback has this frame
