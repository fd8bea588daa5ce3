"""Moved partitions and needless moves: the definition, compared with all possible even splits."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from kafka_why.why.moves import AssignmentDecoder, compare, needless, owners
from tests.unit.kafka_why.page_facts import played
from tests.unit.kafka_why.why_story import STORY

MEMBERS = ("a", "b", "c", "d")


def t(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", number) for number in numbers)


def test_assignments_are_read_only_if_all_have_the_consumer_format() -> None:
    entry = next(entry for entry in played(*STORY) if entry.type is EntryType.STABLE)
    of_a = encode_assignment(Assignment(tuple(t(1))))
    read = AssignmentDecoder()
    for seq, (assignments, expected) in enumerate(
        [({"a": of_a, "b": b""}, {"a": t(1), "b": t()}), ({"a": of_a, "b": b"for b"}, None), (None, None)]
    ):
        assert read.holdings(replace(entry, seq=seq, assignments=assignments)) == expected
        numbers = None if expected is None else {name: len(held) for name, held in expected.items()}
        assert read.numbers(replace(entry, seq=seq, assignments=None)) == numbers, "it is read once"


def least_given_up(
    last: Mapping[TopicPartition, str], partitions: Sequence[TopicPartition], members: Sequence[str]
) -> int:
    """Return the minimum number of partitions that stayers give up, found by trying every even split."""

    def given_up(split: Sequence[str]) -> int:
        now = zip(partitions, split, strict=True)
        return sum(last.get(p) in members and last[p] != owner for p, owner in now)

    return min(given_up(split) for split in even_splits(len(partitions), members))


def even_splits(partitions: int, members: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for split in product(members, repeat=partitions):
        counts = [split.count(member) for member in members]
        if max(counts) - min(counts) <= 1:
            yield split


@st.composite
def rebalance(draw: st.DrawFn) -> tuple[dict[TopicPartition, str], dict[TopicPartition, str], list[str]]:
    """Draw the owners before, the owners afterwards, and the members afterwards."""
    partitions = sorted(t(*range(draw(st.integers(0, 6)))))
    members = draw(st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=3, unique=True))
    before = {p: draw(st.sampled_from(MEMBERS)) for p in partitions if draw(st.booleans())}
    return before, {p: draw(st.sampled_from(members)) for p in partitions}, members


@given(rebalance())
def test_moves_not_required_for_an_even_split_are_counted_as_needless(
    moved: tuple[dict[TopicPartition, str], dict[TopicPartition, str], list[str]],
) -> None:
    before, after, members = moved
    given_up = sum(before.get(p) in members and before[p] != owner for p, owner in after.items())
    least = least_given_up(before, list(after), members)
    assert needless(before, after, members) == max(0, given_up - least)


holdings = st.dictionaries(
    st.sampled_from(MEMBERS),
    st.frozensets(st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 4))),
)


@given(holdings, holdings)
def test_gained_and_lost_partitions_add_up_in_compared_assignments(
    before: dict[str, frozenset[TopicPartition]], after: dict[str, frozenset[TopicPartition]]
) -> None:
    moves = compare(before, after)
    for member in moves.members:
        assert member.before == len(before.get(member.member_id, ()))
        assert member.after == len(after.get(member.member_id, ()))
        gained, lost = (sum(map(len, topics.values())) for topics in (member.gained, member.lost))
        assert member.after - member.before == gained - lost
    held, now = (frozenset().union(*h.values()) for h in (before, after))
    assert moves.partitions == len(now)
    assert (moves.fresh, moves.released) == (len(now - held), len(held - now))
    assert moves.needless is not None
    assert 0 <= moves.needless <= moves.moved <= len(now & held)


@given(holdings, holdings)
def test_unchanged_members_do_not_affect_the_counted_moves(
    before: dict[str, frozenset[TopicPartition]], after: dict[str, frozenset[TopicPartition]]
) -> None:
    """The figures are those of all partitions, though only changed members are compared."""
    last, now = owners(before), owners(after)
    moves = compare(before, after)
    assert moves.moved == sum(p in last and owner != last[p] for p, owner in now.items())
    assert moves.needless == needless(last, now, after.keys())
    kept = {"kept": frozenset({TopicPartition("k", n) for n in range(3)})}
    more = compare(before | kept, after | kept)
    assert (more.moved, more.fresh, more.released) == (moves.moved, moves.fresh, moves.released)
    assert more.partitions == moves.partitions + 3
    assert more.needless == needless(owners(before | kept), owners(after | kept), (after | kept).keys())
