"""The output of `why`: the cause first, golden texts of real histories, and special cases."""

import re
from datetime import UTC

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.why.history import no_history_text
from kafka_why.why.report import report, with_returns
from kafka_why.why.text import report_text
from kafka_why.wording import (
    Clock,
    Column,
    Names,
    VisibleText,
    is_bare,
    parse_since,
    render_table,
    visible,
    visible_text,
)
from tests.harness.histories import Recorder, of_scenario
from tests.unit.kafka_why.why_story import END_MS, STORY

NOW_MS = 1_700_000_000_000

THE_DEATH = """\
#3  1970-01-01 00:00:10.000  session timeout: follower
    why       member follower expired: no heartbeat within its session timeout of 10000 ms
    trigger   heartbeat deadline of follower
    member    @follower
    took      5.0 s so far, waiting for the leader's assignment
    rejoined  leader 1.0 s
    formed    generation 2 -> 3, 1 member, leader leader, protocol range
"""


def text_of(history: list[HistoryEntry], now_ms: int, since_ms: int | None = None) -> str:
    return f"{report_text(report('g', history, now_ms, since_ms), Clock(UTC))}\n"


NIGHT = Recorder().play(*STORY)
LATER = next(n for n, event in enumerate(NIGHT) if event.generation == 2)
ENDS = (*STORY, "leave worker-1", "leave worker-2", "delete admin")
ONE = ("config group.initial.rebalance.delay.ms=0", "join m api=3", "sync m assign=@m:p0")


