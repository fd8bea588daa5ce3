"""lag-aware: the bounds in its docstring, no needless moves, and some examples."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors.lag_aware import LagAwareAssignor
from kafka_why.contract.protocols.subscriptions import (
    Claim,
    MemberId,
    MemberSubscription,
    Subscription,
    TopicPartition,
    encode_sticky_user_data,
)

Answer = dict[MemberId, list[TopicPartition]]
Wishes = dict[MemberId, tuple[str, ...]]
Owned = dict[MemberId, list[TopicPartition]]

TOPICS = {"t": 7, "u": 4, "v": 3}
EVERYTHING = [TopicPartition(topic, number) for topic, count in TOPICS.items() for number in range(count)]

weights = st.fixed_dictionaries({p: st.sampled_from([0, 0, 1, 2, 3, 10, 11, 50, 200]) for p in EVERYTHING})
tolerances = st.sampled_from([0, 0, 1, 5, 30])
wishes_of_any = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(st.sampled_from("tuv"), unique=True).map(tuple), min_size=1
)


def assign(
    weights: dict[TopicPartition, int], tolerance: int, wishes: Wishes, owned: Owned | None = None
) -> Answer:
    group = {
        member_id: MemberSubscription(
            Subscription(topics, encode_sticky_user_data(Claim(tuple((owned or {}).get(member_id, ())), 1)))
        )
        for member_id, topics in wishes.items()
    }
    return LagAwareAssignor(weights, tolerance).assign(TOPICS, group)


def is_even(answer: Answer, weights: dict[TopicPartition, int], tolerance: int, wishes: Wishes) -> bool:
    """Check points 1 and 2 of the module's docstring."""
    load = {member_id: sum(weights[p] for p in partitions) for member_id, partitions in answer.items()}
    for heavy, partitions in answer.items():
        for light, fewer in answer.items():
            for partition in partitions:
                if partition.topic not in wishes[light]:
                    continue
                weight = weights[partition]
                if weight and load[heavy] - load[light] > max(tolerance, weight):
                    return False
                if not weight and len(partitions) - len(fewer) > 1:
                    return False
    return True


@st.composite
def pasts(draw: st.DrawFn, wishes: Wishes) -> Owned:
    owned: Owned = {member_id: [] for member_id in wishes}
    for partition in EVERYTHING:
        fitting = [m for m, topics in wishes.items() if partition.topic in topics]
        owner = draw(st.sampled_from([*fitting, None]))
        if owner is not None:
            owned[owner].append(partition)
    return owned


@given(weights=weights, tolerance=tolerances, wishes=wishes_of_any, data=st.data())
def test_every_partition_has_one_subscriber_and_loads_are_bounded(
    weights: dict[TopicPartition, int], tolerance: int, wishes: Wishes, data: st.DataObject
) -> None:
    answer = assign(weights, tolerance, wishes, data.draw(pasts(wishes)))
    wanted = {topic for topics in wishes.values() for topic in topics}
    assert sorted(p for partitions in answer.values() for p in partitions) == [
        p for p in EVERYTHING if p.topic in wanted
    ]
    assert all(p.topic in wishes[m] for m, partitions in answer.items() for p in partitions)
    assert is_even(answer, weights, tolerance, wishes)


@given(weights=weights, tolerance=tolerances, members=st.sets(st.sampled_from("abcdef"), min_size=1))
def test_equal_subscriptions_limit_the_load_difference_to_one_partition(
    weights: dict[TopicPartition, int], tolerance: int, members: set[str]
) -> None:
    answer = assign(weights, tolerance, dict.fromkeys(sorted(members), tuple(TOPICS)))
    loads = [sum(weights[p] for p in partitions) for partitions in answer.values()]
    assert max(loads) - min(loads) <= max(tolerance, *weights.values())


@given(weights=weights, tolerance=tolerances, wishes=wishes_of_any, data=st.data())
def test_no_partition_moves_while_loads_are_within_the_bound(
    weights: dict[TopicPartition, int], tolerance: int, wishes: Wishes, data: st.DataObject
) -> None:
    answer = assign(weights, tolerance, wishes, data.draw(pasts(wishes)))
    drifted = {p: weight + data.draw(st.integers(0, 2)) for p, weight in weights.items()}
    assert assign(weights, tolerance, wishes, answer) == answer
    if is_even(answer, drifted, tolerance, wishes):
        assert assign(drifted, tolerance, wishes, answer) == answer


