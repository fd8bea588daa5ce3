"""A gateway on its own thread, its readiness for clients, and the watch of its event loop."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import FrameType
from typing import Any, Protocol, TypeVar

import structlog
import uvloop

from gateway.coordinator.failures import Backend
from gateway.metrics.numbers import CommonCounts, Numbers
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


class GatewayServer(Protocol):
    """The server of clients that runs on the event loop."""

    @property
    def address(self) -> Address:
        """The first listener's address."""

    @property
    def is_draining(self) -> bool:
        """True if it accepts no more connections."""

    @property
    def is_listening(self) -> bool:
        """True if all its listeners accept connections."""

    def numbers(self) -> Numbers:
        """Return the values of its metrics."""

    async def start(self) -> None:
        """Open the listeners."""

    async def drain(self, timeout_s: float) -> None:
        """Accept no more connections, and wait for the end of all others."""

    async def close(self) -> None:
        """Close everything that is open."""


Check = Callable[[], Awaitable[str | None]]
"""A readiness check. It returns the reason why it fails, or None."""


@dataclass(slots=True, eq=False)
class Readiness:
    """The readiness checks of one gateway: that it listens, and others by name. Use them on the event
    loop's thread.
    """

    _server: GatewayServer
    _others: Mapping[str, Check]
    # When a check began last, by `time.monotonic`, and its task.
    _recent_checks: dict[str, tuple[float, asyncio.Task[str | None]]] = field(default_factory=dict)

    async def checks(self, exclude: Collection[str] = ()) -> Checks:
        """Run the checks, except those in `exclude`, and return their outcomes."""
        names = [name for name in self._others if name not in exclude]
        outcomes = await asyncio.gather(*(_with_timeout(self._recent_outcome(name)) for name in names))
        listening = {} if LISTENING in exclude else {LISTENING: self._check_listening()}
        return {**listening, **dict(zip(names, outcomes, strict=True))}

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


def kafka_checks(cluster: Cluster, backend: Backend) -> Mapping[str, Check]:
    """Return the readiness checks of a gateway for Kafka's clients."""
    return {BROKERS: partial(_brokers_check, cluster), COORDINATOR: partial(coordinator_check, backend)}


async def _brokers_check(cluster: Cluster) -> str | None:
    try:
        await cluster.refresh()
    except UpstreamLost as error:
        return str(error)
    return None


async def coordinator_check(backend: Backend) -> str | None:
    """Return the reason why the coordinator is not usable, or None."""
    if time.monotonic() - backend.answered_at_s <= AGE_MAX_S:
        return None  # a recent answer shows that it is usable
    header = backend.header(_GROUP_ID, _DESCRIBE_VERSION, _CLIENT_ID, client_host="", principal=ANONYMOUS)
    answer = await backend.ask(DescribeGroup(**header))
    is_coordinators = answer.request != ""  # otherwise the backend itself has built it
    if not is_coordinators and answer.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return "the coordinator does not answer"
    return None


async def _with_timeout(check: Awaitable[str | None]) -> str | None:
    """Return the outcome of a check, or a reason if it takes too long."""
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            return await check
    except TimeoutError:
        return f"no answer within {_CHECK_TIMEOUT_S:.0f} s"


_STOP_TIMEOUT_S = 30.0
_GC_THRESHOLDS = (50_000, 20, 100)  # of `gc.set_threshold`
# The time for which another thread may keep the interpreter from the event loop.
_SWITCH_INTERVAL_S = 0.0005

# The time in which the event loop must respond. Otherwise it is stuck.
LOOP_TIMEOUT_S = 5.0

