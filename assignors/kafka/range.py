"""Kafka's RangeAssignor: it cuts each topic separately into one run of partitions per subscriber."""

from collections.abc import Mapping
from typing import Final

from assignors.kafka.api import NO_RACKS
from assignors.kafka.members import consumers_per_topic, members_in_order
from assignors.kafka.range_racks import assign_by_rack, member_racks
from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    MemberSubscription,
    PartitionRacks,
    TopicPartition,
)


class RangeAssignor:
    """If a topic does not divide evenly, its first subscribers get one partition more than the others.

    Members with the same topics get the same partition numbers of topics of equal size (co-partitioning). The
    first members therefore get the extra partition of *every* topic. If racks of members and partitions are
    known and make a difference, members get partitions on their own rack first (KIP-881), in shares of the
    same size and still co-partitioned. The server-side RangeAssignor of KIP-848 is this rule without racks.
    """

    name: Final = "range"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """See `Assignor.assign`."""
        if racks and member_racks(subscriptions):
            return assign_by_rack(partitions_per_topic, subscriptions, racks)
        assignment: dict[MemberId, list[TopicPartition]] = {
            member_id: [] for member_id in members_in_order(subscriptions)
        }
        for topic, consumers in consumers_per_topic(subscriptions).items():
            quota, members_with_extra = divmod(partitions_per_topic.get(topic, 0), len(consumers))
            start = 0
            for index, member_id in enumerate(consumers):
                end = start + quota + (index < members_with_extra)
                assignment[member_id] += [TopicPartition(topic, partition) for partition in range(start, end)]
                start = end
        return assignment
