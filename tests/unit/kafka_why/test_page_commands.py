"""The commands that the page shows about a rebalance."""

import json
import shlex

from kafka_why.page.commands import commands_about
from kafka_why.why.history import History
from kafka_why.why.rebalances import rebalances
from tests.unit.kafka_why.page_facts import facts_of, fleet_of, played, take_entries, view
from tests.unit.kafka_why.test_page_access import answer, serving
from tests.unit.kafka_why.why_story import END_MS, STORY

A_DIES = (
    "config group.initial.rebalance.delay.ms=0",
    "at 0s",
    "join a api=3 topics=orders session=10s",
    "sync a assign=@a:orders-0",
    "at 11s",
)


def test_commands_try_what_would_have_helped_and_show_the_moment() -> None:
    (*_, gone) = rebalances(played(*A_DIES))
    assert commands_about("orders", gone) == [
        "group-coordinator whatif --try=session.timeout.ms=20000 --try=group.instance.id=client.id "
        "--try=partition.assignment.strategy=cooperative-sticky -- orders",
        "group-coordinator replay --from-topic --group=orders --at=1970-01-01T00:00:10.000Z",
    ]


def test_group_names_cannot_become_options_of_the_commands() -> None:
    (*_, gone) = rebalances(played(*A_DIES))
    for name in ("--help", "-c", "--from=/etc/passwd", "a b; c"):
        whatif, replay = map(shlex.split, commands_about(name, gone))
        assert whatif[-2:] == ["--", name]
        assert f"--group={name}" in replay and name not in replay


def test_commands_are_shown_on_the_page_of_a_rebalance() -> None:
    fleet = fleet_of(view("g"))
    take_entries(fleet, played(*STORY), END_MS, "g")
    history = History(list(facts_of(fleet, "g").entries), frozenset(), from_start=True, records_read=0)
    with serving(fleet=fleet, read=lambda *_: history, now_ms=lambda: END_MS) as listening:
        at_ms = json.loads(answer(listening, "/api/group?id=g")[2])["rebalances"][0]["at_ms"]
        status, _, body = answer(listening, f"/rebalance?group=g&at={at_ms}")
        assert (status, b"group-coordinator replay --from-topic --group=g" in body) == (200, True)
