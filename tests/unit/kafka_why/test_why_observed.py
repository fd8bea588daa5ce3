"""Reports of `why` on a group of the cluster's own coordinator, which say only what its log shows."""

import pytest
from msgspec.structs import replace

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.observed.records import ClassicGeneration, ClassicMember
from kafka_why.page.group import rebalance_line
from kafka_why.why.model import CauseKind, Rebalance, RebalanceOutcome
from kafka_why.why.report import OBSERVED, Report, report
from kafka_why.why.text import names_of, report_text
from kafka_why.wording import Clock
from tests.harness.observed_epochs import Said
from tests.harness.observed_log import (
    REAL,
    REAL_OF_OTHERS,
    Watched,
    classic_member,
    created,
    generation,
    real_records,
    seen,
)

G = "g"
NOW_MS = 100_000


def report_on(*changes: ClassicGeneration, begins: bool = True) -> Report:
    """Return the report on a classic group, a generation each 10 s."""
    said = [Said(10_000 * (n + 1), G, change) for n, change in enumerate(changes)]
    watched = Watched().take([*([created(G, 1_000)] if begins else []), *said])
    return report(G, watched.of(G), NOW_MS)


def last(of: Report) -> Rebalance:
    return of.rebalances[-1]


def text_of(of: Report) -> str:
    return report_text(of, Clock())


BOTH = generation(1, classic_member("a", 0), classic_member("b", 1), since_ms=9_900)
ONE = generation(1, classic_member("a", 0, 1))


@pytest.mark.parametrize(
    ("changes", "kind", "members", "said"),
    [
        (
            [BOTH, generation(2, classic_member("a", 0, 1), since_ms=19_900)],
            CauseKind.MEMBER_GONE,
            {"b-1"},
            ["member left or expired: b"],
        ),
        # The log has when a generation was formed and when it was assigned, and not when the rebalance began.
        (
            [BOTH],
            CauseKind.MEMBER_JOINED,
            {"a-1", "b-1"},
            [
                "took     100 ms for the assignment; its beginning was not seen",
                "Not Stable  at least 100 ms in total",
                OBSERVED,
            ],
        ),
        # Records before Kafka 2.1 do not say when the generation was formed.
        ([ONE], CauseKind.MEMBER_JOINED, {"a-1"}, ["took     unknown: its beginning was not seen"]),
        (
            [ONE, generation(2, classic_member("b", 0))],
            CauseKind.MEMBERS_CHANGED,
            {"a-1", "b-1"},
            ["the log does not say in which order"],
        ),
        ([ONE, generation(2, classic_member("a", 0, 1))], CauseKind.JOINED_AGAIN, set(), []),
    ],
)
def test_cause_states_only_what_the_log_shows(
    changes: list[ClassicGeneration], kind: CauseKind, members: set[str], said: list[str]
) -> None:
    found = report_on(*changes)
    assert (last(found).cause.kind, {*last(found).cause.member_ids}) == (kind, members)
    shown = text_of(found)
    assert [text for text in said if text not in shown] == []
    assert "session timeout" not in shown


A = classic_member("a", 0)


@pytest.mark.parametrize(
    ("changes", "remark", "is_there"),
    [
        ([(A,), (A, classic_member("b", 0, topic="bills"))], "others: a-1 to orders; b-1 to bills", True),
        ([(A,), (A, classic_member("b", 1))], "share no topic", False),
        ([(A,), (classic_member("a", 0, 1),)], "so members rejoined: orders 1", True),
        ([(A,), (A,)], "gained partitions", False),
    ],
)
def test_remark_is_shown_only_if_the_records_support_it(
    changes: list[tuple[ClassicMember, ...]], remark: str, is_there: bool
) -> None:
    found = report_on(*(generation(number, *members) for number, members in enumerate(changes, 1)))
    assert (remark in text_of(found)) is is_there


def test_replaced_static_member_is_noted() -> None:
    first = classic_member("a", 0, instance="one")
    found = report_on(generation(1, first), generation(1, replace(first, member_id="a-2")))
    when = "1970-01-01 00:00:20.000 UTC"
    assert f"static members were replaced by another instance: one 1 time, last at {when}." in text_of(found)


