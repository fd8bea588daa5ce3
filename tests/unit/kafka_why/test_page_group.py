"""The page of a group and of one of its rebalances."""

from msgspec.structs import replace

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.page.findings import FindingKind
from kafka_why.page.fleet import WINDOW_MS
from kafka_why.page.group import GroupPage, RebalancePage, group_page, rebalance_page
from kafka_why.why.report import analyze
from tests.harness.histories import Recorder
from tests.unit.kafka_why.page_facts import facts, lag, member, played, view
from tests.unit.kafka_why.why_story import BEGIN_MS, END_MS, STORY

LIMITS_MS = (BEGIN_MS - 1, END_MS)


def page(
    entries: list[HistoryEntry], limits_ms: tuple[int, int] = LIMITS_MS, now_ms: int = END_MS
) -> GroupPage:
    return group_page(facts(view()), analyze(entries), limits_ms, now_ms)


def rebalance(entries: list[HistoryEntry], number: int, now_ms: int = END_MS) -> RebalancePage:
    begun = page(entries, (0, now_ms), now_ms).rebalances[-number]
    found = rebalance_page("g", analyze(entries), begun.at_ms, now_ms)
    assert found is not None
    return found


def test_group_page_lists_rebalances_newest_first() -> None:
    found = page(played(*STORY))
    assert [(r.number, r.sentence, r.waited) for r in found.rebalances] == [
        (4, "member left: worker-4", ""),
        (3, "member joined: worker-4", "6.0 s of it waiting for worker-1"),
        (2, "session timeout: worker-3", "6.5 s of it waiting for worker-2"),
        (1, "member joined: worker-1", ""),
    ]
    assert found.summary == (
        "It rebalanced 4 times in this time: 2 x member joined (worker-1, worker-4); "
        "1 x session timeout (worker-3); 1 x member left (worker-4)."
    )
    assert found.awaited == "worker-2"


def test_group_page_lists_rebalances_within_the_time_range() -> None:
    second = page(played(*STORY)).rebalances[2]
    assert second.took_ms is not None
    end_ms = second.at_ms + second.took_ms
    found = page(played(*STORY), (end_ms, second.at_ms + 30_000))
    assert [r.sentence for r in found.rebalances] == ["member joined: worker-4", "session timeout: worker-3"]
    found = page(played(*STORY), (end_ms + 1, second.at_ms + 10_000))
    assert found.rebalances == []
    assert found.summary == "It did not rebalance in this time."


def test_frequent_rebalances_are_judged_by_the_last_hour_in_any_time_range() -> None:
    recorder = Recorder()
    recorder.play("config group.initial.rebalance.delay.ms=0", "at 0s")
    for number in range(5):
        recorder.play(f"at {number}m", f"join m{number} api=3 session=60s", f"leave m{number}")
    entries, minute_ms = recorder.history, 60_000
    shown = page(entries, (4 * minute_ms - 1, 5 * minute_ms), 5 * minute_ms)
    assert [one.kind for one in shown.findings] == [FindingKind.OFTEN]
    assert len(shown.rebalances) < 5 <= int(shown.findings[0].sentence.split()[0])
    later_ms = WINDOW_MS + 10 * minute_ms
    assert page(entries, (0, later_ms), later_ms).findings == []


def test_state_comes_from_the_view_or_for_ended_groups_from_history() -> None:
    entries = played(*STORY)
    now = group_page(
        facts(view(state="Stable", state_timestamp_ms=7, generation=9)), analyze(entries), LIMITS_MS, END_MS
    )
    assert (now.state, now.since_ms, now.generation, now.assignor) == ("Stable", 7, 9, "range")
    ended = group_page(facts(None), analyze(entries), LIMITS_MS, END_MS)
    last = entries[-1]
    assert (ended.state, ended.generation, ended.members) == (last.to_state, last.generation, [])


def test_page_of_another_time_range_omits_what_does_not_depend_on_it() -> None:
    analysis, has = analyze(played(*STORY)), facts(view(members=[member("a")]), {("t", 0): lag(5, 1, 2)})
    whole, part = (
        group_page(has, analysis, LIMITS_MS, END_MS, only_time=only_time) for only_time in (False, True)
    )
    assert (len(whole.members), len(whole.partitions), whole.member_count) == (1, 1, 1)
    assert part == replace(whole, members=[], partitions=[])


def test_rebalance_page_shows_phases_moves_and_the_lines_of_why() -> None:
    it = rebalance(played(*STORY), 3)
    told = [(phase.name, phase.kind, phase.x, phase.took) for phase in it.phases]
    assert told[:2] == [("members join", "waits", 0, "6.0 s"), ("worker-1", "member", 0, "6.0 s")]
    assert [name for name, *_ in told[2:]] == ["worker-2", "worker-4"]
    assert it.phases[0].width == 100
    assert all(p.x >= 0 and p.width > 0 and p.x + p.width <= 100.001 for p in it.phases)
    assert [(m.name, m.before, m.after, m.gained, m.lost) for m in it.moves] == [
        ("worker-1", 3, 2, "jobs 2-3", "jobs 0-1 4"),
        ("worker-2", 3, 2, "jobs 0-1", "jobs 2-3 5"),
        ("worker-4", 0, 2, "jobs 4-5", ""),
    ]
    assert (it.line.moved, it.line.needless) == (6, 4)
    assert {"trigger", "member", "moved"} <= {label for label, _ in it.lines}
    assert not any(text.startswith("worker-4  ") for _, text in it.lines), "the moves are a table"


def test_rebalance_page_links_its_neighbours() -> None:
    entries = played(*STORY)
    pages = [rebalance(entries, number) for number in (1, 2, 3, 4)]
    times = [it.line.at_ms for it in pages]
    assert [it.earlier_ms for it in pages] == [None, *times[:3]]
    assert [it.later_ms for it in pages] == [*times[1:], None]
