"""What is wrong with a group: each threshold from both sides, and each sentence."""

import dataclasses
from typing import Any

from msgspec.structs import replace

from insight.lag.definitions import BEHIND_MS, STUCK_MS, PartitionLag
from insight.page.findings import LONG_MS, OFTEN, Finding, Kind, awaited_members, findings
from insight.page.fleet import GroupFacts
from insight.why.model import Cause, CauseKind, Rebalance
from insight.why.rebalances import rebalances
from insight.why.report import Report
from state.kafka.history import HistoryEntry
from state.kafka.snapshot import ConsumerGroupSnapshot, ConsumerMemberSnapshot
from tests.unit.insight.page_facts import facts, lag, member, of_hour, played, view

P, Q = ("orders", 4), ("orders", 5)
NOW_MS = 10_000_000
MINUTE_MS = 60_000
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
    """A report with rebalances of these causes by these clients."""
    one = of_hour(played(*SETTLED), MINUTE_MS)
    return replace(one, rebalances=[replace(one.rebalances[0], cause=_cause(*cause)) for cause in causes])


def _cause(kind: CauseKind, client: str | None) -> Cause:
    return Cause(kind=kind, reason="r", client_id=client, member_ids=[f"{client}-id"] if client else [])


def often(*causes: tuple[CauseKind, str | None]) -> str:
    (finding,) = found(facts(view()), repeated(*causes))
    assert (finding.kind, finding.since_ms) == (Kind.OFTEN, None)
    return finding.sentence


def test_a_group_that_is_well_or_has_ended_has_no_finding() -> None:
    assert found(facts(view())) == []
    assert found(facts(None, {P: lag(5, 0, grew_ms=0)})) == []


def test_a_quarantined_group_says_why() -> None:
    assert found(facts(view(quarantined="KeyError in T5"))) == [
        Finding(Kind.QUARANTINED, "It is quarantined, its deadlines do not fire: KeyError in T5")
    ]


def waiting(entries: list[HistoryEntry], state: str, now_ms: int) -> list[Finding]:
    return found(facts(view(state=state, state_timestamp_ms=0), {}), of_hour(entries, now_ms), now_ms)


def test_a_rebalance_is_long_after_its_threshold_and_names_who_is_awaited() -> None:
    entries = played(*TWO)
    assert waiting(entries, "PreparingRebalance", LONG_MS - 1) == []
    assert waiting(entries, "PreparingRebalance", LONG_MS) == [
        Finding(Kind.REBALANCING, "It has been rebalancing for 30.0 s and waits for a", 0)
    ]


def test_a_rebalance_whose_entries_are_not_known_is_long_by_the_view() -> None:
    given = facts(view(state="Reconciling", state_timestamp_ms=NOW_MS - LONG_MS))
    assert found(given) == [Finding(Kind.REBALANCING, "It has been rebalancing for 30.0 s", NOW_MS - LONG_MS)]
    assert found(given, now_ms=NOW_MS - 1) == []


def test_a_streams_group_that_is_not_ready_lacks_topics() -> None:
    given = facts(view(state="NotReady", state_timestamp_ms=NOW_MS - LONG_MS))
    sentence = "Topics of its topology are missing or have wrong numbers of partitions, for 30.0 s"
    assert found(given) == [Finding(Kind.REBALANCING, sentence, NOW_MS - LONG_MS)]


def last_of(*commands: str) -> Rebalance:
    return rebalances(played(*commands))[-1]


def test_awaited_are_the_members_that_did_not_join_then_the_leader() -> None:
    ids = {r.cause.client_id: r.cause.member_ids[0] for r in rebalances(played(*SETTLED))}
    assert awaited_members(last_of(*TWO)) == [ids["a"]]
    assert awaited_members(last_of(*TWO, "join a id=@a")) == [ids["a"]]
    leader = last_of(*TWO, "join a id=@a").leader_id
    assert leader == ids["a"]


def test_in_a_group_of_the_consumer_protocol_those_are_awaited_who_have_not_their_target() -> None:
    commands = (
        "config group.consumer.assignment.interval.ms=1000",
        "topics orders=6 prices=2",
        "at 0s",
        "A e0",
        "at 4s",
        "B e0",
    )
    before = rebalances(played(*commands, "at 5s", "A e2"))[-1]
    assert set(awaited_members(before)) == {way.member_id for way in before.progress} != set()
    after = rebalances(
        played(*commands, "at 5s", "A e2", "at 6500ms", "A e2 owned[orders 0-3]", "at 8s", "B e3")
    )[-1]
    assert len(awaited_members(after)) < len(awaited_members(before))


OWNED = view(members=[member("m", P, Q)], subscribed_topics=["orders"])
OLD_MS = NOW_MS - STUCK_MS - 1


def test_a_partition_that_is_stuck_names_its_owner_and_how_long_its_offset_stands() -> None:
    stuck = lag(48_210, NOW_MS, 725_000, stands_since_ms=NOW_MS - 180_000, grew_ms=OLD_MS)
    assert found(facts(OWNED, {P: stuck})) == [
        Finding(
            Kind.STUCK,
            "orders-4 has stood at the same committed offset for 3 min 0 s while records come, "
            "48\N{NARROW NO-BREAK SPACE}210 records (12 min 5 s) behind; its owner m keeps its session",
            NOW_MS - 180_000,
        )
    ]
    assert found(facts(OWNED, {P: replace_lag(stuck, grew_ms=OLD_MS + 1)})) == []


