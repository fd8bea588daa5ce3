"""Kafka's RoundRobinAssignor: it assigns the partitions of all topics one by one, in turns, to members."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    MemberSubscription,
    PartitionRacks,
    TopicPartition,
)
from kafka_why.sticky.api import NO_RACKS, consumers_per_topic, members_in_order


class RoundRobinAssignor:
    """Kafka's round-robin rule: each partition goes to the next member that subscribes to its topic.

    With the same topics, members' numbers of partitions differ by at most one. With different topics they may
    differ by much more, because members without the topic lose their turn.
    """

    name: Final = "roundrobin"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """Assign in turns. The rule is not rack-aware, as in Kafka."""
        members = members_in_order(subscriptions)
        # Kafka seats all members in a circle and skips those without the topic.
        seats = {member_id: seat for seat, member_id in enumerate(members)}
        assignment: dict[MemberId, list[TopicPartition]] = {member_id: [] for member_id in members}
        next_seat = 0
        for topic, consumers in consumers_per_topic(subscriptions).items():
            # The first partition goes to the first subscriber at or after `next_seat`. After that the topic's
            # subscribers take turns.
            turn = bisect_left(consumers, next_seat, key=seats.__getitem__)
            for partition in range(partitions_per_topic.get(topic, 0)):
                member_id = consumers[turn % len(consumers)]
                assignment[member_id].append(TopicPartition(topic, partition))
                next_seat = seats[member_id] + 1
                turn += 1
        return assignment
