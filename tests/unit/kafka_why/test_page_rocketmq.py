"""The page of a group of RocketMQ's: lanes of clients, when they were notified, who went, and why."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.rocketmq.history import HistoryEntry
from kafka_why.page.rocketmq import MAX_CHANGES, MAX_NOTIFICATIONS, RocketMqPage, rocketmq_page
from kafka_why.page.rocketmq_cluster import PolledPage
from kafka_why.page.timeline import GIVES, HOLDS, MAX_LANES, LaneRow
from kafka_why.why.history import History
from kafka_why.why.rocketmq.polled.symptoms import poll_report
from tests.harness.examples import examples
from tests.unit.kafka_why.test_page_access import answer, serving
from tests.unit.kafka_why.test_why_rocketmq import Clocked, played
from tests.unit.kafka_why.test_why_rocketmq_polled import WELL
from tests.unit.state.rocketmq_story import BEGIN_MS, END_MS, night


@pytest.fixture(scope="module")
def story() -> list[HistoryEntry]:
    return night()


def page(
    entries: list[HistoryEntry],
    limits_ms: tuple[int, int] = (BEGIN_MS - 1, END_MS),
    now_ms: int = END_MS,
) -> RocketMqPage:
    return rocketmq_page("g", entries, limits_ms, now_ms)


def lane(it: RocketMqPage, name: str) -> LaneRow:
    (found,) = [row for row in it.picture.lanes if row.name == name]
    return found


def at_ms(it: RocketMqPage, x: float) -> float:
    return it.picture.from_ms + (it.picture.to_ms - it.picture.from_ms) * x / 100


def test_rocketmq_client_has_a_timeline_lane_from_join_to_leave(story: list[HistoryEntry]) -> None:
    it = page(story)
    assert [row.name for row in it.picture.lanes] == ["worker-1", "worker-2", "worker-3"]
    (second,) = lane(it, "worker-2").marks
    assert second.kind == HOLDS
    assert "worker-2 connected, holds queues by its own view" in second.text
    ((x, text),) = lane(it, "worker-2").gone
    assert x == pytest.approx(second.x + second.width, abs=0.1)
    assert text.startswith("worker-2 left: ")
    (third,) = lane(it, "worker-3").marks
    assert third.x + third.width == pytest.approx(100)
    assert at_ms(it, third.x) == pytest.approx(BEGIN_MS + 20_000, abs=1_000)


def test_rocketmq_page_is_encoded_as_json(story: list[HistoryEntry]) -> None:
    """msgspec encodes no subclass of str, such as the text that `why` prints."""
    encoded = msgspec.json.encode(page(story))
    assert b"DUPLICATE CLIENT ID" in encoded
    shown = json.loads(encoded)
    assert all("told" in one for one in [*shown["changes"], *shown["picture"]["lanes"]])


@pytest.mark.parametrize(
    ("polled", "shown"),
    [
        (
            PolledPage(group_id="g", now_ms=0, report=poll_report(WELL, None), text="A  T 0-3"),
            b"A  T 0-3</pre>",
        ),
        ("g is still being polled", b"Not known: g is still being polled.</p>"),
    ],
)
def test_rocketmq_page_shows_the_poll_or_why_it_failed(
    story: list[HistoryEntry], polled: PolledPage | str, shown: bytes
) -> None:
    history = History([*story], frozenset(), from_start=True, records_read=len(story))
    known: dict[str, Any] = {"read": lambda *_: history, "now_ms": lambda: END_MS}
    with serving(**known) as listening, serving(**known, polled_with_history=lambda _: polled) as beside:
        bodies = [answer(it, "/group?id=g")[2] for it in (listening, beside)]
        assert [b"The cluster now" in body for body in bodies] == [False, True]
        assert shown in bodies[1]
        assert json.loads(answer(listening, "/api/group?id=g")[2])["polled"] is None
        found = json.loads(answer(beside, "/api/group?id=g")[2])["polled"]
        assert found == json.loads(msgspec.json.encode(polled))


def test_client_id_on_two_connections_is_marked_and_listed_first(story: list[HistoryEntry]) -> None:
    it = page(story)
    marks = lane(it, "worker-1").marks
    assert [mark.kind for mark in marks] == [HOLDS, GIVES, HOLDS, GIVES]
    assert "worker-1 is on 2 connections at once" in marks[-1].text
    assert marks[-1].label == "x 2"
    duplicate, expired = it.findings
    assert duplicate.startswith("The client id worker-1 is on c1, c5, so queues may have no consumer")
    assert expired.startswith("1 connection of worker-2 (c2) fell silent and expired")


def test_notified_rocketmq_clients_have_a_mark_at_the_change(story: list[HistoryEntry]) -> None:
    """Those that were there when the coordinator notified all connections."""
    it = page(story)
    notified = [change for change in it.changes if change.notified]
    assert len(lane(it, "worker-1").notified) == len(notified) > 0
    assert len(lane(it, "worker-3").notified) < len(notified)  # it came later
    expired = next(change for change in it.changes if change.sentence == "client expired: worker-2")
    assert expired.notified == ""
    assert not any(abs(at_ms(it, x) - expired.at_ms) < 100 for x, _ in lane(it, "worker-1").notified)


def test_rocketmq_summary_counts_the_changes_in_the_time_range(story: list[HistoryEntry]) -> None:
    assert page(story).sentence == (
        "It has 2 clients. It changed 7 times in this time: 3 x client connected, 2 x duplicate client id, "
        "1 x client expired, 1 x client left; all connections were notified 6 times."
    )
    assert page(story, (END_MS - 1, END_MS)).sentence == "It has 2 clients. Nothing changed in this time."


def test_lanes_beyond_forty_are_folded_and_open_on_demand() -> None:
    broker = Clocked()
    for number in range(MAX_LANES + 7):
        broker.join(f"c{number}", f"ch{number}", "t")
    broker.leave(f"c{MAX_LANES + 5}", f"ch{MAX_LANES + 5}")
    limits_ms = (0, 100_000)
    folded = rocketmq_page("g", broker.history, limits_ms, 100_000)
    assert (len(folded.picture.lanes), folded.picture.folded) == (MAX_LANES, 7)
    assert f"c{MAX_LANES + 5}" in [row.name for row in folded.picture.lanes]  # it changed twice
    opened = rocketmq_page("g", broker.history, limits_ms, 100_000, unfolded=True)
    assert (len(opened.picture.lanes), opened.picture.folded) == (MAX_LANES + 7, 0)


def test_lists_and_marks_of_a_rocketmq_page_are_bounded() -> None:
    broker = Clocked()
    broker.join("stays", "s", "t")
    for number in range(MAX_NOTIFICATIONS):
        broker.join("c", f"ch{number}", "t")
        broker.leave("c", f"ch{number}")
    it = page(broker.history, (0, 10**7), 10**7)
    assert len(it.changes) == MAX_CHANGES < it.changes_number
    assert 0 < len(lane(it, "stays").notified) <= MAX_NOTIFICATIONS


@examples(60)
@given(st.integers(0, 2**32 - 1), st.integers(20, 150), st.integers(0, 100), st.integers(1, 100))
def test_rocketmq_picture_has_all_marks_inside_and_none_overlap(
    seed: int, length: int, from_part: int, width_part: int
) -> None:
    for group_id, entries, _, _ in played(seed, length):
        begin_ms, now_ms = entries[0].at_ms, entries[-1].at_ms + 1_000
        from_ms = begin_ms + (now_ms - begin_ms) * from_part // 101
        limits_ms = from_ms, from_ms + (now_ms - from_ms) * width_part // 100 + 1
        it = rocketmq_page(group_id, entries, limits_ms, now_ms).picture
        for shown in it.lanes:
            for mark in shown.marks:
                assert 0 <= mark.x < 100 and 0 < mark.width <= 100.001 - mark.x
            assert all(a.x + a.width <= b.x + 0.001 for a, b in pairwise(shown.marks))
            assert all(0 <= x <= 100 for x, _ in [*shown.gone, *shown.notified])
        assert all(0 <= band.x <= 100 - band.width for band in it.bands)