T = TypeVar("T")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A running gateway. Call its methods from any thread but the gateway's. They raise TimeoutError if the
    event loop does not respond.
    """

    address: Address
    _gateway: GatewayServer
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


async def serve(
    gateway: GatewayServer,
    checks: Mapping[str, Check],
    counts: CommonCounts,
    started: Started,
    background: Iterable[Callable[[], Coroutine[Any, Any, None]]],
) -> None:
    """Serve clients until the gateway is stopped. Run `background` while it serves them."""
    try:
        await gateway.start()
        stop, loop, readiness = asyncio.Event(), asyncio.get_running_loop(), Readiness(gateway, checks)
        started.set_result(RunningGateway(gateway.address, gateway, readiness, loop, stop))
        with watch_loop(counts):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(work()) for work in background]
                await stop.wait()
                for task in tasks:
                    task.cancel()
    finally:
        await gateway.close()


def _run(started: Started, serve: Callable[[Started], Coroutine[None, None, None]]) -> None:
    """Run `serve` on a new event loop. Store an error before the start in `started`."""
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
    # modules. With 500 requests under way on one connection, a request takes 0.74 of the processor time that
    # it takes without `freeze`, and the slowest hundredth takes 0.63 of the time. With 1,000 connections a
    # request takes 0.89 of the processor time.
    gc.collect()
    gc.freeze()
    # With Python's own thresholds, one large request triggers several collections of the objects of all
    # requests, and each collection adds 40 ms to a step. With _GC_THRESHOLDS it triggers a few small ones.
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


# Detection of long steps of the event loop: while one request occupies the loop, no other is served. A step
# is a callback, or a task's run from one `await` to the next. A turn of the loop has several steps.
#
# A thread samples the loop 50 times a second. It measures the processor time of the loop's thread, so that
# a busy machine is not mistaken for a long step. C code that does not release the interpreter is not
# detected, because the thread cannot run.


LONG_STEP_S = 0.02
"""The processor time that one step may take. A longer step is counted, and logged with its function."""

_SAMPLE_INTERVAL_S = 0.02
_LOG_INTERVAL_S = 1.0
_EVENT_LOOP_MODULES = ("asyncio.runners", "asyncio.base_events", "asyncio.events")
_OWN_PACKAGES = ("gateway", "clients", "kafka_why", "records", "state")


@contextmanager
def watch_loop(counts: CommonCounts) -> Iterator[None]:
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

    After a busy sample it schedules a call in the loop. Until that call runs, the loop is in the same turn. A
    step that takes LONG_STEP_S of processor time within the turn is a long one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, counts: CommonCounts) -> None:
        self.ended = threading.Event()
        self._loop = loop
        self._counts = counts
        self._loop_thread = threading.get_ident()
        self._cpu_clock = time.pthread_getcpuclockid(self._loop_thread)
        self._last_cpu_s = 0.0
        """The processor time of the loop's thread at the last sample."""
        self._has_turned = threading.Event()
        """Set by the scheduled call, in the next turn of the loop."""
        self._step: FrameType | None = None
        """The outermost frame of the step that is watched, or None."""
        self._step_start_cpu_s = 0.0
        """The processor time when the watched step was first sampled."""
        self._long_step_s, self._function = 0.0, ""
        """The time of the long step, 0 if there is none, and its function."""
        self._logged_at_s = -_LOG_INTERVAL_S

    def run(self) -> None:
        """Sample the loop until `ended` is set. Runs in a thread of its own."""
        while not self.ended.wait(_SAMPLE_INTERVAL_S):
            cpu_s = time.clock_gettime(self._cpu_clock)
            is_in_same_turn = self._step is not None and not self._has_turned.is_set()
            if is_in_same_turn:
                self._sample_again(cpu_s)
            else:
                self._end_step()
                # A loop that is idle for most of the time has no long step.
                if cpu_s - self._last_cpu_s > LONG_STEP_S / 2:
                    self._watch_step(cpu_s)
            self._last_cpu_s = cpu_s
        self._end_step()

    def _watch_step(self, cpu_s: float) -> None:
        """Watch the step that runs now, if any."""
        stack = self._stack()
        if stack:
            self._has_turned.clear()
            self._step, self._step_start_cpu_s = stack[0], cpu_s
            self._loop.call_soon_threadsafe(self._has_turned.set)

    def _sample_again(self, cpu_s: float) -> None:
        """Measure the watched step while the loop is in the same turn."""
        stack = self._stack()
        if not stack or stack[0] is not self._step:
            # Another step of the turn runs, or none does.
            self._step = stack[0] if stack else self._step
            self._step_start_cpu_s = cpu_s
        elif cpu_s - self._step_start_cpu_s >= LONG_STEP_S:
            self._long_step_s, self._function = cpu_s - self._step_start_cpu_s, _innermost(stack)

    def _end_step(self) -> None:
        """Count and log the long step, if there was one."""
        long_step_s, self._long_step_s, self._step = self._long_step_s, 0.0, None
        if not long_step_s:
            return
        self._counts.long_steps += 1
        self._counts.long_steps_s += long_step_s
        now_s = time.monotonic()
        if now_s - self._logged_at_s >= _LOG_INTERVAL_S:
            self._logged_at_s = now_s
            log.warning("the event loop was held up", held_ms=round(long_step_s * 1e3), place=self._function)

    def _stack(self) -> list[FrameType]:
        """Return the frames of the step that the loop runs now, outermost first, or none between
        two steps.
        """
        frames: list[FrameType] = []
        frame = sys._current_frames().get(self._loop_thread)
        while frame is not None and frame.f_globals.get("__name__") not in _EVENT_LOOP_MODULES:
            frames.append(frame)
            frame = frame.f_back
        return frames[::-1]


def _innermost(stack: list[FrameType]) -> str:
    """Return the module, name and line of the innermost function of ours on the stack."""
    ours = [frame for frame in stack if frame.f_globals.get("__name__", "").split(".")[0] in _OWN_PACKAGES]
    frame = (ours or stack)[-1]
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}:{frame.f_lineno}"
