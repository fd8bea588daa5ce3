"""Which records of the responses topic count, by the order of markers and early answers in a partition."""

from itertools import product

from records.early_answers import (
    AsOf,
    EarlyAnswers,
    Headers,
    ReplicaId,
    as_of,
    commits_of,
    early_headers,
    is_by_query,
    marked,
    marker_headers,
)

OLD, NEW = ReplicaId(3, 9), ReplicaId(4, 1)


def test_headers_are_read_as_they_were_written() -> None:
    assert as_of(early_headers(OLD, 1_795_000_000_123)) == AsOf(OLD, 1_795_000_000_123)
    assert marked(marker_headers(NEW)) == NEW


def test_other_records_are_neither() -> None:
    others: list[Headers | None] = [None, [], [("trace", b"1")], [("trace", None)]]
    for headers in (*others, marker_headers(OLD)):
        assert as_of(headers) is None
    for headers in (*others, early_headers(OLD, 1)):
        assert marked(headers) is None


def test_answers_of_the_query_always_count() -> None:
    answers = EarlyAnswers()
    assert answers.counts(0, None)
    assert not answers.counts(0, marker_headers(NEW))
    assert answers.counts(0, None)
    assert answers.counts(0, [("trace", b"1")])


def test_a_replaced_replica_counts_until_the_marker_of_its_partition() -> None:
    answers = EarlyAnswers()
    assert answers.counts(0, early_headers(OLD, 1))
    assert not answers.counts(0, marker_headers(NEW))
    assert not answers.counts(0, early_headers(OLD, 2))
    assert answers.counts(0, early_headers(NEW, 2))
    assert answers.counts(1, early_headers(OLD, 2))


def test_an_old_marker_that_comes_late_changes_nothing() -> None:
    answers = EarlyAnswers()
    answers.counts(0, marker_headers(NEW))
    answers.counts(0, marker_headers(OLD))
    assert not answers.counts(0, early_headers(OLD, 1))


def test_a_record_whose_headers_cannot_be_read_does_not_count() -> None:
    answers = EarlyAnswers()
    for name, value in product(("early", "replicas-since"), (None, b"", b"3", b"3.x 1", b"\xff")):
        assert not answers.counts(0, [(name, value)])
    assert answers.counts(0, early_headers(OLD, 1)), "and it marks nothing"


def test_the_querys_records_are_told_from_the_others() -> None:
    others: list[Headers | None] = [None, [], [("trace", b"1")]]
    assert all(is_by_query(headers) for headers in others)
    assert not is_by_query(early_headers(OLD, 1))
    assert not is_by_query(marker_headers(OLD))


def test_replicas_of_one_owner_are_ordered_by_number() -> None:
    answers = EarlyAnswers()
    answers.counts(0, marker_headers(ReplicaId(4, 10)))
    assert not answers.counts(0, early_headers(ReplicaId(4, 9), 1))
    assert answers.counts(0, early_headers(ReplicaId(4, 11), 1))
    assert answers.counts(0, early_headers(ReplicaId(5, 1), 1))


def test_commits_are_named_where_the_record_has_room_for_them() -> None:
    commits = {0: [5, 2**62], 7: [-1]}
    assert commits_of(early_headers(ReplicaId(1, 2), 3, commits, room_bytes=100)) == commits
    assert commits_of(early_headers(ReplicaId(1, 2), 3, commits, room_bytes=10)) == {}
    assert commits_of(early_headers(ReplicaId(1, 2), 3)) == commits_of(None) == {}