def test_polled_rebalance_reports_its_beginning_and_precision() -> None:
    both = generation(1, classic_member("a", 0), classic_member("b", 1), since_ms=1_900)
    looks = [
        seen(20_000, "a", "b", "c", within_ms=1_010),
        seen(21_000, "a", "b", "c", first_ms=20_000, read_ms=20_100),
    ]
    said = [created(G, 1_000), Said(2_000, G, both), *looks]
    under_way = report(G, Watched().take(said).of(G), 25_000)
    assert last(under_way).outcome is RebalanceOutcome.UNDER_WAY
    assert "took     5.0 s so far, waiting for members to join; it began up to 1.0 s before" in text_of(
        under_way
    )
    after = generation(2, classic_member("a", 0), classic_member("c", 1), since_ms=29_900)
    at_last = seen(29_500, "a", "b", "c", first_ms=20_000)
    found = report(G, Watched().take([*said, at_last, Said(30_000, G, after)]).of(G), NOW_MS)
    rebalance = last(found)
    assert (rebalance.duration_ms, rebalance.preparing_ms, rebalance.began_within_ms) == (
        10_000,
        9_900,
        1_010,
    )
    assert (rebalance.cause.kind, rebalance.cause.client_id) == (CauseKind.MEMBER_JOINED, "c")
    assert (rebalance.waited_for, rebalance.last) == (["b-1"], "b-1")
    shown = text_of(found)
    assert (
        "9.9 s for members to join, 100 ms for the assignment; it began up to 1.0 s before it was seen"
        in shown
    )
    assert "awaited  b-1 (inferred)" in shown
    assert "it was a member 0.4 s before the generation was formed" in shown
    line = rebalance_line(rebalance, names_of(found))
    assert (line.took_ms, line.within_ms) == (10_000, 1_010)
    assert line.waited == "9.9 s of it waiting for b-1 (inferred)"


CONSUMERS, OTHERS = (Watched().take(real_records(path)) for path in (REAL, REAL_OF_OTHERS))
JOINED, GONE = CauseKind.MEMBER_JOINED, CauseKind.MEMBER_GONE


@pytest.mark.parametrize(
    ("history", "causes", "moved", "said"),
    [
        *(
            (
                CONSUMERS.of(group_id),
                [(JOINED, f"{name}1"), (JOINED, f"{name}2"), (GONE, f"{name}2"), (GONE, f"{name}1")],
                [0, 2, 2, 0],
                [],
            )
            for group_id, name in (("classic", "c"), ("consumer", "k"))
        ),
        (
            OTHERS.of("queue"),
            [
                (JOINED, "s1"),
                (CauseKind.PARTITIONS_INITIALIZED, None),
                (JOINED, "s2"),
                (GONE, "s1"),
                (GONE, "s2"),
            ],
            [0, 0, 2, 2, 0],
            ["share partitions were initialized", "target   computed 517 ms later, new for 2 members"],
        ),
        (
            OTHERS.of("counts"),
            [
                (JOINED, "t1-StreamThread-1-consumer"),
                (JOINED, "t2-StreamThread-1-consumer"),
                (GONE, "t1-StreamThread-1-consumer"),
                (GONE, "t2-StreamThread-1-consumer"),
            ],
            [0, 2, 2, 0],
            [
                "topics changed (all topics of topology epoch 0 exist and are valid)",
                "gave up active 0 2-3 in 190 ms",
                "waited 601 ms for active 0 2-3 of t1-StreamThread-1-consumer",
                "moved     2 of 4 tasks\n",
                "state     no copy there of 0_2, 0_3, which restore it if they have any",
                "standbys  4 tasks, 2 in a process that did not have the task",
                "state    already in the new owner's process for 0_0, 0_1",
                "idle      2 tasks, for up to 510 ms",
            ],
        ),
    ],
    ids=["classic", "consumer", "share", "streams"],
)
def test_report_on_a_real_brokers_group_has_its_causes_moves_and_end(
    history: list[HistoryEntry], causes: list[tuple[CauseKind, str | None]], moved: list[int], said: list[str]
) -> None:
    of = report(history[0].group_id, history, NOW_MS)
    assert [(r.cause.kind, r.cause.client_id) for r in of.rebalances] == causes
    assert [r.moves.moved for r in of.rebalances if r.moves is not None] == moved
    shown = text_of(of)
    assert [words for words in said if words not in shown] == []
    if of.group_type == "streams":
        assert "partition" not in shown.replace("none of its partitions had a commit", ""), "it has tasks"
    else:
        outcomes = [RebalanceOutcome.STABLE] * (len(causes) - 1)
        assert [r.outcome for r in of.rebalances] == [*outcomes, RebalanceOutcome.EMPTY]


def test_no_member_is_reported_as_awaited_while_all_are_present() -> None:
    one = generation(1, classic_member("a", 0), since_ms=1_900)
    two = generation(2, classic_member("a", 0), classic_member("b", 1), since_ms=29_900)
    said = [created(G, 1_000), Said(2_000, G, one), seen(29_000, "a", "b"), Said(30_000, G, two)]
    found = report(G, Watched().take(said).of(G), NOW_MS)
    assert last(found).waited_for == []
    assert "awaited" not in text_of(found)
    assert "rejoined" not in text_of(found)


def test_group_older_than_the_observation_has_no_known_beginning() -> None:
    one = generation(7, classic_member("a", 0, 1), since_ms=9_900)
    both = generation(8, classic_member("a", 0), classic_member("b", 1), since_ms=19_900)
    found = report_on(one, both, begins=False)
    assert "the history begins at entry 2: the group existed before it was observed" in found.notes
    assert [r.generation_to for r in found.rebalances] == [8]
    assert last(found).cause.kind is CauseKind.MEMBER_JOINED
    moves = last(found).moves
    assert moves is not None, "what its members had is known"
    assert moves.moved == 1
