"""The copy to which a group is undone, when a step raises. Properties have the undo itself."""

import pytest

from kafka_why.contract.kafka.requests import DescribeGroup
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup
from state.timeline import Row, Timeline
from tests.harness import batches


def test_restore_that_returns_the_changed_group_is_refused() -> None:
    group, fails = ClassicGroup("g", "requests-0-0"), batches.failing_step(lambda _: True)
    timeline = Timeline("g", group, CoordinatorConfig(), restore=lambda: group, step=fails)
    request = DescribeGroup(group_id="g", correlation_id="c", reply_partition=0, api_version=5)
    with pytest.raises(AssertionError, match="restore must return a new copy"):
        timeline.apply(Row(2, "requests-0-1", request))
