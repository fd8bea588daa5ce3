"""Parsing of user input: times, durations, topics, states, and reset plans."""

from collections.abc import Callable
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.list_groups import (
    ChosenPartitions,
    choose_partitions,
    parse_datetime_ms,
    parse_duration_ms,
    parse_states,
    parse_topic,
    parse_types,
)
from operations.admin.plan_file import PlanFileError, export_plan, parse_plan, read_plan

HOUR_MS = 3_600_000

TOPICS = st.text("abc019.-_", min_size=1)
PLANS = st.dictionaries(
    st.text(min_size=1).filter(lambda name: "\r" not in name and "\0" not in name),
    st.dictionaries(
        st.builds(TopicPartition, TOPICS, st.integers(0, 99)), st.integers(0, 2**63 - 1), min_size=1
    ),
)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("P1D", 24 * HOUR_MS),
        ("P1DT2H3M4S", 26 * HOUR_MS + 184_000),
        ("PT0.5S", 500),
        ("PT-1.25S", -1_250),
        ("PT-0.5S", -500),
        ("-PT1H", -HOUR_MS),
        ("-PT-1H", HOUR_MS),
        ("pt15m", 900_000),
        ("P2DT-6H", 42 * HOUR_MS),
        ("PT1.S", 1_000),
        ("PT0.0009S", 0),
    ],
)
def test_duration_is_parsed_as_by_java(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    ("parse", "message", "texts"),
    [
        (
            parse_duration_ms,
            "is a duration of more than 30,000 years",
            ["P999999999999999D", "-PT999999999999999H"],
        ),
        (
            parse_duration_ms,
            "is not a duration",
            [
                f"P{'9' * 5_000}D",
                "PT\N{ARABIC-INDIC DIGIT THREE}H",
                *("", "P", "PT", "P1DT", "1D", "P1H", "P1M", "P1Y", "PT1.5H", "P1D ", "P1W"),
            ],
        ),
        (
            parse_datetime_ms,
            "is not a date and time",
            ["", "2026-01-31", "2026-01-31 10:00:00.000", "2026-02-31T10:00:00.000", "T"],
        ),
        (
            parse_topic,
            r"^Invalid (topic arg|partition)",
            [
                *("", ":", "t:", ":0", "a:0:1", "t:x", "t:-1", "t:0,,1", "t:0,", "t:1_0", "t:+-1"),
                f"t:{'9' * 5_000}",
            ],
        ),
    ],
)
def test_invalid_duration_or_time_text_is_rejected(
    parse: Callable[[str], object], message: str, texts: list[str]
) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=message):
            parse(text)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1970-01-01T00:00:00.000", 0),
        ("1970-01-01T00:00:01.234Z", 1_234),
        ("1970-01-01T02:00:00.000+02:00", 0),
        ("1970-01-01T02:00:00.000+02", 0),
        ("1969-12-31T23:00:00.000-0100", 0),
        ("1970-01-01T00:00:01", 1_000),
        ("1969-12-31T23:59:59.999", -1),
    ],
)
def test_times_without_a_zone_are_utc(text: str, at_ms: int) -> None:
    assert parse_datetime_ms(text) == at_ms


def test_chosen_partitions_are_unique_and_missing_ones_reported() -> None:
    choices = [parse_topic(text) for text in ("b:1,7", "a", "a:0", "c", "d:0")]
    chosen = choose_partitions(choices, {"a": frozenset({0, 1}), "b": frozenset({0, 1})})
    assert chosen == ChosenPartitions(
        partitions=[TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 1)],
        missing=[TopicPartition("b", 7), TopicPartition("c", -1), TopicPartition("d", 0)],
    )


def test_states_and_types_are_parsed_case_insensitively() -> None:
    assert parse_states("stable, EMPTY") == {"Stable", "Empty"}
    assert parse_states("") == frozenset()
    assert parse_types("classic") == {"Classic"}
    with pytest.raises(ValueError, match=r"Invalid state list 'stable,dying'. Valid states are: Empty, "):
        parse_states("stable,dying")
    with pytest.raises(ValueError, match=r"Invalid types list 'shared'. Valid types are: Classic, Consumer"):
        parse_types("shared")