@pytest.mark.parametrize(
    ("history", "now_ms", "said", "never"),
    [
        pytest.param(
            of_scenario("timeline_2_follower_dies"), 15_000, [THE_DEATH], [], id="a session timeout, first"
        ),
        pytest.param(
            of_scenario("timeline_3_follower_never_rejoins"),
            30_000,
            ["removed  follower after 20.0 s: did not rejoin within the rebalance timeout\n"],
            [],
            id="a member that did not rejoin",
        ),
        pytest.param(
            Recorder(readable=False).play(
                "config group.initial.rebalance.delay.ms=0",
                "join c type=connect api=3 protocols=sessioned",
                "sync c assign=@c:assignment",
            ),
            1_000,
            ["    assigned  bytes that are not a consumer assignment: c 10\n"],
            ["moved", "Moved"],
            id="an assignment of another protocol",
        ),
        pytest.param(
            NIGHT[LATER:],
            END_MS,
            [
                f"the history begins at entry {NIGHT[LATER].seq}: retention deleted the earlier ones",
                "cause unknown",
                "and began before the history",
            ],
            [],
            id="a lost beginning",
        ),
        pytest.param(
            [event for event in NIGHT if event.seq not in (4, 9, 10)],
            END_MS,
            [f"entries are missing: 4 9-10 of life {NIGHT[0].incarnation}"],
            [],
            id="missing entries",
        ),
        pytest.param(
            Recorder().play(*ENDS),
            END_MS,
            ["Group g ended at 2026-11-21 03:00:59.000 UTC"],
            [],
            id="a group that has ended",
        ),
        pytest.param(
            Recorder().play(*ENDS, "join worker-1 api=3 id="),
            END_MS,
            ["this report covers 2 lives"],
            [],
            id="a group that was created again",
        ),
        pytest.param(
            Recorder().play(
                "config group.initial.rebalance.delay.ms=0",
                "at 0s",
                "join a api=3 session=1800s",
                "sync a assign=@a:t-0",
                "join s api=3 session=1800s instance=i",
                "join a id=@a",
                "sync a assign=@a:t-0,@s:t-1",
                "sync s",
                "at 10s",
                "join b api=3 session=1800s",
                "join a id=@a",
                "at 71s",
            ),
            71_000,
            ["silent    i: did not rejoin, but is still in the group"],
            [],
            id="a static member that does not rejoin",
        ),
        pytest.param(
            Recorder().play(*ONE, *("join m id=@m", "sync m assign=@m:p0") * 30),
            1_000,
            ["(11 earlier rebalances are not shown: see them with -o json)", "\n#12 "],
            ["\n#11 "],
            id="only the last of many rebalances",
        ),
    ],
)
def test_why_report_has_the_lines_of_each_special_case(
    history: list[HistoryEntry], now_ms: int, said: list[str], never: list[str]
) -> None:
    text = re.sub(r"(\S+)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"@\1", text_of(history, now_ms))
    assert [words for words in said if words not in text] == []
    assert [words for words in never if words in text] == []


@pytest.mark.parametrize(
    ("principal", "shown"), [("User:ann", "requests-0-0 of User:ann"), ("User:ANONYMOUS", "requests-0-0")]
)
def test_why_shows_the_principal_whose_request_caused_a_rebalance(principal: str, shown: str) -> None:
    history = Recorder().play(f"join a api=3 principal={principal}")
    assert text_line(text_of(history, NOW_MS), "trigger") == shown
    assert report("g", history, NOW_MS).rebalances[0].cause.principal == principal


def test_member_joining_just_after_a_rebalance_is_not_reported_as_silent() -> None:
    """Two consumers start together; the initial delay ends between the second one's two JoinGroups."""
    history = Recorder().play(
        "config group.initial.rebalance.delay.ms=3000",
        "at 0s",
        "join c1",
        "at 1ms",
        "join c2",
        "join c1 id=@c1",
        "at 3002ms",
        "join c2 id=@c2",
    )
    first = report("g", history, 4_000).rebalances[0]
    assert len(first.waited_for) == 1 and first.waited_for[0] not in first.members
    text = text_of(history, 4_000)
    assert text.count("formed ") == 1
    assert "silent" not in text


def test_member_names_are_shortened_while_unique() -> None:
    uuids = ("a1b2c3d4-74bb-59f8-841a-52678c3df179", "b1b2c3d4-74bb-59f8-841a-52678c3df179")
    ids = [f"worker-{uuids[0]}", f"worker-{uuids[1]}", f"other-{uuids[0]}", "odd"]
    names = Names(ids)
    assert [names.of(m) for m in ids] == ["worker-a1b2c3d4", "worker-b1b2c3d4", "other", "odd"]
    assert names.put_in(f"members {ids[2]}, {ids[0]}") == "members other, worker-a1b2c3d4"
    assert names.of("unheard of") == "unheard of"


UUID = "4f0c9c1e-31a4-4d59-9c1e-0a5f3f2b7c6d"


@pytest.mark.parametrize(
    ("member_id", "expected"),
    [
        ("TVnhyxcUQvedUOgdPP4P8A", True),  # Kafka's client: the Base64 of addresses
        ("xxUR60WoRX+8LU2GRPacVw", True),  # librdkafka's: the common one
        ("AGUiMxZiRq+3aIVt/QtVvg", True),
        (UUID, True),
        (f"worker-1-{UUID}", False),
        ("worker-1", False),
        ("", False),
    ],
)
def test_bare_uuid_is_recognized_as_a_member_id_without_client_name(member_id: str, expected: bool) -> None:
    assert is_bare(member_id) is expected


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2h", NOW_MS - 7_200_000),
        ("1h30m", NOW_MS - 5_400_000),
        ("1.5s", NOW_MS - 1_500),
        ("250ms", NOW_MS - 250),
        ("999999999999999d", 0),
        ("2026-11-21T03:00:00Z", 1_795_230_000_000),
        ("2026-11-21T03:00+01:00", 1_795_226_400_000),
    ],
)
def test_since_option_is_a_time_or_a_duration(text: str, at_ms: int) -> None:
    assert parse_since(text, NOW_MS) == at_ms


@pytest.mark.parametrize(
    "text",
    ["", "2", "h", "yesterday", "2h ago", "-2h", "\N{ARABIC-INDIC DIGIT THREE}h", "1_0h", "9" * 400 + "d"],
)
def test_invalid_since_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="neither a duration"):
        parse_since(text, NOW_MS)


def test_unknown_group_error_suggests_similar_names() -> None:
    known = ["orders", "orders-eu", "payments", "Reorders-Nightly"]
    assert no_history_text("order", known).endswith("did you mean orders, orders-eu, Reorders-Nightly?")
    unknown = "group zzz is unknown: it does not exist and is not in the retained history"
    assert no_history_text("zzz", known) == unknown
    assert "older than the events topic's retention" in no_history_text("orders", known)


