"""A step that raises is undone: the group is as it was before, however the timeline received the group."""

from collections.abc import Callable
from copy import deepcopy

import pytest

from kafka_why.contract.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit
from state.config import CoordinatorConfig
from state.dispatch import AnyEvent, AnyGroup
from state.inputs import Received
from state.kafka.classic_group import ClassicGroup
from state.timeline import Row, Timeline
from tests.harness import batches

CONFIG = CoordinatorConfig()


def commit(offset: int) -> OffsetCommit:
    return OffsetCommit(
        group_id="g",
        correlation_id="c",
        reply_partition=0,
        api_version=9,
        topics=[CommittedTopic("t", [CommittedPartition(0, offset)])],
    )


def committed(timeline: Timeline) -> int:
    assert isinstance(timeline.group, ClassicGroup)
    return timeline.group.offsets["t"][0].offset


def fails(event: AnyEvent) -> bool:
    return isinstance(event, Received) and event.request_id == "fails"


@pytest.fixture
def group() -> AnyGroup:
    """Return a group with the committed offset 5."""
    timeline = Timeline("g", None, CONFIG)
    timeline.apply(Row(0, "requests-0-0", commit(5)))
    assert timeline.group is not None
    return timeline.group


@pytest.mark.parametrize("earlier", [[], [6]], ids=["first step", "second step"])
@pytest.mark.parametrize("restored", [False, True], ids=["without restore", "with restore"])
def test_failed_step_leaves_the_group_unchanged(group: AnyGroup, earlier: list[int], restored: bool) -> None:
    stored = deepcopy(group)
    restore: Callable[[], AnyGroup] | None = (lambda: deepcopy(stored)) if restored else None
    timeline = Timeline("g", group, CONFIG, restore=restore, step=batches.failing_step(fails))
    for offset in earlier:
        timeline.apply(Row(1, f"requests-0-{offset}", commit(offset)))
    timeline.apply(Row(2, "fails", commit(99)))
    assert len(timeline.faults) == 1
    assert committed(timeline) == [5, *earlier][-1]


def test_restore_that_returns_the_changed_group_is_refused(group: AnyGroup) -> None:
    timeline = Timeline("g", group, CONFIG, restore=lambda: group, step=batches.failing_step(fails))
    with pytest.raises(AssertionError, match="restore must return a new copy"):
        timeline.apply(Row(2, "fails", commit(99)))
