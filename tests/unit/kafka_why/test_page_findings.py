"""Findings about a group, with each threshold from both sides; the pages of a group and of a rebalance."""

import pytest
from msgspec.structs import replace

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.snapshot import ConsumerGroupSnapshot, ConsumerMemberSnapshot, GroupSnapshot
from kafka_why.lag.definitions import BEHIND_MS, STUCK_MS, UNKNOWN, Ownership, ownership
from kafka_why.page.findings import LONG_MS, OFTEN, Finding, FindingKind, findings
from kafka_why.page.fleet import WINDOW_MS, GroupFacts
from kafka_why.page.group import GroupPage, RebalancePage, group_page, rebalance_page
from kafka_why.why.model import Cause, CauseKind
from kafka_why.why.report import Report, analyze
from tests.harness.histories import Recorder
from tests.unit.kafka_why.page_facts import facts, lag, member, of_hour, played, view
from tests.unit.kafka_why.why_story import BEGIN_MS, END_MS, MINUTE_MS, STORY

P, Q = ("orders", 4), ("orders", 5)
NOW_MS = 10_000_000
TWO = (
    "config group.initial.rebalance.delay.ms=0",
    "at 0s",
    "join a api=3 session=60s",
    "sync a assign=@a:t-0",
    "join b api=3 session=60s",
)
SETTLED = (*TWO, "join a id=@a", "sync a assign=@a:t-0,@b:t-1", "sync b")


def found(given: GroupFacts, report: Report | None = None, now_ms: int = NOW_MS) -> list[Finding]:
    return findings(given, report, now_ms)


def repeated(*causes: tuple[CauseKind, str | None]) -> Report:
    """Return a report with rebalances of these causes by these clients."""
    one = of_hour(played(*SETTLED), MINUTE_MS)
    said = [
        Cause(kind=kind, reason="r", client_id=client, member_ids=[f"{client}-id"] if client else [])
        for kind, client in causes
    ]
    return replace(one, rebalances=[replace(one.rebalances[0], cause=cause) for cause in said])


def often(*causes: tuple[CauseKind, str | None]) -> str:
    (finding,) = found(facts(view()), repeated(*causes))
    assert (finding.kind, finding.since_ms) == (FindingKind.OFTEN, None)
    return finding.sentence


