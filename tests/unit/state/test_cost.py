"""The work of one request does not grow with the members of its group.

The work is counted in instructions of the interpreter, so that the counts do not depend on the machine.
"""

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any
from uuid import UUID

import pytest

from assignors.kafka.sticky_tasks import StickyTaskAssignor, SubtopologyTasks, TaskMember
from bench.consumer_groups import FormedConsumers
from bench.core import CONFIG, GROUP_ID, SESSION_TIMEOUT_MS, FormedGroup, decode
from kafka_why.contract.kafka.history import ConsumerGroupState
from kafka_why.contract.kafka.requests import LeaveGroup, LeavingMember
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat
from state.config import CoordinatorConfig, ModernGroupConfig
from state.dispatch import AnyDeadline
from state.kafka.classic.protocol import CLASSIC
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.streams_group import StreamsGroup
from state.timeline import Row, Timeline
from tests.harness.streams_requests import topology_of

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
    gc.disable()  # a collection would run finalizers of other tests' objects
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def work_of_last(rows: Callable[[FormedGroup], list[Row]], members: int) -> int:
    """Return the work of the last row after the others were applied."""
    group = FormedGroup(members)
    *before, last = rows(group)
    timeline = group.timeline()
    for row in before:
        timeline.apply(row)
    work = instructions(lambda: timeline.apply(last))
    assert not timeline.faults
    return work


@pytest.mark.parametrize(
    "rows", [FormedGroup.heartbeats, FormedGroup.commits, FormedGroup.rejoins, FormedGroup.newcomers]
)
def test_work_of_a_request_does_not_grow_with_the_group(rows: Callable[[FormedGroup], list[Row]]) -> None:
    assert work_of_last(rows, LARGE) == work_of_last(rows, SMALL)


def work_of_heartbeat(members: int, *, moves: bool) -> int:
    """Return the work of a heartbeat of a consumer group: of one that keeps a session alive, or of one that
    moves to the target assignment that the join of one more member led to.
    """
    group = FormedConsumers(members)
    group.join() if moves else group.keep_alives()
    first, second = group.clients[:2]
    group.time_heartbeat(first)
    row = group.next_heartbeat(second)
    work = instructions(lambda: group.timeline.apply(row))
    assert not group.timeline.faults
    return work


def test_work_of_a_heartbeat_does_not_grow_with_a_consumer_group() -> None:
    assert work_of_heartbeat(LARGE, moves=False) == work_of_heartbeat(SMALL, moves=False)


def test_reconciling_heartbeat_does_not_visit_all_members() -> None:
    assert work_of_heartbeat(LARGE, moves=True) == work_of_heartbeat(SMALL, moves=True)


def work_of_keep_alive_of_streams(members: int) -> int:
    """Return the work of a heartbeat that keeps the session of a streams group's member alive. The group has
    reached its target: one member has the task.
    """
    config = CoordinatorConfig(
        group_streams_initial_rebalance_delay_ms=0, group_streams=ModernGroupConfig(assignment_interval_ms=0)
    )
    timeline = Timeline(GROUP_ID, None, config)
    tasks: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    images = {"foo": TopicImage(UUID(int=1), 1)}
    joined = {"rebalance_timeout_ms": 1, "topology": topology_of("0: foo"), "topics": images, **tasks}

    def beat(number: int, epoch: int, sent: Mapping[str, Any]) -> Row:
        request = StreamsGroupHeartbeat(
            group_id=GROUP_ID,
            correlation_id="c",
            reply_partition=0,
            api_version=1,
            client_id="c",
            member_id=f"thread-{number:03}",
            member_epoch=epoch,
            endpoint_information_epoch=0,
            **sent,
        )
        return Row(1, f"requests-0-{number}", request)

    for number in range(members):
        timeline.apply(beat(number, 0, joined))
    for number in range(members):
        timeline.apply(beat(number, number + 2, {}))
    group = timeline.group
    assert isinstance(group, StreamsGroup)
    assert group.state is ConsumerGroupState.STABLE
    row = beat(members - 1, members + 1, {})
    work = instructions(lambda: timeline.apply(row))
    assert not timeline.faults
    return work


def test_work_of_a_heartbeat_does_not_grow_with_a_streams_group() -> None:
    assert work_of_keep_alive_of_streams(200) == work_of_keep_alive_of_streams(SMALL)


def work_of_assigning(members: int) -> int:
    """Return the work of a target of 200 stateful tasks for the members of two processes."""
    given = {f"{n:04}": TaskMember(f"p{n % 2}") for n in range(members)}
    tasks = {"0": SubtopologyTasks(200, True)}
    return instructions(lambda: StickyTaskAssignor().assign(given, tasks, 1))


def test_reconciling_a_streams_task_does_not_visit_all_members() -> None:
    more = work_of_assigning(400) - work_of_assigning(200)
    assert more < 200 * 500  # for each of the members more, not for each task and member


def work_of_each_leave(members: int) -> float:
    """Return the work of a LeaveGroup of all members of a Stable consumer group, by member."""
    group = FormedConsumers(members)
    leaving = [LeavingMember(client.member_id, None, None) for client in group.clients]
    request = LeaveGroup(
        group_id=GROUP_ID, correlation_id="c", reply_partition=0, api_version=5, members=leaving
    )
    row = Row(group.now_ms, "requests-0-1000000", request)
    work = instructions(lambda: group.timeline.apply(row))
    assert isinstance(group.timeline.group, ConsumerGroup)
    assert group.timeline.group.members == {}
    return work / members


def test_work_of_a_leave_group_is_linear_in_its_named_members() -> None:
    assert work_of_each_leave(LARGE) <= work_of_each_leave(SMALL)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of the times until which due deadlines were searched."""
    searched: list[int] = []

    kind, search = type(CLASSIC), CLASSIC.due_deadlines

    def noted(
        _: object, group: ClassicGroup, until_ms: int, config: CoordinatorConfig
    ) -> Sequence[AnyDeadline]:
        searched.append(until_ms)
        return search(group, until_ms, config)

    monkeypatch.setattr(kind, "due_deadlines", noted)
    return searched


def test_sessions_expiring_together_are_found_by_one_search(searches: list[int]) -> None:
    group = FormedGroup(SMALL)
    timeline = group.timeline()
    searches.clear()
    timeline.fire_until(group.now_ms + SESSION_TIMEOUT_MS)
    assert isinstance(timeline.group, ClassicGroup)
    assert timeline.group.members == {}
    assert len(searches) == 1


def test_timeline_searches_deadlines_only_when_the_next_is_reached(searches: list[int]) -> None:
    group = FormedGroup(1)
    due_ms = group.timeline().next_deadline_ms()
    searches.clear()
    assert due_ms is not None
    timeline = Timeline(GROUP_ID, decode(group.state), CONFIG, restore=group.restore, due_ms=due_ms)
    timeline.fire_until(due_ms - 1)
    assert searches == []
    timeline.fire_until(due_ms)
    assert isinstance(timeline.group, ClassicGroup)
    assert timeline.group.members == {}
