"""The work of one request does not grow with the members of its group.

The work is counted in instructions of the interpreter, so that the counts do not depend on the machine.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from bench.core import SESSION_TIMEOUT_MS, Formed
from state import timeline as timeline_module
from state.dispatch import due_deadlines
from state.kafka.group import Group
from state.timeline import Row

SMALL, LARGE = 20, 500


def instructions(run: Callable[[], object]) -> int:
    """Return the number of instructions that the interpreter executes in `run`."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def work_of_last(rows: Callable[[Formed], list[Row]], members: int) -> int:
    """Return the work of the last row after the others were applied."""
    group = Formed(members)
    *before, last = rows(group)
    timeline = group.timeline()
    for row in before:
        timeline.apply(row)
    work = instructions(lambda: timeline.apply(last))
    assert not timeline.faults
    return work


@pytest.mark.parametrize("rows", [Formed.heartbeats, Formed.commits, Formed.rejoins, Formed.newcomers])
def test_the_work_of_a_request_is_the_same_in_a_large_group(rows: Callable[[Formed], list[Row]]) -> None:
    assert work_of_last(rows, LARGE) == work_of_last(rows, SMALL)


def test_sessions_that_end_at_once_are_found_by_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0

    def counted(*args: Any) -> Any:
        nonlocal searches
        searches += 1
        return due_deadlines(*args)

    monkeypatch.setattr(timeline_module, "due_deadlines", counted)
    group = Formed(SMALL)
    timeline = group.timeline()
    searches = 0
    timeline.fire_until(group.now_ms + SESSION_TIMEOUT_MS)
    assert isinstance(timeline.group, Group)
    assert timeline.group.members == {}
    assert searches <= 3
