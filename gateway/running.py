"""A gateway on its own thread, its readiness for clients, and the watch of its event loop."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import FrameType
from typing import Any, Protocol, TypeVar

import structlog
import uvloop

from gateway.coordinator.backend import Backend
from gateway.metrics.numbers import Numbers
from gateway.net.server import Gateway
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost
from kafka_why.connections.address import Address
from kafka_why.contract.kafka.requests import DescribeGroup
from kafka_why.contract.messages import ANONYMOUS, ErrorCode

# Readiness of a gateway for clients, with the reason if it is not ready.


LISTENING, BROKERS, COORDINATOR = "listening", "brokers", "coordinator"
CHECKS = (LISTENING, BROKERS, COORDINATOR)

Checks = dict[str, str | None]
"""The reason why a check fails, by the check's name. The reason is None if it does not fail."""

# The outcome of a check is reused for this time, because each check of the coordinator costs it a batch.
AGE_MAX_S = 5.0
# The timeout of a check. Callers have a longer one, so that they get the reason.
_CHECK_TIMEOUT_S = 2.0
# The group in the request to the coordinator. It need not exist.
_GROUP_ID, _CLIENT_ID, _DESCRIBE_VERSION = "__readiness", "gateway", 5


class AnsweringBackend(Backend, Protocol):
    """A backend with the time of its last answer, in seconds of `time.monotonic`."""

    answered_at_s: float


class DrainingServer(Protocol):
    """The listeners of a gateway."""

    @property
    def is_draining(self) -> bool: ...
    @property
    def is_listening(self) -> bool: ...


Check = Callable[[], Awaitable[str | None]]
"""A readiness check. It returns the reason why it fails, or None."""


class Readiness:
    """The readiness checks of one gateway: that it listens, and `others` by name. Use them on the event
    loop's thread.
    """

    def __init__(self, server: DrainingServer, others: Mapping[str, Check]) -> None:
        self._server = server
        self._others = others
        self._recent_checks: dict[str, tuple[float, asyncio.Task[str | None]]] = {}

    async def checks(self, exclude: Collection[str] = ()) -> Checks:
        """Run the checks, except those in `exclude`, and return their outcomes."""
        wanted = [name for name in self._others if name not in exclude]
        found = await asyncio.gather(*(_bounded(self._recent_outcome(name)) for name in wanted))
        listening = {} if LISTENING in exclude else {LISTENING: self._check_listening()}
        return {**listening, **dict(zip(wanted, found, strict=True))}

    def _check_listening(self) -> str | None:
        if self._server.is_draining:
            return "the gateway is draining"
        return None if self._server.is_listening else "the gateway does not listen"

    async def _recent_outcome(self, name: str) -> str | None:
        """Return the outcome of the check `name`.

        Callers share a check that is running or that began at most AGE_MAX_S ago.
        """
        began_s, task = self._recent_checks.get(name, (0.0, None))
        if task is None or (task.done() and time.monotonic() - began_s > AGE_MAX_S):
            task = asyncio.ensure_future(self._others[name]())
            self._recent_checks[name] = time.monotonic(), task
        return await asyncio.shield(task)


def kafka_readiness(gateway: Gateway, cluster: Cluster, backend: AnsweringBackend) -> Readiness:
    """Return the readiness checks of a gateway for Kafka's clients."""
    return Readiness(
        gateway,
        {BROKERS: partial(_brokers_check, cluster), COORDINATOR: partial(_coordinator_check, backend)},
    )


async def _brokers_check(cluster: Cluster) -> str | None:
    try:
        await cluster.refresh()
    except UpstreamLost as error:
        return str(error)
    return None


async def _coordinator_check(backend: AnsweringBackend) -> str | None:
    if time.monotonic() - backend.answered_at_s <= AGE_MAX_S:
        return None  # clients' requests have shown it
    header = backend.header(_GROUP_ID, _DESCRIBE_VERSION, _CLIENT_ID, "", ANONYMOUS)
    answer = await backend.ask(DescribeGroup(**header))
    if not answer.request and answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return "the coordinator does not answer"
    return None


