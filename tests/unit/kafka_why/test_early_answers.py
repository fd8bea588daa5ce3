"""Which records of the responses topic count, by the order of markers and early answers in a partition."""

from itertools import product

import pytest

from kafka_why.contract.early_answers import (
    AsOf,
    EarlyAnswers,
    Headers,
    ReplicaId,
    as_of,
    commits_of,
    early_headers,
    is_from_query,
    marker_headers,
    marker_of,
)

OLD, NEW = ReplicaId(3, 9), ReplicaId(4, 1)


OTHERS: list[Headers | None] = [None, [], [("trace", b"1")], [("trace", None)]]


def test_early_answer_and_marker_headers_round_trip_and_are_distinguished() -> None:
    early, marker = early_headers(OLD, 1_795_000_000_123), marker_headers(NEW)
    assert (as_of(early), marker_of(marker)) == (AsOf(OLD, 1_795_000_000_123), NEW)
    assert [as_of(headers) for headers in (*OTHERS, marker)] == [None] * 5
    assert [marker_of(headers) for headers in (*OTHERS, early)] == [None] * 5
    assert [is_from_query(headers) for headers in (*OTHERS, early, marker)] == [True] * 4 + [False] * 2


LATER = ReplicaId(4, 10)


@pytest.mark.parametrize(
    ("records", "counts"),
    [
        ([None, marker_headers(NEW), None, [("trace", b"1")]], [True, False, True, True]),
        (
            [early_headers(OLD, 1), marker_headers(NEW), early_headers(OLD, 2), early_headers(NEW, 2)],
            [True, False, False, True],
        ),
        ([marker_headers(NEW), marker_headers(OLD), early_headers(OLD, 1)], [False, False, False]),
        (
            [marker_headers(LATER), *(early_headers(ReplicaId(*it), 1) for it in ((4, 9), (4, 11), (5, 1)))],
            [False, False, True, True],
        ),
    ],
    ids=["the query's", "a replaced replica", "an old marker that comes late", "replicas of one owner"],
)
def test_replicas_answers_count_until_the_marker_of_a_later_replica(
    records: list[Headers | None], counts: list[bool]
) -> None:
    answers = EarlyAnswers()
    assert [answers.accepts(0, headers) for headers in records] == counts
    assert answers.accepts(1, early_headers(OLD, 2)), "each partition has its markers"


def test_a_record_whose_headers_cannot_be_read_does_not_count() -> None:
    answers = EarlyAnswers()
    for name, value in product(("early", "replicas-since"), (None, b"", b"3", b"3.x 1", b"\xff")):
        assert not answers.accepts(0, [(name, value)])
    assert answers.accepts(0, early_headers(OLD, 1)), "and it marks nothing"


def test_commits_are_listed_in_headers_if_they_fit_the_record() -> None:
    commits = {0: [5, 2**62], 7: [-1]}
    assert commits_of(early_headers(ReplicaId(1, 2), 3, commits, max_commits_bytes=100)) == commits
    assert commits_of(early_headers(ReplicaId(1, 2), 3, commits, max_commits_bytes=10)) == {}
    assert commits_of(early_headers(ReplicaId(1, 2), 3)) == commits_of(None) == {}
