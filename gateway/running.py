"""A gateway on its own thread."""

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar

import structlog
import uvloop

from gateway.health import Checks, Readiness
from gateway.metrics.numbers import Numbers
from kafka_why.connections.address import Address

_STOP_TIMEOUT_S = 30.0
_GC_THRESHOLDS = (50_000, 20, 100)
# The time for which another thread may keep the interpreter from the event loop.
_SWITCH_INTERVAL_S = 0.0005

# The time in which the event loop must respond. Otherwise it is stuck.
LOOP_TIMEOUT_S = 5.0

T = TypeVar("T")

log = structlog.get_logger()


class ListeningServer(Protocol):
    """The server of clients that runs on the event loop."""

    @property
    def address(self) -> Address: ...
    def numbers(self) -> Numbers: ...
    async def drain(self, timeout_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A running gateway. Its methods are for other threads than its own. They raise TimeoutError if the event
    loop does not respond.
    """

    address: Address
    _gateway: ListeningServer
    _readiness: Readiness
    _loop: asyncio.AbstractEventLoop
    _stop: asyncio.Event

    def numbers(self) -> Numbers:
        """Return the gateway's counters and current state."""

        async def numbers() -> Numbers:
            return self._gateway.numbers()

        return self._call(numbers(), LOOP_TIMEOUT_S)

    def checks(self, exclude: Collection[str] = ()) -> Checks:
        """Return the outcomes of the readiness checks: see `gateway.health`."""
        return self._call(self._readiness.checks(exclude), LOOP_TIMEOUT_S)

    def drain(self, timeout_s: float) -> None:
        """Accept no more connections, and wait until the open ones have ended, for at most this time."""
        try:
            self._call(self._gateway.drain(timeout_s), timeout_s + LOOP_TIMEOUT_S)
        except TimeoutError:
            log.error("the gateway could not drain, because its event loop does not answer")

    def stop(self) -> None:
        """Stop the event loop, which closes everything that is still open."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def _call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)


Started = Future[RunningGateway]
"""Gets the gateway when it listens, or else the error."""


@contextmanager
def running_on_thread(serve: Callable[[Started], Coroutine[None, None, None]]) -> Iterator[RunningGateway]:
    """Run `serve` on the event loop of a new thread until the block ends. Raises what it raises before the
    gateway listens.
    """
    _freeze_imports()
    started = Started()
    thread = threading.Thread(target=_run, args=(started, serve), name="gateway", daemon=True)
    thread.start()
    gateway = started.result()
    try:
        yield gateway
    finally:
        gateway.stop()
        thread.join(_STOP_TIMEOUT_S)


def _run(started: Started, serve: Callable[[Started], Coroutine[None, None, None]]) -> None:
    try:
        uvloop.run(serve(started))
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


@cache
def _freeze_imports() -> None:
    """Exempt the objects of all imported modules from garbage collection, once in each process.

    The objects of requests make collections frequent. When collections skip the modules, a request takes 0.74
    of the processor time with 500 under way on one connection, 0.89 with 1,000 connections, and the slowest
    hundredth of 500 takes 0.63 of the time.

    The objects of one large request trigger a collection of all objects of requests, which takes 40 ms of a
    step, several times. With these thresholds the request has a few small collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
