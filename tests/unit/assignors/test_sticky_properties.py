"""Promises of assignors to any group with a past: every partition has a member. Sticky, cooperative-sticky
and uniform also promise balance, stickiness and safety.
"""

from dataclasses import dataclass, replace
from itertools import product
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from assignors.kafka import ASSIGNORS, BROKER_ASSIGNORS
from kafka_why.contract.protocols.subscriptions import (
    Claim,
    MemberId,
    MemberSubscription,
    Subscription,
    TopicPartition,
    encode_sticky_user_data,
    java_order,
    sticky_claim,
)
from kafka_why.sticky.api import members_in_order, number_group
from kafka_why.sticky.assignor import assign_exact
from kafka_why.sticky.pools import Pools
from tests.harness.examples import examples

EVERY = {**ASSIGNORS, **BROKER_ASSIGNORS}
NAMES = st.text(st.sampled_from("ab-1\N{HALFWIDTH WHITE CIRCLE}\N{GRINNING FACE}"), min_size=1, max_size=3)
RACKS = ["", "east", "west", "north"]
Answer = dict[MemberId, list[TopicPartition]]

# Groups with a past are large, so they take long to make.
some = examples(40)
each_assignor = pytest.mark.parametrize("name", EVERY)
sticky_ones = pytest.mark.parametrize("name", ["sticky", "cooperative-sticky", "uniform"])


@dataclass(frozen=True)
class GroupWithPast:
    """A group and what each member had before; no two have had the same, unless `overlapping`."""

    counts: dict[str, int]
    wishes: dict[MemberId, tuple[str, ...]]
    owned: dict[MemberId, tuple[TopicPartition, ...]]
    generations: dict[MemberId, int]
    racks: dict[str, list[frozenset[str]]]
    rack_of: dict[MemberId, str]
    instance_of: dict[MemberId, str | None]

    def subscriptions(
        self, owned: dict[MemberId, tuple[TopicPartition, ...]]
    ) -> dict[str, MemberSubscription]:
        """Return members that report their earlier partitions in every possible way."""
        return {
            member_id: MemberSubscription(
                Subscription(
                    topics,
                    encode_sticky_user_data(Claim(owned.get(member_id, ()), self.generations[member_id])),
                    owned.get(member_id, ()),
                    self.generations[member_id],
                    self.rack_of[member_id] or None,
                ),
                self.instance_of[member_id],
            )
            for member_id, topics in self.wishes.items()
        }

    def assign(self, name: str, owned: dict[MemberId, tuple[TopicPartition, ...]] | None = None) -> Answer:
        subscriptions = self.subscriptions(self.owned if owned is None else owned)
        return EVERY[name].assign(self.counts, subscriptions, self.racks)

    def settle(self, name: str) -> Answer:
        """Return the answer once nothing is held back any more; all members speak of one generation by
        then.
        """
        group, answer = self, self.assign(name)
        if name == "cooperative-sticky":
            group = replace(self, generations=dict.fromkeys(self.wishes, 10))
            answer = group.assign(name, as_owned(answer))
        assert group.assign(name, as_owned(answer)) == answer
        return answer

    def without(self, member_id: MemberId) -> "GroupWithPast":
        return replace(self, wishes={m: topics for m, topics in self.wishes.items() if m != member_id})


@st.composite
def groups(
    draw: st.DrawFn, *, same_topics: bool = False, overlapping: bool = False, with_racks: bool = False
) -> GroupWithPast:
    """Draw a group, also with unknown and empty topics, static members and members without topics. If members
    overlap, they may also name a topic twice.
    """
    topics = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    counts = {topic: draw(st.integers(0, 5)) for topic in topics}
    members = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    instances = draw(st.lists(NAMES, min_size=len(members), max_size=5, unique=True))
    shared = tuple(draw(st.lists(st.sampled_from(topics), min_size=1, unique=True)))
    some = st.lists(st.sampled_from([*topics, "ghost"]), max_size=4, unique=not overlapping).map(tuple)
    wishes = {member_id: shared if same_topics else draw(some) for member_id in members}
    everything = [TopicPartition(t, n) for t, count in counts.items() for n in range(count + 1)]
    owned: dict[MemberId, tuple[TopicPartition, ...]] = {}
    if overlapping:
        owned = {m: tuple(draw(st.lists(st.sampled_from(everything), unique=True))) for m in members}
    else:
        holders = [draw(st.sampled_from([*members, ""])) for _ in everything]
        owned = {
            m: tuple(p for p, holder in zip(everything, holders, strict=True) if holder == m) for m in members
        }
    replicas = st.sets(st.sampled_from(RACKS[1:]), max_size=2).map(frozenset)
    return GroupWithPast(
        counts,
        wishes,
        owned,
        {member_id: draw(st.integers(3, 4)) if overlapping else 4 for member_id in members},
        {t: [draw(replicas) for _ in range(count)] for t, count in counts.items()} if with_racks else {},
        {member_id: draw(st.sampled_from(RACKS)) if with_racks else "" for member_id in members},
        {
            m: instance if draw(st.booleans()) else None
            for m, instance in zip(members, instances, strict=False)
        },
    )


