"""Numbers in text from outside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.numbers import (
    INT64_MAX,
    INT64_MIN,
    OutOfRange,
    is_whole_number,
    parse_decimal,
    parse_whole_number,
)

# Python's int() reads all of these but the empty ones.
NOT_WHOLE = (
    "",
    "+",
    "1_0",
    " 1",
    "1 ",
    "1\n",
    "\N{ARABIC-INDIC DIGIT THREE}",
    "\N{FULLWIDTH DIGIT ONE}0",
    "--1",
)


@given(st.integers(INT64_MIN, INT64_MAX), st.sampled_from(["", "000"]))
def test_every_64_bit_number_is_parsed(number: int, zeros: str) -> None:
    sign = "-" if number < 0 else ""
    assert parse_whole_number(f"{sign}{zeros}{abs(number)}") == number


def test_whole_number_may_have_a_sign_and_leading_zeros() -> None:
    assert parse_whole_number("+5") == 5
    assert parse_whole_number("-0") == 0
    assert parse_whole_number(f"-{'0' * 10_000}7") == -7


@pytest.mark.parametrize("text", [*NOT_WHOLE, "1.0", "1e3", "0x1", "\N{SUPERSCRIPT TWO}"])
def test_text_that_is_not_a_whole_number_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number") as refused:
        parse_whole_number(text)
    assert not isinstance(refused.value, OutOfRange)


@pytest.mark.parametrize("text", ["-1", "11", "9223372036854775808", "-9223372036854775809"])
def test_number_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(OutOfRange, match=f"^{text} is not between 0 and 10$"):
        parse_whole_number(text, 0, 10)


def test_long_text_is_refused_in_a_short_message() -> None:
    for text in ("9" * 100_000, "9" * 100_000 + "_"):
        with pytest.raises(ValueError, match=r"99\.\.\.") as refused:
            parse_whole_number(text)
        assert len(str(refused.value)) < 120


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0.0), ("2.50", 2.5), ("-0.5", -0.5), ("+3", 3.0), (".5", 0.5), ("5.", 5.0)]
)
def test_decimal_text_is_parsed(text: str, number: float) -> None:
    assert parse_decimal(text) == number


@pytest.mark.parametrize("text", [*NOT_WHOLE, "nan", "inf", "-inf", "1e400", ".", "1,5", "9" * 10])
def test_text_that_is_not_a_decimal_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number such as 2 or 0"):
        parse_decimal(text)


def test_unsigned_number_accepts_only_ascii_digits() -> None:
    assert is_whole_number("09")
    assert not any(map(is_whole_number, (*NOT_WHOLE, "-1", "+1")))
