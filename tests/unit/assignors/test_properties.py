"""Properties of any group's assignment under every Kafka assignor. `test_live.py` has Kafka's own answers."""

from collections import Counter
from dataclasses import dataclass
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
from kafka_why.sticky.api import members_in_order

NAMES = st.text(st.sampled_from("ab-1\N{HALFWIDTH WHITE CIRCLE}\N{GRINNING FACE}"), min_size=1, max_size=3)

EVERY = {**ASSIGNORS, **BROKER_ASSIGNORS}

each_assignor = pytest.mark.parametrize("name", EVERY)


@dataclass(frozen=True)
class DrawnGroup:
    counts: dict[str, int]
    members: dict[MemberId, MemberSubscription]

    def assign(self, name: str) -> dict[MemberId, list[TopicPartition]]:
        return EVERY[name].assign(self.counts, self.members)


@st.composite
def groups(draw: st.DrawFn) -> DrawnGroup:
    """Any group: unknown, empty and repeated topics, members without topics, static and dynamic ones."""
    topics = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    counts = draw(st.dictionaries(st.sampled_from([*topics, "unsubscribed"]), st.integers(0, 12)))
    wishes = st.lists(st.sampled_from(topics), max_size=6).map(tuple)
    member_ids = draw(st.lists(NAMES, max_size=8, unique=True))
    instance_ids = draw(st.lists(NAMES, min_size=len(member_ids), max_size=8, unique=True))
    members = {
        member_id: MemberSubscription(
            Subscription(draw(wishes)), instance_id if draw(st.booleans()) else None
        )
        for member_id, instance_id in zip(member_ids, instance_ids, strict=False)
    }
    return DrawnGroup(counts, members)


@each_assignor
@given(group=groups())
def test_every_partition_of_a_subscribed_topic_is_assigned_once_to_a_subscriber(
    name: str, group: DrawnGroup
) -> None:
    """Members and their partitions are sorted."""
    answer = group.assign(name)
    assert list(answer) == members_in_order(group.members)
    for member_id, partitions in answer.items():
        assert partitions == sorted(partitions, key=lambda p: (java_order(p.topic), p.partition))
        assert {topic for topic, _ in partitions} <= set(group.members[member_id].subscription.topics)
    assigned = Counter(partition for partitions in answer.values() for partition in partitions)
    wanted = {topic for member in group.members.values() for topic in member.subscription.topics}
    assert assigned == Counter(
        TopicPartition(topic, number)
        for topic, count in group.counts.items()
        if topic in wanted
        for number in range(count)
    )


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