def test_of_an_observed_classic_group_it_is_not_claimed_that_nothing_rebalances() -> None:
    """Its log has a rebalance when it is over. Of the consumer protocol the log has each epoch."""
    stuck = lag(7, NOW_MS, stands_since_ms=NOW_MS - 180_000, grew_ms=OLD_MS)
    classic = replace(OWNED, observed=True)
    (finding,) = found(facts(classic, {P: stuck}))
    assert finding.sentence == (
        "orders-4 has stood at the same committed offset for 3 min 0 s while records come, 7 records behind; "
        "its owner m has not left, unless a rebalance is under way, which the log does not show"
    )
    epochs = ConsumerGroupSnapshot(1, "uniform", {"orders": None}, {}, [], [])
    held = ConsumerMemberSnapshot(1, 1, "stable", None, ["orders"], "", None, {"orders": [4]}, {}, {})
    members = [replace(OWNED.members[0], consumer=held)]
    of_epochs = replace(classic, members=members, consumer=epochs)
    (finding,) = found(facts(of_epochs, {P: stuck}))
    assert finding.sentence.endswith("its owner m keeps its session")


def replace_lag(one: PartitionLag, **fields: Any) -> PartitionLag:
    return dataclasses.replace(one, **fields)


def test_of_several_partitions_that_are_stuck_the_worst_is_named() -> None:
    lags = {P: lag(7, 0, grew_ms=0), Q: lag(9, 0, grew_ms=0), ("orders", 6): lag(99, NOW_MS)}
    (finding,) = found(facts(OWNED, lags))
    assert finding.sentence == (
        "orders-5 has stood at the same committed offset for 2 h 46 min while records come, "
        "9 records behind; its owner m keeps its session, and 1 partition more"
    )


def test_a_group_without_members_has_records_waiting_after_the_threshold() -> None:
    given = view(state="Empty", state_timestamp_ms=OLD_MS)
    lags = {P: lag(1_000, OLD_MS, 5_000), Q: lag(234, 0, 4_000)}
    assert found(facts(given, lags)) == [
        Finding(
            Kind.NO_OWNER,
            "It has no members, and 1\N{NARROW NO-BREAK SPACE}234 records wait for it",
            OLD_MS,
        )
    ]
    assert found(facts(given, lags), now_ms=NOW_MS - 1) == []
    assert found(facts(given, {P: lag(0, 0)})) == []


def test_a_partition_that_no_member_holds_is_named() -> None:
    lags = {("orders", 6): lag(3, 0), P: lag(9, NOW_MS)}
    assert found(facts(OWNED, lags)) == [
        Finding(Kind.NO_OWNER, "No member holds orders-6, 3 records behind", 0)
    ]


def test_a_group_that_falls_behind_says_by_how_much() -> None:
    lags = {P: lag(900, NOW_MS, BEHIND_MS + 1_000, rises=True)}
    assert found(facts(OWNED, lags)) == [
        Finding(
            Kind.FALLING_BEHIND,
            "orders-4 has fallen behind within 10 min 0 s although the group commits, "
            "900 records (61.0 s) behind",
        )
    ]


def test_rebalances_are_often_from_their_threshold_on() -> None:
    cause = (CauseKind.SESSION_TIMEOUT, "w3")
    assert found(facts(view()), repeated(*[cause] * (OFTEN - 1))) == []
    assert often(*[cause] * OFTEN) == "5 rebalances in the last hour: before each the session of w3 timed out"


def test_one_client_and_one_kind_are_the_main_cause_if_they_are_half() -> None:
    main, others = (CauseKind.MEMBER_LEFT, "w1"), [(CauseKind.MEMBER_JOINED, f"x{n}") for n in range(4)]
    assert often(*[main] * 4, *others) == "8 rebalances in the last hour: before 4 of them w1 left"


def test_one_client_is_the_main_cause_if_its_kinds_differ() -> None:
    told = [(CauseKind.MEMBER_LEFT, "w1")] * 2 + [(CauseKind.MEMBER_JOINED, "w1")]
    others = [(CauseKind.MEMBER_JOINED, f"x{n}") for n in range(3)]
    assert often(*told, *others) == (
        "6 rebalances in the last hour: w1 caused 3 of them (member left 2, member joined 1)"
    )


def test_one_kind_is_the_main_cause_if_no_client_is_half() -> None:
    told = [(CauseKind.SESSION_TIMEOUT, f"w{n}") for n in range(4)] + [(CauseKind.MEMBER_LEFT, "w9")]
    assert often(*told) == (
        "5 rebalances in the last hour: before 4 of them the session of a member timed out"
    )


def test_each_kind_of_cause_has_a_sentence_and_names_with_braces_are_only_names() -> None:
    for kind in CauseKind:
        sentence = often(*[(kind, "{0}{x}")] * OFTEN)
        assert sentence.startswith("5 rebalances in the last hour: before each ")


def test_the_gravest_finding_is_first() -> None:
    given = facts(replace(OWNED, quarantined="q"), {P: lag(5, 0, grew_ms=0)})
    report = repeated(*[(CauseKind.MEMBER_LEFT, "w")] * OFTEN)
    assert [one.kind for one in found(given, report)] == [Kind.QUARANTINED, Kind.STUCK, Kind.OFTEN]