def as_owned(answer: Answer) -> dict[MemberId, tuple[TopicPartition, ...]]:
    return {member_id: tuple(partitions) for member_id, partitions in answer.items()}


@each_assignor
@some
@given(group=groups(overlapping=True, with_racks=True))
def test_every_partition_is_assigned_once_to_a_subscriber(name: str, group: GroupWithPast) -> None:
    """Members and their partitions are sorted."""
    answer = group.assign(name) if name == "uniform" else group.settle(name)
    assert list(answer) == members_in_order(group.subscriptions(group.owned))
    wanted = {topic for topics in group.wishes.values() for topic in topics}
    assert sorted(p for partitions in answer.values() for p in partitions) == sorted(
        TopicPartition(t, n) for t, count in group.counts.items() if t in wanted for n in range(count)
    )
    for member_id, partitions in answer.items():
        assert partitions == sorted(partitions, key=lambda p: (java_order(p.topic), p.partition))
        assert {topic for topic, _ in partitions} <= {*group.wishes[member_id]}


@sticky_ones
@some
@given(group=groups(with_racks=True))
def test_no_partition_moves_when_nothing_has_changed(name: str, group: GroupWithPast) -> None:
    answer = group.assign(name)
    if name == "cooperative-sticky":
        answer = group.settle(name)
    assert group.assign(name, as_owned(answer)) == answer


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@some
@given(group=groups(same_topics=True), data=st.data())
def test_only_partitions_of_the_member_that_left_move(
    name: str, group: GroupWithPast, data: st.DataObject
) -> None:
    assume(len(group.wishes) > 1)
    before = group.settle(name)
    gone = data.draw(st.sampled_from(sorted(before)))
    left = {m: partitions for m, partitions in before.items() if m != gone}
    after = group.without(gone).assign(name, as_owned(left))
    assert all(set(left[m]) <= set(after[m]) for m in left)


@some
@given(group=groups(overlapping=True))
def test_partition_is_never_assigned_in_the_round_that_revokes_it(group: GroupWithPast) -> None:
    answer = group.assign("cooperative-sticky")
    for member_id, partitions in answer.items():
        for partition in set(partitions) - set(group.owned[member_id]):
            assert not any(partition in owned for owned in group.owned.values())


@some
@given(group=groups(overlapping=True))
def test_a_partition_claimed_twice_in_a_generation_is_taken_from_both(group: GroupWithPast) -> None:
    group = replace(group, generations=dict.fromkeys(group.wishes, 4))
    answer = group.assign("cooperative-sticky")
    for partitions in answer.values():
        assert all(sum(p in owned for owned in group.owned.values()) <= 1 for p in partitions)


@each_assignor
@some
@given(group=groups(overlapping=True, with_racks=True), random=st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(name: str, group: GroupWithPast, random: Random) -> None:
    wishes = list(group.wishes.items())
    random.shuffle(wishes)
    counts = list(group.counts.items())
    random.shuffle(counts)
    mixed = replace(
        group,
        counts=dict(counts),
        wishes={m: tuple(random.sample(topics, len(topics))) for m, topics in wishes},
        owned={m: tuple(random.sample(owned, len(owned))) for m, owned in group.owned.items()},
    )
    assert list(mixed.assign(name).items()) == list(group.assign(name).items())


@some
@given(group=groups(overlapping=True, with_racks=True))
def test_exact_sticky_assignment_is_optimal(group: GroupWithPast) -> None:
    """All assignments are tried: evenness counts first, then racks, then moves, then previous owners."""
    subscriptions = group.subscriptions(group.owned)
    claims = {m: sticky_claim(member.subscription) for m, member in subscriptions.items()}
    numbered = number_group(group.counts, subscriptions, claims, group.racks)
    pools = Pools(numbered)
    members = range(len(numbered.members))
    masks = [pools.near[kind] | pools.far[kind] for kind in pools.kind_of]
    choices = [[m for m in members if mask >> m & 1] for mask in masks]
    count = 1
    for choice in choices:
        count *= len(choice)
    assume(count <= 600)

    def score(holder: list[int]) -> tuple[int, int]:
        squares = sum(holder.count(m) ** 2 for m in members)
        return squares, sum(pools.cost(p, m) for p, m in enumerate(holder))

    assert score(assign_exact(numbered)) == min(score(list(holder)) for holder in product(*choices))
