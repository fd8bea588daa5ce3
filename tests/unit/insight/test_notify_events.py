"""Where the events topic is read on: at the position that was kept, unless the topic no longer has it."""

import pytest
from kafka import TopicPartition
from structlog.testing import capture_logs

from insight.notify.events import within
from insight.notify.outbox import Position

PARTITION = TopicPartition("events", 0)


@pytest.mark.parametrize(
    ("kept", "found", "warning"),
    [
        (5, 5, None),
        (7, 7, None),
        (9, 9, None),
        (10, 5, "the events topic was made anew: it is read from its beginning"),
        (
            3,
            5,
            "entries of the events topic were deleted before they were read: rebalances in them are not told",
        ),
    ],
)
def test_a_position_is_kept_or_replaced_with_a_warning(kept: int, found: int, warning: str | None) -> None:
    with capture_logs() as logs:
        assert within(PARTITION, Position(kept, 1_000), begin=5, end=9) == Position(found, 1_000)
    assert [line["event"] for line in logs] == ([] if warning is None else [warning])
    assert [line.get("entries") for line in logs if kept < 5] == ([2] if kept < 5 else [])
