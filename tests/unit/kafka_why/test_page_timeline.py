"""The timeline: lanes, marks, bands and ticks in per cent, for stories and for random logs."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.page.timeline import (
    HOLDS,
    MAX_LANES,
    MAX_MARKS,
    MAX_TICKS,
    PIXEL_PERCENT,
    SILENT,
    LaneRow,
    TimelinePicture,
    timeline,
)
from kafka_why.why.report import analyze, report
from kafka_why.why.state_timelines import MemberState, Span, StateTimeline
from kafka_why.wording import Names
from state.config import CoordinatorConfig
from tests.harness.examples import examples
from tests.harness.histories import of_random_log
from tests.unit.kafka_why.page_facts import played
from tests.unit.kafka_why.why_story import BEGIN_MS, END_MS, STORY

logs = st.tuples(st.integers(0, 2**32 - 1), st.integers(20, 200), st.sampled_from((0, 3_000)))
UUIDS = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(100)]


def drawn(
    entries: list[HistoryEntry], limits_ms: tuple[int, int], now_ms: int, *, unfolded: bool = False
) -> TimelinePicture:
    analysis = analyze(entries)
    found, removals = analysis.rebalances, analysis.removals
    return timeline(
        analysis.lanes,
        found,
        removals,
        analysis.names,
        analysis.clients,
        limits_ms,
        now_ms,
        unfolded=unfolded,
    )


def of_lanes(*lanes: StateTimeline, to_ms: int = 1_000) -> TimelinePicture:
    names = Names([lane.member_id for lane in lanes])
    return timeline(lanes, [], [], names, {}, (0, to_ms), to_ms)


def lane(member_id: str, from_ms: int, to_ms: int | None) -> StateTimeline:
    return StateTimeline(member_id, [Span(MemberState.HOLDS, from_ms, to_ms, 1)])


@examples(50)
@given(logs, st.integers(0, 100), st.integers(1, 100))
def test_timeline_has_all_marks_inside_and_no_lanes_overlap(
    log: tuple[int, int, int], from_part: int, width_part: int
) -> None:
    config = CoordinatorConfig(group_initial_rebalance_delay_ms=log[2])
    for entries in of_random_log(*log[:2], config).values():
        if not entries:
            continue
        begin_ms, now_ms = entries[0].at_ms, entries[-1].at_ms + 1_000
        from_ms = begin_ms + (now_ms - begin_ms) * from_part // 101
        it = drawn(entries, (from_ms, from_ms + (now_ms - from_ms) * width_part // 100 + 1), now_ms)
        for row in it.lanes:
            assert all(
                mark.x >= 0 and mark.width > 0 and mark.x + mark.width <= 100.001 for mark in row.marks
            )
            assert all(a.x + a.width <= b.x + 0.0011 for a, b in pairwise(row.marks))
            assert all(0 <= x <= 100 for x, _ in row.gone)
        assert all(band.x >= 0 and band.width > 0 and band.x + band.width <= 100.001 for band in it.bands)
        assert all(0 <= tick.x <= 100 for tick in it.ticks)
        assert [row.y for row in it.lanes] == sorted({row.y for row in it.lanes})
        assert all(row.y < it.height for row in it.lanes)


def row_of(it: TimelinePicture, name: str) -> LaneRow:
    (found,) = [row for row in it.lanes if row.name == name]
    return found


def test_timeline_has_a_lane_per_member_and_a_band_per_rebalance() -> None:
    it = drawn(played(*STORY), (BEGIN_MS, END_MS), END_MS)
    assert [row.name for row in it.lanes] == ["worker-1", "worker-2", "worker-3", "worker-4"]
    assert [band.number for band in it.bands] == [1, 2, 3, 4]
    assert it.bands[1].text.startswith("#2 session timeout: worker-3, ")
    assert it.folded == 0


def test_removed_member_is_drawn_silent_for_its_session_timeout() -> None:
    entries = played(*STORY)
    removal = next(e for e in entries if "session timeout" in e.reason and e.member_id)
    it = drawn(entries, (BEGIN_MS, END_MS), END_MS)
    row = row_of(it, "worker-3")
    last = row.marks[-1]
    assert last.kind == SILENT
    assert last.text == "worker-3 sent no heartbeat, 10.0 s"
    per_ms = 100 / (END_MS - BEGIN_MS)
    assert abs(last.width - 10_000 * per_ms) < 0.002
    assert abs(last.x + last.width - (removal.at_ms - BEGIN_MS) * per_ms) < 0.002
    assert row.gone[0][1] == "worker-3 was removed: no heartbeat within its session timeout of 10000 ms"


def test_awaited_member_is_drawn_silent_before_its_session_timeout() -> None:
    entries = played(
        "config group.initial.rebalance.delay.ms=0",
        "at 0s",
        "join a api=3 session=10s",
        "sync a assign=@a:t-0",
        "at 6s",
        "join b api=3 session=30s",
        "at 12s",
    )
    it = drawn(entries, (0, 20_000), 20_000)
    marks = row_of(it, "a").marks
    assert [(mark.kind, mark.x, mark.width) for mark in marks] == [(SILENT, 0, 50)]


def test_restarted_client_has_one_lane_named_without_its_uuid() -> None:
    members = [f"worker-{uuid}" for uuid in UUIDS[:2]]
    it = of_lanes(lane(members[0], 0, 400), lane(members[1], 400, None))
    (row,) = it.lanes
    assert (row.name, row.member_ids) == ("worker", members)
    assert [(mark.x, mark.width) for mark in row.marks] == [(0, 40), (40, 60)]


def test_concurrent_members_of_one_name_have_separate_lanes() -> None:
    members = [f"worker-{uuid}" for uuid in UUIDS[:3]]
    it = of_lanes(lane(members[0], 0, 400), lane(members[1], 399, None), lane(members[2], 400, None))
    assert [row.member_ids for row in it.lanes] == [[members[0], members[2]], [members[1]]]


def test_folding_keeps_the_members_that_caused_or_delayed_a_rebalance() -> None:
    lanes = [lane(f"m{number:02}", 0, None) for number in range(MAX_LANES + 20)]
    one = report("g", played(*STORY), END_MS).rebalances[1]
    one = replace(one, cause=replace(one.cause, member_ids=["m58"]), last="m51")
    names = Names([found.member_id for found in lanes])
    it = timeline(lanes, [one], [], names, {}, (0, 1_000), 1_000)
    shown = [row.name for row in it.lanes]
    assert shown == [*(f"m{number:02}" for number in range(MAX_LANES - 2)), "m51", "m58"]
    assert it.folded == 20
    unfolded = timeline(lanes, [one], [], names, {}, (0, 1_000), 1_000, unfolded=True)
    assert (len(unfolded.lanes), unfolded.folded) == (MAX_LANES + 20, 0)


@examples(100)
@given(st.integers(0, 2_000_000_000_000), st.integers(1, 2_000_000_000_000))
def test_timeline_ticks_are_few_and_at_round_times(from_ms: int, width_ms: int) -> None:
    it = timeline([], [], [], Names([]), {}, (from_ms, from_ms + width_ms), from_ms)
    assert len(it.ticks) <= MAX_TICKS + 1
    assert all(tick.iso.endswith(".000Z") for tick in it.ticks)
    if width_ms >= 2_000:
        assert it.ticks
    steps = [round(b.x - a.x, 2) for a, b in pairwise(it.ticks)]
    assert not steps or max(steps) - min(steps) <= 0.011


def busy(changes: int, step_ms: int) -> StateTimeline:
    """Return a lane that waits for a fifth of each step, and then holds a partition."""
    found = StateTimeline("a")
    for at_ms in range(0, changes * step_ms, step_ms):
        found.become(MemberState.AWAITED, at_ms)
        found.become(MemberState.HOLDS, at_ms + step_ms // 5, 1)
    found.become(None, changes * step_ms)
    return found


def test_marks_narrower_than_a_pixel_are_merged_with_a_combined_text() -> None:
    it = of_lanes(busy(2_000, 10), to_ms=20_000)
    (row,) = it.lanes
    assert len(row.marks) <= 100 / PIXEL_PERCENT
    assert row.marks[0].text == "a holds 1 partition, 16 ms, has to join again, 4 ms"
    assert {mark.kind for mark in row.marks} == {HOLDS}
    assert (row.marks[0].x, row.marks[-1].x + row.marks[-1].width) == (0, 100)


def test_number_of_marks_of_a_picture_is_bounded() -> None:
    lanes = [busy(500, 40) for _ in range(MAX_LANES)]
    for number, one in enumerate(lanes):
        one.member_id = f"m{number}"
    it = of_lanes(*lanes, to_ms=20_000)
    assert len(it.lanes) == MAX_LANES
    assert sum(len(row.marks) for row in it.lanes) <= MAX_MARKS + MAX_LANES