@pytest.mark.parametrize(
    ("content", "group_ids", "message"),
    [
        ("t,0,5\n", ["g", "h"], "line 1 of the reset plan has 3 columns, expected: group,topic"),
        ("t,0,5\ng,t,0,5\n", ["g"], "line 2 of the reset plan has 4 columns, expected: topic,"),
        ("t,0,five\n", ["g"], "line 1 of the reset plan has 'five' instead of a number"),
        ("1_0,0,5\nt,1_0,5\n", ["g"], "line 2 of the reset plan has '1_0' instead of a number"),
        ("t,\N{ARABIC-INDIC DIGIT THREE},5\n", ["g"], "instead of a number, expected: topic,"),
        ("t,-1,5\n", ["g"], "-1 is not between 0 and 2147483647, expected: topic,partition,offset$"),
        ("t,0,9223372036854775808\n", ["g"], "has a number out of its range: 9223372036854775808 is not"),
        (f"t,0,{'9' * 5_000}\n", ["g"], r"out of its range: 9+\.\.\. is not between"),
        (
            "t;0;5\n",
            ["g"],
            "line 1 of the reset plan is separated by ';' instead of a comma, expected: topic",
        ),
        ("t\t0\t5\n", ["g"], r"is separated by '\\t' instead of a comma"),
        ("t,0,5\nt;1;5\n", ["g"], "line 2 of the reset plan is separated by ';'"),
        ("topic,partition,offset\n", ["g"], "line 1 of the reset plan is a header"),
        ("GROUP, TOPIC, PARTITION, OFFSET,\n", ["g"], "line 1 of the reset plan is a header"),
        ("g,t,0,\n", ["g"], "line 1 of the reset plan has 't' instead of a number, expected: topic"),
        ("\N{ZERO WIDTH SPACE}t,0,5\n", ["g"], r"has '\\u200bt' instead of the name of a topic"),
        ("t,0,5\n'orders',0,5\n", ["g"], r"""has "'orders'" instead of the name of a topic"""),
        ('t,0,"5\n', ["g"], "line 1 of the reset plan is not CSV: unexpected end of data"),
        ("t," + "0" * 140_000, ["g"], "line 1 of the reset plan is not CSV: field larger than"),
        (b"t,0,5\nb\xfccher,0,5\n", ["g"], "line 2 of the reset plan is not UTF-8: save the file as UTF-8"),
        (b"\xff\xfet\x00,", ["g"], "line 1 of the reset plan is not UTF-16: save the file as UTF-8"),
        ("t,0,5\n".encode("utf-16-le"), ["g"], "has zero bytes, as UTF-16 has: save the file as UTF-8"),
    ],
)
def test_invalid_reset_plan_is_rejected(content: str | bytes, group_ids: list[str], message: str) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    with pytest.raises(PlanFileError, match=message):
        read_plan(BytesIO(data), group_ids)


@pytest.mark.parametrize(
    "content",
    [
        b"t,0,5\nt,1,6",
        b"g,t,0,5\r\n\r\ng,t,1,6",
        b"t,0,5,\r\nt,1,6,,\r\n,,,\r\n",
        b" t , 0, 5\n\n t,+1,\t6\n",
        b"t,0,5\rt,1,6\r",
        b'"t","0","5"\n"t",1,06\n',
        b"\xef\xbb\xbft,0,5\nt,1,6\n",
        "\ufefft,0,5\r\nt,1,6\r\n".encode("utf-16-le"),
        "\ufefft,0,5\nt,1,6\n".encode("utf-16-be"),
    ],
)
def test_reset_plan_saved_by_spreadsheets_and_editors_is_read(content: bytes) -> None:
    plan = {TopicPartition("t", 0): 5, TopicPartition("t", 1): 6}
    assert read_plan(BytesIO(content), ["g"]) == {"g": plan}


def test_exported_reset_plan_is_sorted_by_group_and_partition() -> None:
    plans = {"h": {TopicPartition("t", 0): 1}, "g": {TopicPartition("t", 10): 3, TopicPartition("t", 9): 2}}
    assert export_plan(plans, with_group=True) == "g,t,9,2\ng,t,10,3\nh,t,0,1\n"
    assert export_plan({"g": plans["g"]}, with_group=False) == "t,9,2\nt,10,3\n"


@given(PLANS)
def test_exported_reset_plan_can_be_read_back(plans: dict[str, dict[TopicPartition, int]]) -> None:
    assert parse_plan(export_plan(plans, with_group=True), []) == plans
    for group_id, offsets in plans.items():
        assert parse_plan(export_plan({group_id: offsets}, with_group=False), [group_id]) == {
            group_id: offsets
        }
