"""Applications that commit their offsets in transactions: the checker, and a sample of the campaign."""

from collections import Counter
from enum import StrEnum

import pytest

from tests.campaigns.verdict import Verdict
from tests.transactions.checker import (
    Copy,
    Violation,
    copied_value,
    judge_copies,
    judge_counts,
    judge_offsets,
)
from tests.transactions.fleet import PENDING_TIMEOUT_S
from tests.transactions.running import campaign
from tests.transactions.stage import STABLE_S

# An instance is killed last. Where all members wait for a new generation while the coordinator starts again,
# no request says that clients are back, and it waits for 30 s.
SEED = 1
INPUTS = {0: 4, 1: 2}


def copies(*values: bytes, partition: int = 0) -> list[Copy]:
    return [Copy(partition, None, value) for value in values]


SOUND = [
    *copies(*(copied_value(0, number) for number in range(4))),
    *copies(*(copied_value(1, number) for number in range(2)), partition=1),
]


def kinds(verdicts: list[Verdict]) -> Counter[StrEnum]:
    return Counter(verdict.violation for verdict in verdicts)


def test_judge_accepts_output_equal_to_the_input() -> None:
    assert [*judge_copies(INPUTS, SOUND)] == []


@pytest.mark.parametrize(
    ("doctored", "found"),
    [
        ([], {Violation.LOST: 6}),
        (SOUND[1:], {Violation.LOST: 1}),
        ([*SOUND, SOUND[0]], {Violation.TWICE: 1}),
        ([*SOUND[:2], *SOUND[:2], *SOUND[2:]], {Violation.TWICE: 2}),
        ([SOUND[1], SOUND[0], *SOUND[2:]], {Violation.ORDER: 1}),
        ([*SOUND, *copies(b"0-4")], {Violation.UNKNOWN: 1}),
        ([*SOUND[:4], SOUND[4]._replace(partition=0), SOUND[5]], {Violation.UNKNOWN: 1, Violation.LOST: 1}),
    ],
)
def test_judge_catches_doctored_copies(doctored: list[Copy], found: dict[Violation, int]) -> None:
    assert kinds([*judge_copies(INPUTS, doctored)]) == found


def counts(word: str, *numbers: int) -> list[Copy]:
    return [Copy(0, word.encode(), number.to_bytes(8)) for number in numbers]


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        (counts("a", 1, 2, 3), {}),
        (counts("a", 1, 3), {Violation.LOST: 1}),
        (counts("a", 1, 2), {Violation.LOST: 1}),
        (counts("a", 1, 2, 2, 3), {Violation.TWICE: 1}),
        (counts("a", 1, 2, 3, 4), {Violation.TWICE: 1}),
        (counts("a", 1, 3, 2), {Violation.ORDER: 1}),
        ([*counts("a", 1, 2, 3), *counts("b", 1)], {Violation.UNKNOWN: 1}),
    ],
)
def test_judge_catches_wrong_word_counts(outputs: list[Copy], found: dict[Violation, int]) -> None:
    assert kinds([*judge_counts({"a": 3}, outputs)]) == found


def test_judge_catches_wrong_offsets() -> None:
    assert [*judge_offsets({0: 5, 1: 0}, {0: 5}, ())] == []
    assert kinds([*judge_offsets({0: 5}, {0: 4}, ())]) == {Violation.OFFSET: 1}
    assert kinds([*judge_offsets({0: 5}, {}, {0})]) == {Violation.PENDING: 1}


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_transactional_client_copies_each_record_once_whatever_breaks() -> None:
    """A sample of `make transactions-campaign`: librdkafka's loop, and one fault of each place. A gateway is
    paused, not killed: librdkafka may wait until its timeout when its only broker is restarted.
    """
    kinds = ["instance killed", "gateway held still", "follower's thread killed"]
    result = campaign(SEED, len(kinds), ["librdkafka"], kinds)
    assert result.is_well, f"seed {SEED}, folder {result.folder}: {result.failure} {result.sentences[:20]}"
    assert {struck.fault for struck in result.struck} == set(kinds)
    assert result.numbers[STABLE_S] < PENDING_TIMEOUT_S
