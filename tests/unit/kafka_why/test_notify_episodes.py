"""What is wrong is told once when it begins and once when it ends, also across a restart."""

import pytest
from kafka import TopicPartition
from structlog.testing import capture_logs

from kafka_why.lag.definitions import STUCK_MS, LogBounds
from kafka_why.notify.events import within
from kafka_why.notify.messages import ALARM, KINDS, Filter, Message, Position, Status
from kafka_why.notify.problems import Episodes, Sources, Trouble, alarm_of
from kafka_why.page.fleet import Fleet
from kafka_why.page.overview import Overview
from kafka_why.page.topics_followers import ServiceTopics
from tests.unit.kafka_why.page_facts import fleet_of, member, take_commit, view

STUCK = Trouble("stuck", "orders", "orders", "orders-4 has no commit since 2 min 1 s", 5_000)
OFTEN = Trouble("often", "orders", "orders", "6 rebalances in the last hour")
NOW_MS = 200_000
SETTLED_MS = 500_000


def episodes(*open_before: Message, least_ms: int = 0, again_ms: int | None = None) -> Episodes:
    return Episodes(
        open_before,
        settled_ms=SETTLED_MS,
        is_wanted=Filter(least_ms=least_ms).wants,
        link=lambda group_id: None if group_id is None else f"https://page/{group_id}",
        again_ms=again_ms,
    )


def look(of: Episodes, *found: Trouble, now_ms: int = NOW_MS) -> list[Message]:
    return of.update(found, now_ms)


def told(messages: list[Message]) -> list[tuple[str, Status]]:
    return [(message.kind, message.status) for message in messages]


def test_problem_is_notified_once_when_it_begins_and_once_when_it_ends() -> None:
    known = episodes()
    (began,) = look(known, STUCK)
    assert (began.status, began.group, began.sentence) == (Status.BEGAN, "orders", STUCK.sentence)
    assert (began.began_ms, began.ended_ms, began.page) == (5_000, None, "https://page/orders")
    longer = STUCK._replace(sentence="orders-4 has no commit since 2 min 6 s")
    assert look(known, longer, now_ms=NOW_MS + 5_000) == []
    (ended,) = look(known, now_ms=NOW_MS + 10_000)
    assert (ended.id, ended.status, ended.ended_ms) == (began.id, Status.ENDED, NOW_MS + 10_000)
    assert ended.sentence == longer.sentence
    assert look(known, now_ms=NOW_MS + 15_000) == []


def test_problem_shorter_than_the_minimum_is_not_notified() -> None:
    known = episodes(least_ms=10_000)
    assert look(known, OFTEN) == []
    assert look(known, now_ms=NOW_MS + 5_000) == []
    assert look(known, OFTEN, now_ms=NOW_MS + 10_000) == []
    assert told(look(known, OFTEN, now_ms=NOW_MS + 20_000)) == [("often", Status.BEGAN)]
    assert told(look(known, now_ms=NOW_MS + 30_000)) == [("often", Status.ENDED)]


def test_restart_does_not_repeat_a_notification() -> None:
    (began,) = look(episodes(), STUCK)
    known = episodes(began)
    assert look(known, STUCK) == []
    (ended,) = look(known)
    assert (ended.id, ended.status) == (began.id, Status.ENDED)


def test_restarted_process_ends_no_problem_before_it_has_settled() -> None:
    """A partition is stuck for a new process only when it has seen it stand still for long enough."""
    (began,) = look(episodes(), STUCK)
    known = episodes(began)
    assert look(known, now_ms=SETTLED_MS - 1) == []
    (ended,) = look(known, now_ms=SETTLED_MS)
    assert (ended.id, ended.status) == (began.id, Status.ENDED)


def test_lasting_problem_is_repeated_for_receivers_that_need_it() -> None:
    known = episodes(again_ms=60_000)
    (began,) = look(known, STUCK)
    assert look(known, STUCK, now_ms=NOW_MS + 59_999) == []
    (again,) = look(known, STUCK, now_ms=NOW_MS + 60_000)
    assert again == began


def test_alarm_keeps_its_identity_while_only_its_figures_change() -> None:
    once = "The replica answered 1 time differently from the query; the log has both answers"
    twice = "The replica answered 2 times differently from the query; the log has both answers"
    assert alarm_of(once) == alarm_of(twice) == "The replica answered"
    assert alarm_of("It has an alarm: the disk is full") == "It has an alarm"
    known = episodes()
    (began,) = look(known, Trouble(ALARM, alarm_of(once), None, once))
    assert (began.group, began.page) == (None, None)
    assert look(known, Trouble(ALARM, alarm_of(twice), None, twice)) == []


PARTITION = ("orders", 4)
LATER_MS = 10_000_000


def fleet() -> Fleet:
    """Return a fleet of three groups: one is well, one is stuck, one is quarantined."""
    made = fleet_of(
        view("well", members=[member("w")]),
        view("stuck", members=[member("w", PARTITION)]),
        view("broken", quarantined="KeyError in T5"),
    )
    take_commit(made, "stuck", PARTITION, 5)
    for number, at_ms in enumerate(range(LATER_MS - 2 * STUCK_MS, LATER_MS, 5_000)):
        made.add_bounds({PARTITION: LogBounds(0, 9 + number)}, at_ms)
    return made


def sources(
    topics: ServiceTopics | None = None, read_age_s: float = 0.0, made: Fleet | None = None
) -> Sources:
    return Sources(made or fleet(), topics or ServiceTopics(), None, lambda: read_age_s)


def test_notified_problems_are_the_findings_of_the_page() -> None:
    made = fleet()
    troubles = list(sources(made=made).troubles(LATER_MS))
    assert {(one.kind, one.group) for one in troubles} == {("stuck", "stuck"), ("quarantined", "broken")}
    lines = Overview(made).lines(LATER_MS)
    assert {one.sentence for one in troubles} == {one.sentence for line in lines for one in line.findings}
    assert all(one.kind in KINDS and one.subject == one.group for one in troubles)


def test_alarms_are_the_findings_of_the_coordinator_page() -> None:
    topics = ServiceTopics()
    topics.apply_clock(None)
    (alarm,) = [one for one in sources(topics).troubles(LATER_MS) if one.kind == "alarm"]
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