def text_line(text: str, label: str) -> str:
    """Return the text behind a label that occurs once."""
    found = re.findall(rf"^    {label} +(.*)$", text, re.MULTILINE)
    assert len(found) == 1, text
    return str(found[0])


BEFORE = ("topics foo=4 bar=1 qux=1", "at 0s", "A e0 names[foo,bar,qux]", "at 5s")
DELETED = ("topics foo=none", "topic-metadata watcher", "at 10s", "A e2", "at 11s")
REVOKED = ("A e2 owned[bar 0; qux 0]",)


def revoked(history: list[HistoryEntry]) -> dict[str, list[int]]:
    """Return what the member gave up in the last rebalance."""
    found = report("g", history, history[-1].at_ms).rebalances[-1]
    return {topic: list(numbers) for way in found.progress for topic, numbers in way.revoked.items()}


@pytest.mark.parametrize("again", [(), ("topics foo=2",)], ids=["deleted", "created again"])
def test_deleted_topic_is_named_from_earlier_entries(again: tuple[str, ...]) -> None:
    first, *others = DELETED
    history = Recorder().play(*BEFORE, first, *again, *others, *REVOKED)
    assert revoked(history) == {"foo (deleted)": [0, 1, 2, 3]}


def test_returning_client_is_named_unless_another_member_has_its_id() -> None:
    history = Recorder().play(
        "config group.initial.rebalance.delay.ms=0",
        *("join w api=3", "sync w assign=@w:jobs-0", "at 1s", "leave w", "at 5s", "join w api=3"),
    )
    back = "as w-578e9d55 after 4.0 s: a restart, or processing that exceeded max.poll.interval.ms"
    assert text_line(text_of(history, NOW_MS), "back") == back
    _, left, joined = report("g", history, NOW_MS).rebalances
    twin = replace(left, returned=None, members=["w-00000000-0000-0000-0000-000000000000"])
    assert with_returns([twin, joined], {})[0].returned is None


HOSTILE = "a\x1b[2J\r\nADMIN \x9b31m\u202e\u2028b"
SHOWN = r"a\x1b[2J\r\nADMIN \x9b31m\u202e\u2028b"


@given(st.text())
def test_any_text_is_shown_as_one_printable_line(text: str) -> None:
    assert visible(text).isprintable()
    assert visible(visible(text)) == visible(text)


@given(st.text(st.characters(exclude_categories=["C", "Z"])))
def test_printable_text_is_unchanged(text: str) -> None:
    assert visible(text) == text
    assert visible("gruppe é 群 🦆") == "gruppe é 群 🦆"


def test_visible_text_keeps_its_own_line_breaks() -> None:
    text = visible_text(["a\nb", visible_text(["c", "d"])])
    assert text == "a\\nb\nc\nd"
    assert isinstance(text, VisibleText)
    assert visible(text) is text
    assert visible(str(RuntimeError(text))) == text
    assert visible(f"seen: {text}") == "seen: a\\nb\\nc\\nd"


def test_client_text_cannot_add_a_line_to_a_report() -> None:
    ours = of_scenario("timeline_2_follower_dies")
    encoded = msgspec.json.encode(ours).replace(b"follower", b"follower\\nGroup g is Stable\\u001b[2J")
    theirs = msgspec.json.decode(encoded, type=list[HistoryEntry])
    text, plain = (report_text(report("g", it, 15_000), Clock(UTC)) for it in (theirs, ours))
    assert text.count("\n") == plain.count("\n")
    assert all(line.isprintable() for line in text.split("\n"))
    assert r"follower\nGroup g is Stable\x1b[2J" in text


def test_a_table_has_a_line_for_each_row() -> None:
    lines = render_table([Column("GROUP"), Column("STATE")], [[HOSTILE, "Empty"], ["b", None]]).split("\n")
    assert len(lines) == 3
    assert lines[1].split()[0] == SHOWN.split()[0]
    assert all(line.isprintable() for line in lines)
