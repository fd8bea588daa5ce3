"""Properties of any group's assignment, under every Kafka assignor or under the one that promises them."""

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors.kafka import ASSIGNORS, BROKER_ASSIGNORS
from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    MemberSubscription,
    Subscription,
    TopicPartition,
    java_order,
)
from kafka_why.sticky.api import consumers_per_topic, members_in_order

NAMES = st.text(st.sampled_from("ab-1\N{HALFWIDTH WHITE CIRCLE}\N{GRINNING FACE}"), min_size=1, max_size=3)

EVERY = {**ASSIGNORS, **BROKER_ASSIGNORS}

each_assignor = pytest.mark.parametrize("name", EVERY)
each_without_memory = pytest.mark.parametrize("name", ["range", "roundrobin"])


@dataclass(frozen=True)
class DrawnGroup:
    counts: dict[str, int]
    members: dict[MemberId, MemberSubscription]

    def assign(self, name: str) -> dict[MemberId, list[TopicPartition]]:
        return EVERY[name].assign(self.counts, self.members)


@st.composite
def groups(draw: st.DrawFn, *, same_topics: bool = False, all_static: bool = False) -> DrawnGroup:
    """Any group: unknown, empty and repeated topics, members without topics, static and dynamic ones."""
    topics = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    counts = draw(st.dictionaries(st.sampled_from([*topics, "unsubscribed"]), st.integers(0, 12)))
    wishes = st.lists(st.sampled_from(topics), max_size=6).map(tuple)
    shared = draw(wishes)
    member_ids = draw(st.lists(NAMES, max_size=8, unique=True))
    instance_ids = draw(st.lists(NAMES, min_size=len(member_ids), max_size=8, unique=True))
    members = {
        member_id: MemberSubscription(
            Subscription(shared if same_topics else draw(wishes)),
            instance_id if all_static or draw(st.booleans()) else None,
        )
        for member_id, instance_id in zip(member_ids, instance_ids, strict=False)
    }
    return DrawnGroup(counts, members)


def sizes_of(topic: str, answer: dict[MemberId, list[TopicPartition]], members: list[MemberId]) -> list[int]:
    return [sum(partition.topic == topic for partition in answer[member_id]) for member_id in members]


@each_assignor
@given(group=groups())
def test_every_partition_of_a_subscribed_topic_is_assigned_once(name: str, group: DrawnGroup) -> None:
    assigned = Counter(partition for partitions in group.assign(name).values() for partition in partitions)
    wanted = {topic for member in group.members.values() for topic in member.subscription.topics}
    assert assigned == Counter(
        TopicPartition(topic, number)
        for topic, count in group.counts.items()
        if topic in wanted
        for number in range(count)
    )


@each_assignor
@given(group=groups())
def test_members_get_only_topics_they_subscribe_to(name: str, group: DrawnGroup) -> None:
    answer = group.assign(name)
    assert answer.keys() == group.members.keys()
    for member_id, partitions in answer.items():
        assert {topic for topic, _ in partitions} <= set(group.members[member_id].subscription.topics)


@each_without_memory
@given(group=groups())
def test_shares_of_a_topic_differ_by_one_at_most(name: str, group: DrawnGroup) -> None:
    answer = group.assign(name)
    for topic, consumers in consumers_per_topic(group.members).items():
        sizes = sizes_of(topic, answer, consumers)
        assert max(sizes) - min(sizes) <= 1


@each_assignor
@given(group=groups())
def test_assigned_partitions_are_sorted(name: str, group: DrawnGroup) -> None:
    answer = group.assign(name)
    assert list(answer) == members_in_order(group.members)
    for partitions in answer.values():
        assert partitions == sorted(partitions, key=lambda p: (java_order(p.topic), p.partition))


