"""What is wrong with a group: each threshold from both sides, and each sentence."""

import pytest
from msgspec.structs import replace

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.snapshot import ConsumerGroupSnapshot, ConsumerMemberSnapshot
from kafka_why.lag.definitions import BEHIND_MS, STUCK_MS
from kafka_why.page.findings import LONG_MS, OFTEN, Finding, FindingKind, findings
from kafka_why.page.fleet import GroupFacts
from kafka_why.why.model import Cause, CauseKind
from kafka_why.why.report import Report
from tests.unit.kafka_why.page_facts import facts, lag, member, of_hour, played, view

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
