"""Detection of long steps of the event loop: while one request occupies the loop, no other is served.

A thread samples the loop 50 times a second. It measures the processor time of the loop's thread, so that a
busy machine is not mistaken for a long step. C code that does not release the interpreter is not detected,
because the thread cannot run.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

import structlog

HELD_MAX_S = 0.02
"""The processor time that one step may take. A longer step is counted, and logged with its function."""

_SAMPLE_S = 0.02
_LOG_S = 1.0
_MACHINERY = ("asyncio.runners", "asyncio.base_events", "asyncio.events")
_OURS = ("gateway", "clients", "kafka_why", "records", "state")

log = structlog.get_logger()


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
    """A watch of one loop. After a busy sample it schedules a call in the loop. Until that call runs, the
    loop is in the same turn, so a step that is still running then is a long one.
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
        """Sample the loop until the end."""
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
        """Sample again while the loop is in the same turn."""
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
        """Return the frames of the step that the loop runs now, outermost first, or none between two
        steps.
        """
        frames: list[FrameType] = []
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame.f_globals.get("__name__") not in _MACHINERY:
            frames.append(frame)
            frame = frame.f_back
        return frames[::-1]


def _innermost(stack: list[FrameType]) -> str:
    """Return the innermost function of ours on the stack, as text."""
    ours = [frame for frame in stack if frame.f_globals.get("__name__", "").split(".")[0] in _OURS]
    frame = (ours or stack)[-1]
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}:{frame.f_lineno}"