OWNED = view(members=[member("m", P, Q)], subscribed_topics=["orders"])
OBSERVED = replace(OWNED, observed=True)
HELD = ConsumerMemberSnapshot(1, 1, "stable", None, ["orders"], "", None, {"orders": [4]}, {}, {})
OBSERVED_EPOCHS = replace(
    OBSERVED,
    members=[replace(OWNED.members[0], consumer=HELD)],
    consumer=ConsumerGroupSnapshot(1, "uniform", {"orders": None}, {}, [], []),
)
LONG_AGO_MS, OLD_MS = NOW_MS - LONG_MS, NOW_MS - STUCK_MS - 1
STANDS_MS = NOW_MS - 180_000
STUCK = lag(48_210, NOW_MS, 725_000, stands_since_ms=STANDS_MS, grew_ms=OLD_MS)
SEVEN = lag(7, NOW_MS, stands_since_ms=STANDS_MS, grew_ms=OLD_MS)
EMPTY = view(state="Empty", state_timestamp_ms=OLD_MS)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(facts(view()), None, id="well"),
        pytest.param(facts(None, {P: lag(5, 0, grew_ms=0)}), None, id="ended"),
        pytest.param(
            facts(view(quarantined="KeyError in T5")),
            Finding(
                FindingKind.QUARANTINED, "It is quarantined, so its deadlines do not fire: KeyError in T5"
            ),
            id="quarantined",
        ),
        pytest.param(
            facts(view(state="Reconciling", state_timestamp_ms=LONG_AGO_MS)),
            Finding(FindingKind.REBALANCING, "It has been rebalancing for 30.0 s", LONG_AGO_MS),
            id="rebalancing, by the view alone",
        ),
        pytest.param(
            facts(view(state="Reconciling", state_timestamp_ms=LONG_AGO_MS + 1)), None, id="not yet for long"
        ),
        pytest.param(
            facts(view(state="NotReady", state_timestamp_ms=LONG_AGO_MS)),
            Finding(
                FindingKind.REBALANCING,
                "For 30.0 s, topics of its topology have been missing or had wrong numbers of partitions",
                LONG_AGO_MS,
            ),
            id="streams group that is not ready",
        ),
        pytest.param(
            facts(OWNED, {P: STUCK}),
            Finding(
                FindingKind.STUCK,
                "orders-4 has had the same committed offset for 3 min 0 s while records arrive, "
                "48\N{NARROW NO-BREAK SPACE}210 records (12 min 5 s) behind; its owner m keeps its session",
                STANDS_MS,
            ),
            id="stuck",
        ),
        pytest.param(
            # Its log has a rebalance when it is over, so it is not claimed that nothing rebalances.
            facts(OBSERVED, {P: SEVEN}),
            Finding(
                FindingKind.STUCK,
                "orders-4 has had the same committed offset for 3 min 0 s while records arrive, "
                "7 records behind; its owner m has not left, unless a rebalance is under way, "
                "which the log does not show",
                STANDS_MS,
            ),
            id="stuck, in an observed classic group",
        ),
        pytest.param(
            # Of the consumer protocol the log has each epoch.
            facts(OBSERVED_EPOCHS, {P: SEVEN}),
            Finding(
                FindingKind.STUCK,
                "orders-4 has had the same committed offset for 3 min 0 s while records arrive, "
                "7 records behind; its owner m keeps its session",
                STANDS_MS,
            ),
            id="stuck, in an observed group of the consumer protocol",
        ),
        pytest.param(
            facts(OWNED, {P: lag(7, 0, grew_ms=0), Q: lag(9, 0, grew_ms=0), ("orders", 6): lag(99, NOW_MS)}),
            Finding(
                FindingKind.STUCK,
                "orders-5 has had the same committed offset for 2 h 46 min while records arrive, "
                "9 records behind; its owner m keeps its session, and 1 partition more",
                0,
            ),
            id="the worst of several that are stuck",
        ),
        pytest.param(
            facts(EMPTY, {P: lag(1_000, OLD_MS, 5_000), Q: lag(234, 0, 4_000)}),
            Finding(
                FindingKind.NO_OWNER,
                "It has no members, and 1\N{NARROW NO-BREAK SPACE}234 records wait for it",
                OLD_MS,
            ),
            id="no members",
        ),
        pytest.param(
            facts(OWNED, {("orders", 6): lag(3, 0), P: lag(9, NOW_MS)}),
            Finding(FindingKind.NO_OWNER, "No member holds orders-6, 3 records behind", 0),
            id="a partition without an owner",
        ),
        pytest.param(
            facts(OWNED, {P: lag(900, NOW_MS, BEHIND_MS + 1_000, rises=True)}),
            Finding(
                FindingKind.FALLING_BEHIND,
                "orders-4 has fallen behind within 10 min 0 s although the group commits, "
                "900 records (61.0 s) behind",
            ),
            id="falls behind",
        ),
    ],
)
def test_finding_describes_the_problem_of_the_group(given: GroupFacts, expected: Finding | None) -> None:
    assert found(given) == ([] if expected is None else [expected])


def waiting(entries: list[HistoryEntry], state: str, now_ms: int) -> list[Finding]:
    return found(facts(view(state=state, state_timestamp_ms=0), {}), of_hour(entries, now_ms), now_ms)


def test_long_rebalance_is_a_finding_that_names_awaited_members() -> None:
    assert waiting(played(*TWO), "PreparingRebalance", LONG_MS - 1) == []
    expected = [Finding(FindingKind.REBALANCING, "It has been rebalancing for 30.0 s and waits for a", 0)]
    assert waiting(played(*TWO), "PreparingRebalance", LONG_MS) == expected
    assert waiting(played(*TWO, "join a id=@a"), "CompletingRebalance", LONG_MS) == expected, "the leader"


def causes(number: int, kind: CauseKind, client: str = "x{}") -> list[tuple[CauseKind, str]]:
    return [(kind, client.format(n)) for n in range(number)]


