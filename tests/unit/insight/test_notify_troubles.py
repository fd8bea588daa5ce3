"""What is wrong, as the page finds it: of groups and of the coordinator."""

from insight.lag.definitions import STUCK_MS
from insight.lag.log import LogBounds
from insight.notify.messages import KINDS
from insight.notify.troubles import MAX_READ_AGE_S, Sources
from insight.page.fleet import Fleet
from insight.page.overview import Overview
from insight.page.service_topics import ServiceTopics
from tests.unit.insight.page_facts import LAYOUT, member, take_commit, take_view, view

PARTITION = ("orders", 4)
NOW_MS = 10_000_000


def fleet() -> Fleet:
    """A group that is well, one that is stuck, one that is quarantined."""
    made = Fleet(LAYOUT)
    take_view(made, view("well", members=[member("w")]))
    take_view(made, view("stuck", members=[member("w", PARTITION)]))
    take_view(made, view("broken", quarantined="KeyError in T5"))
    take_commit(made, "stuck", PARTITION, 5)
    for number, at_ms in enumerate(range(NOW_MS - 2 * STUCK_MS, NOW_MS, 5_000)):
        made.add_bounds({PARTITION: LogBounds(0, 9 + number)}, at_ms)
    return made


def sources(
    topics: ServiceTopics | None = None, read_age_s: float = 0.0, made: Fleet | None = None
) -> Sources:
    return Sources(made or fleet(), topics or ServiceTopics(), None, lambda: read_age_s)


def test_the_findings_are_those_of_the_page() -> None:
    made = fleet()
    troubles = list(sources(made=made).troubles(NOW_MS))
    assert {(one.kind, one.group) for one in troubles} == {("stuck", "stuck"), ("quarantined", "broken")}
    lines = Overview(made).lines(NOW_MS)
    assert {one.sentence for one in troubles} == {one.sentence for line in lines for one in line.findings}
    assert all(one.kind in KINDS and one.subject == one.group for one in troubles)


def test_an_alarm_is_what_the_page_of_the_coordinator_finds() -> None:
    topics = ServiceTopics()
    topics.apply_clock(None)
    (alarm,) = [one for one in sources(topics).troubles(NOW_MS) if one.kind == "alarm"]
    assert alarm.group is None
    assert alarm.subject == "No group is coordinated"
    assert alarm.sentence == "No group is coordinated: start the coordinator, or read its log"


def test_what_was_not_read_lately_says_nothing() -> None:
    made = fleet()
    assert not sources(made=made).is_current
    made.complete()
    assert sources(made=made).is_current
    assert not sources(made=made, read_age_s=MAX_READ_AGE_S + 1).is_current