@given(weights=weights, tolerance=tolerances, wishes=wishes_of_any, data=st.data())
def test_undoing_any_move_would_break_the_balance(
    weights: dict[TopicPartition, int], tolerance: int, wishes: Wishes, data: st.DataObject
) -> None:
    owned = data.draw(pasts(wishes))
    answer = assign(weights, tolerance, wishes, owned)
    holder = {p: m for m, partitions in answer.items() for p in partitions}
    for owner, partitions in owned.items():
        for partition in partitions:
            if holder[partition] != owner:
                taken_back = {m: [p for p in mine if p != partition] for m, mine in answer.items()}
                taken_back[owner].append(partition)
                assert not is_even(taken_back, weights, tolerance, wishes), partition


@given(weights=weights, wishes=wishes_of_any, data=st.data(), random=st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(
    weights: dict[TopicPartition, int], wishes: Wishes, data: st.DataObject, random: Random
) -> None:
    owned = data.draw(pasts(wishes))
    members, partitions = list(wishes), list(weights)
    random.shuffle(members)
    random.shuffle(partitions)
    shuffled = assign({p: weights[p] for p in partitions}, 0, {m: wishes[m] for m in members}, owned)
    assert list(shuffled.items()) == list(assign(weights, 0, wishes, owned).items())


def short(answer: Answer) -> dict[str, str]:
    return {m: " ".join(f"{topic}{number}" for topic, number in parts) for m, parts in answer.items()}


def parts(text: str) -> list[TopicPartition]:
    return [TopicPartition(word[0], int(word[1:])) for word in text.split()]


def lags(**named: int) -> dict[TopicPartition, int]:
    return {parts(name)[0]: weight for name, weight in named.items()}


ALL_V: Wishes = {"a": ("v",), "b": ("v",)}


@pytest.mark.parametrize(
    ("lag", "tolerance", "wishes", "owned", "expected"),
    [
        (lags(v0=10, v1=6, v2=5), 0, ALL_V, {}, {"a": "v0", "b": "v1 v2"}),
        (lags(v0=1000, v1=3, v2=3), 0, ALL_V, {"a": "v0 v1", "b": "v2"}, {"a": "v0", "b": "v1 v2"}),
        (lags(v0=8, v1=3, v2=5), 6, ALL_V, {"a": "v0 v1", "b": "v2"}, {"a": "v0 v1", "b": "v2"}),
        (lags(v0=8, v1=3, v2=5), 5, ALL_V, {"a": "v0 v1", "b": "v2"}, {"a": "v0", "b": "v1 v2"}),
        ({}, 0, {"a": ("u",), "b": ("u",)}, {"a": "u0 u1 u2 u3"}, {"a": "u0 u1", "b": "u2 u3"}),
    ],
    ids=["the heaviest first", "a burst", "within the tolerance", "over it", "without weight"],
)
def test_lag_is_balanced_within_the_tolerance(
    lag: dict[TopicPartition, int],
    tolerance: int,
    wishes: Wishes,
    owned: dict[str, str],
    expected: dict[str, str],
) -> None:
    answer = assign(lag, tolerance, wishes, {m: parts(text) for m, text in owned.items()})
    assert short(answer) == expected


def test_owned_partitions_of_cooperative_members_are_kept() -> None:
    group = {
        "a": MemberSubscription(Subscription(("v",), None, tuple(parts("v2")), 4)),
        "b": MemberSubscription(Subscription(("v",), None, tuple(parts("v0")), 4)),
    }
    assert short(LagAwareAssignor().assign({"v": 2 + 1}, group)) == {"a": "v1 v2", "b": "v0"}


def test_negative_weights_and_tolerances_are_errors() -> None:
    with pytest.raises(ValueError, match=r"^weight -1 of v-2 is negative$"):
        LagAwareAssignor(lags(v2=-1))
    with pytest.raises(ValueError, match=r"^tolerance -1 is negative$"):
        LagAwareAssignor(tolerance=-1)
