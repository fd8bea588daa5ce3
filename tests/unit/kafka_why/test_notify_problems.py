"""What is wrong, as the page finds it, and where the events topic is read on after a restart."""

import pytest
from kafka import TopicPartition
from structlog.testing import capture_logs

from kafka_why.lag.definitions import STUCK_MS, LogBounds
from kafka_why.notify.events import within
from kafka_why.notify.messages import KINDS, Position
from kafka_why.notify.problems import Sources
from kafka_why.page.fleet import Fleet
from kafka_why.page.overview import Overview
from kafka_why.page.topics_followers import ServiceTopics
from tests.unit.kafka_why.page_facts import fleet_of, member, take_commit, view

PARTITION = ("orders", 4)
NOW_MS = 10_000_000


def fleet() -> Fleet:
    """Return a fleet of three groups: one is well, one is stuck, one is quarantined."""
    made = fleet_of(
        view("well", members=[member("w")]),
        view("stuck", members=[member("w", PARTITION)]),
        view("broken", quarantined="KeyError in T5"),
    )
    take_commit(made, "stuck", PARTITION, 5)
    for number, at_ms in enumerate(range(NOW_MS - 2 * STUCK_MS, NOW_MS, 5_000)):
        made.add_bounds({PARTITION: LogBounds(0, 9 + number)}, at_ms)
    return made


def sources(
    topics: ServiceTopics | None = None, read_age_s: float = 0.0, made: Fleet | None = None
) -> Sources:
    return Sources(made or fleet(), topics or ServiceTopics(), None, lambda: read_age_s)


def test_notified_problems_are_the_findings_of_the_page() -> None:
    made = fleet()
    troubles = list(sources(made=made).troubles(NOW_MS))
    assert {(one.kind, one.group) for one in troubles} == {("stuck", "stuck"), ("quarantined", "broken")}
    lines = Overview(made).lines(NOW_MS)
    assert {one.sentence for one in troubles} == {one.sentence for line in lines for one in line.findings}
    assert all(one.kind in KINDS and one.subject == one.group for one in troubles)


def test_alarms_are_the_findings_of_the_coordinator_page() -> None:
    topics = ServiceTopics()
    topics.apply_clock(None)
    (alarm,) = [one for one in sources(topics).troubles(NOW_MS) if one.kind == "alarm"]
    assert (alarm.group, alarm.subject) == (None, "No group is coordinated")
    assert alarm.sentence == "No group is coordinated: start the coordinator, or read its log"


TOPIC_PARTITION = TopicPartition("events", 0)


@pytest.mark.parametrize(
    ("kept", "found", "warning"),
    [
        (5, 5, None),
        (7, 7, None),
        (9, 9, None),
        (10, 5, "the events topic was recreated: it is read from its beginning"),
        (
            3,
            5,
            "entries of the events topic were deleted before they were read: rebalances in them are not sent",
        ),
    ],
)
def test_position_outside_the_topic_is_replaced(kept: int, found: int, warning: str | None) -> None:
    with capture_logs() as logs:
        assert within(TOPIC_PARTITION, Position(kept, 1_000), begin=5, end=9) == Position(found, 1_000)
    assert [line["event"] for line in logs] == ([] if warning is None else [warning])
    assert [line.get("entries") for line in logs if kept < 5] == ([2] if kept < 5 else [])