@each_assignor
@given(group=groups(), random=st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(name: str, group: DrawnGroup, random: Random) -> None:
    counts, members = list(group.counts.items()), list(group.members.items())
    random.shuffle(counts)
    random.shuffle(members)
    shuffled = DrawnGroup(
        dict(counts),
        {
            member_id: MemberSubscription(
                Subscription(
                    tuple(random.sample(member.subscription.topics, len(member.subscription.topics)))
                ),
                member.group_instance_id,
            )
            for member_id, member in members
        },
    )
    assert list(shuffled.assign(name).items()) == list(group.assign(name).items())


@each_without_memory
@given(group=groups(all_static=True), data=st.data())
def test_static_members_keep_their_partitions_under_new_member_ids(
    name: str, group: DrawnGroup, data: st.DataObject
) -> None:
    new_ids = dict(zip(group.members, data.draw(st.permutations(list(group.members))), strict=True))
    renamed = DrawnGroup(group.counts, {new_ids[old]: member for old, member in group.members.items()})
    before, after = group.assign(name), renamed.assign(name)
    assert {new_ids[old]: partitions for old, partitions in before.items()} == after


@given(group=groups())
def test_range_assigns_runs_in_member_order_longer_ones_first(group: DrawnGroup) -> None:
    answer = group.assign("range")
    for topic, consumers in consumers_per_topic(group.members).items():
        dealt = [p.partition for member_id in consumers for p in answer[member_id] if p.topic == topic]
        assert dealt == list(range(group.counts.get(topic, 0)))
        assert all(left >= right for left, right in pairwise(sizes_of(topic, answer, consumers)))


@given(group=groups(same_topics=True), size=st.integers(0, 12))
def test_range_copartitions_topics_of_one_size(group: DrawnGroup, size: int) -> None:
    same_size = DrawnGroup(dict.fromkeys(consumers_per_topic(group.members), size), group.members)
    for partitions in same_size.assign("range").values():
        numbers: dict[str, list[int]] = {topic: [] for topic in same_size.counts}
        for topic, number in partitions:
            numbers[topic].append(number)
        assert len({tuple(run) for run in numbers.values()}) <= 1


@given(group=groups(same_topics=True))
def test_roundrobin_shares_differ_by_one_at_most_where_all_have_the_same_topics(group: DrawnGroup) -> None:
    sizes = [len(partitions) for partitions in group.assign("roundrobin").values()]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@given(group=groups())
def test_roundrobin_equals_a_walk_around_the_members(group: DrawnGroup) -> None:
    circle = members_in_order(group.members)
    walked: dict[MemberId, list[TopicPartition]] = {member_id: [] for member_id in circle}
    for topic in consumers_per_topic(group.members):
        for number in range(group.counts.get(topic, 0)):
            while topic not in group.members[circle[0]].subscription.topics:
                circle.append(circle.pop(0))
            walked[circle[0]].append(TopicPartition(topic, number))
            circle.append(circle.pop(0))
    assert group.assign("roundrobin") == walked


@given(group=groups(same_topics=True), seed=st.randoms(use_true_random=False))
def test_range_by_rack_keeps_plain_shares_and_co_partitioning(group: DrawnGroup, seed: Random) -> None:
    near = {
        member_id: replace(
            member, subscription=replace(member.subscription, rack_id=seed.choice(["x", "y", None]))
        )
        for member_id, member in group.members.items()
    }
    racks = {t: [frozenset(seed.sample("xyz", 1)) for _ in range(n)] for t, n in group.counts.items()}
    plain, by_rack = group.assign("range"), ASSIGNORS["range"].assign(group.counts, near, racks)
    numbers: dict[tuple[int, str], set[tuple[int, ...]]] = {}
    for topic, consumers in consumers_per_topic(group.members).items():
        assert sorted(sizes_of(topic, by_rack, consumers)) == sorted(sizes_of(topic, plain, consumers))
        for member_id in consumers:
            mine = tuple(p.partition for p in by_rack[member_id] if p.topic == topic)
            numbers.setdefault((group.counts.get(topic, 0), member_id), set()).add(mine)
    assert all(len(alike) == 1 for alike in numbers.values())
    assert sorted(p for mine in plain.values() for p in mine) == sorted(
        p for mine in by_rack.values() for p in mine
    )