async def _bounded(check: Awaitable[str | None]) -> str | None:
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            return await check
    except TimeoutError:
        return f"no answer within {_CHECK_TIMEOUT_S:.0f} s"


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
    """A running gateway. Call its methods from any thread but the gateway's. They raise TimeoutError if the
    event loop does not respond.
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
        """Return the outcomes of the readiness checks, except those in `exclude`."""
        return self._call(self._readiness.checks(exclude), LOOP_TIMEOUT_S)

    def drain(self, timeout_s: float) -> None:
        """Accept no more connections, and wait for at most `timeout_s` until all connections have ended."""
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
"""The future of a gateway that is being started. It is done when the gateway listens or has failed."""


@contextmanager
def running_on_thread(serve: Callable[[Started], Coroutine[None, None, None]]) -> Iterator[RunningGateway]:
    """Run `serve` on the event loop of a new thread until the block ends.

    Raises the error of `serve` if it fails before the gateway listens.
    """
    _tune_interpreter()
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
def _tune_interpreter() -> None:
    """Tune garbage collection and thread switches for a gateway, once in each process."""
    # Requests have many objects, so collections are frequent. `freeze` exempts the objects of all imported
    # modules. With 500 requests under way on one connection, a request then takes 0.74 of the processor time,
    # and the slowest hundredth takes 0.63 of the time. With 1,000 connections a request takes 0.89 of the
    # processor time.
    gc.collect()
    gc.freeze()
    # With Python's own thresholds, the objects of one large request trigger several collections of all
    # requests' objects, each of which takes 40 ms of a step. With these there are a few small collections.
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


# Detection of long steps of the event loop: while one request occupies the loop, no other is served.
#
# A thread samples the loop 50 times a second. It measures the processor time of the loop's thread, so that
# a busy machine is not mistaken for a long step. C code that does not release the interpreter is not
# detected, because the thread cannot run.


HELD_MAX_S = 0.02
"""The processor time that one step may take. A longer step is counted, and logged with its function."""

_SAMPLE_S = 0.02
_LOG_S = 1.0
_MACHINERY = ("asyncio.runners", "asyncio.base_events", "asyncio.events")
_OURS = ("gateway", "clients", "kafka_why", "records", "state")


class StepCounts(Protocol):
    """Counts of long steps, and of their time in seconds."""

    held: int
    held_s: float


@contextmanager
def loop_watched(counts: StepCounts) -> Iterator[None]:
    """Watch the running loop until the block ends."""
    watch = _LoopWatch(asyncio.get_running_loop(), counts)
    thread = threading.Thread(target=watch.run, name="gateway-loop-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.ended.set()
        thread.join()


class _LoopWatch:
    """A watch of one loop for long steps.

    After a busy sample it schedules a call in the loop. Until that call runs, the loop is in the same turn,
    so a step that is still running then is a long one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, counts: StepCounts) -> None:
        self.ended = threading.Event()
        self._loop = loop
        self._counts = counts
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._cpu_s = 0.0
        """The thread's processor time at the last sample."""
        self._has_turned = threading.Event()
        """Set by the scheduled call."""
        self._step: FrameType | None = None
        """The step that is watched, or None."""
        self._step_cpu_s = 0.0
        self._held_s, self._function = 0.0, ""
        """The time of the long step, 0 if there is none, and its function."""
        self._logged_s = -_LOG_S

    def run(self) -> None:
        while not self.ended.wait(_SAMPLE_S):
            cpu_s = time.clock_gettime(self._clock)
            if self._step is not None and not self._has_turned.is_set():
                self._sample_again(cpu_s)
            else:
                self._conclude()
                # A loop that is idle for most of the time has no long step.
                if cpu_s - self._cpu_s > HELD_MAX_S / 2:
                    self._begin(cpu_s)
            self._cpu_s = cpu_s
        self._conclude()

    def _begin(self, cpu_s: float) -> None:
        """Watch the step that runs now, if any."""
        stack = self._stack()
        if stack:
            self._has_turned.clear()
            self._step, self._step_cpu_s = stack[0], cpu_s
            self._loop.call_soon_threadsafe(self._has_turned.set)

    def _sample_again(self, cpu_s: float) -> None:
        """Measure the watched step while the loop is in the same turn."""
        stack = self._stack()
        if not stack or stack[0] is not self._step:
            self._step = stack[0] if stack else self._step
            self._step_cpu_s = cpu_s
        elif cpu_s - self._step_cpu_s >= HELD_MAX_S:
            self._held_s, self._function = cpu_s - self._step_cpu_s, _innermost(stack)

    def _conclude(self) -> None:
        """Count and log the long step, if there was one."""
        held_s, self._held_s, self._step = self._held_s, 0.0, None
        if not held_s:
            return
        self._counts.held += 1
        self._counts.held_s += held_s
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_S:
            self._logged_s = now_s
            log.warning("the event loop was held up", held_ms=round(held_s * 1e3), place=self._function)

    def _stack(self) -> list[FrameType]:
        """Return the frames of the step that the loop runs now, outermost first, or none between
        two steps.
        """
        frames: list[FrameType] = []
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame.f_globals.get("__name__") not in _MACHINERY:
            frames.append(frame)
            frame = frame.f_back
        return frames[::-1]


def _innermost(stack: list[FrameType]) -> str:
    """Return the module, name and line of the innermost function of ours on the stack."""
    ours = [frame for frame in stack if frame.f_globals.get("__name__", "").split(".")[0] in _OURS]
    frame = (ours or stack)[-1]
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}:{frame.f_lineno}"