LEFT, JOINED, EXPIRED = CauseKind.MEMBER_LEFT, CauseKind.MEMBER_JOINED, CauseKind.SESSION_TIMEOUT


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        pytest.param(
            causes(OFTEN, EXPIRED, "w3"),
            "5 rebalances in the last hour: before each the session of w3 timed out",
            id="one client and one kind",
        ),
        pytest.param(
            causes(4, LEFT, "w1") + causes(4, JOINED),
            "8 rebalances in the last hour: before 4 of them w1 left",
            id="half of them",
        ),
        pytest.param(
            causes(2, LEFT, "w1") + causes(1, JOINED, "w1") + causes(3, JOINED),
            "6 rebalances in the last hour: w1 caused 3 of them (member left 2, member joined 1)",
            id="one client and several kinds",
        ),
        pytest.param(
            causes(4, EXPIRED) + causes(1, LEFT, "w9"),
            "5 rebalances in the last hour: before 4 of them the session of a member timed out",
            id="several clients and one kind",
        ),
    ],
)
def test_finding_of_frequent_rebalances_names_their_main_cause(
    told: list[tuple[CauseKind, str | None]], sentence: str
) -> None:
    assert often(*told) == sentence
    assert found(facts(view()), repeated(*told[: OFTEN - 1])) == []


def test_every_cause_has_a_sentence_and_braces_in_names_are_literal() -> None:
    for kind in CauseKind:
        sentence = often(*[(kind, "{0}{x}")] * OFTEN)
        assert sentence.startswith("5 rebalances in the last hour: before each ")


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


def test_state_of_an_ended_group_comes_from_its_history() -> None:
    entries = played(*STORY)
    now = group_page(
        facts(view(state="Stable", state_timestamp_ms=7, generation=9)), analyze(entries), LIMITS_MS, END_MS
    )
    assert (now.state, now.since_ms, now.generation, now.assignor) == ("Stable", 7, 9, "range")
    ended = group_page(facts(None), analyze(entries), LIMITS_MS, END_MS)
    last = entries[-1]
    assert (ended.state, ended.generation, ended.members) == (last.to_state, last.generation, [])


def test_page_update_for_another_time_range_omits_members_and_partitions() -> None:
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


ORDERS_4, PAYMENTS_0 = ("orders", 4), ("payments", 0)
GROUP = view(
    members=[member("m", ORDERS_4), member("n", PAYMENTS_0)],
    subscribed_topics=["orders"],
    state_timestamp_ms=7,
)


VIEW_HELD = {ORDERS_4: "m", PAYMENTS_0: "n"}


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        pytest.param(GROUP, Ownership(7, VIEW_HELD, frozenset({"orders"})), id="what the leader assigned"),
        pytest.param(view(state="Empty", state_timestamp_ms=7), Ownership(7, {}, None), id="no members"),
        pytest.param(
            replace(GROUP, subscribed_topics=None),
            Ownership(7, VIEW_HELD, frozenset()),
            id="subscriptions unknown",
        ),
        pytest.param(replace(GROUP, state="PreparingRebalance"), UNKNOWN, id="members join"),
        pytest.param(replace(GROUP, state="CompletingRebalance"), UNKNOWN, id="the leader assigns"),
        pytest.param(replace(GROUP, state="Assigning"), UNKNOWN, id="the coordinator assigns"),
        pytest.param(replace(GROUP, state="Reconciling"), UNKNOWN, id="members reconcile"),
        pytest.param(view(truncated=True), UNKNOWN, id="members left out"),
        pytest.param(
            replace(GROUP, members=[replace(member("m", ORDERS_4), assignment=b"\x00")]),
            UNKNOWN,
            id="unreadable",
        ),
        pytest.param(
            replace(GROUP, protocol_type="connect"),
            Ownership(7, {}, frozenset({"orders"})),
            id="no consumers",
        ),
    ],
)
def test_classic_group_owners_are_known_only_from_a_settled_complete_view(
    group: GroupSnapshot, expected: Ownership
) -> None:
    assert ownership(group) == expected


def test_consumer_group_members_own_the_partitions_they_may_use() -> None:
    recorder = Recorder()
    recorder.play("topics orders=4 prices=1", "at 4s", "A e0", "A e1 owned[orders 0-3]", "at 8s", "A e1")
    shown = recorder.view()
    found = ownership(shown)
    (one,) = shown.members
    assert found.settled_ms == shown.state_timestamp_ms
    orders = [("orders", number) for number in range(4)]
    assert found.holders == dict.fromkeys([*orders, ("prices", 0)], one.member_id)
    assert found.topics is not None and {"orders", "prices"} <= found.topics
