"""Kafka's RangeAssignor: it cuts each topic separately into one run of partitions per subscriber."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    MemberSubscription,
    PartitionRacks,
    TopicPartition,
)
from kafka_why.sticky.api import (
    NO_RACKS,
    consumers_per_topic,
    do_racks_matter,
    members_in_order,
    replica_racks,
)


@dataclass
class _Topic:
    """One topic during the assignment."""

    consumers: list[MemberId]  # its subscribers, in the order in which they get partitions
    rack_of: Mapping[MemberId, str]  # without members that name no rack
    partition_racks: list[frozenset[str]]  # by partition number, the racks of its replicas
    unassigned: dict[int, None] = field(init=False)  # an ordered set of partition numbers
    assigned: dict[MemberId, list[int]] = field(init=False)  # partition numbers

    def __post_init__(self) -> None:
        self.unassigned = dict.fromkeys(range(len(self.partition_racks)))
        self.assigned = {member_id: [] for member_id in self.consumers}
        # Each consumer gets `_quota` partitions. `_extras_left` consumers may still get one more.
        self._quota, self._extras_left = divmod(len(self.partition_racks), len(self.consumers))

    def needs_racks(self) -> bool:
        """Return True if the racks of members and replicas make a difference (`do_racks_matter`)."""
        racks = {self.rack_of[member_id] for member_id in self.consumers if member_id in self.rack_of}
        return do_racks_matter(racks, self.partition_racks)

    def is_near(self, member_id: MemberId, partition: int) -> bool:
        """Return True if the partition has a replica on the member's rack, or the member names no rack."""
        rack = self.rack_of.get(member_id)
        return rack is None or rack in self.partition_racks[partition]

    def capacity(self, member_id: MemberId) -> int:
        """Return the number of partitions that the member may still get: up to the quota, or one more while
        extra partitions are left.
        """
        return max(0, self._quota + (self._extras_left > 0) - len(self.assigned[member_id]))

    def assign(self, member_id: MemberId, partitions: Collection[int]) -> None:
        """Give the member partitions, at most its capacity."""
        self.assigned[member_id] += partitions
        if partitions and len(self.assigned[member_id]) > self._quota:  # the last of them is its extra one
            self._extras_left -= 1
        for partition in partitions:
            del self.unassigned[partition]


def member_racks(subscriptions: Mapping[MemberId, MemberSubscription]) -> dict[MemberId, str]:
    """Return the racks of the members that name one."""
    return {
        member_id: member.subscription.rack_id
        for member_id, member in subscriptions.items()
        if member.subscription.rack_id
    }


def assign_by_rack(
    partitions_per_topic: Mapping[str, int],
    subscriptions: Mapping[MemberId, MemberSubscription],
    racks: PartitionRacks,
) -> dict[MemberId, list[TopicPartition]]:
    """Return range's assignment with near partitions first, or plain range if racks make no difference.

    A partition is near a member if it has a replica on the member's rack. Topics with the same subscribers
    and the same number of partitions stay co-partitioned: a partition number goes to the first member that is
    near that partition of all these topics.
    """
    rack_of = member_racks(subscriptions)
    topics: dict[str, _Topic] = {}
    # The topics with these subscribers and this number of partitions.
    co_partitioned: defaultdict[tuple[tuple[MemberId, ...], int], list[_Topic]] = defaultdict(list)
    for name, consumers in consumers_per_topic(subscriptions).items():
        count = partitions_per_topic.get(name, 0)
        topics[name] = topic = _Topic(
            consumers, rack_of, [replica_racks(racks, name, p) for p in range(count)]
        )
        co_partitioned[tuple(consumers), count].append(topic)
    if any(topic.needs_racks() for topic in topics.values()):
        for same_size in co_partitioned.values():
            if len(same_size) > 1:
                _assign_nearby_together(same_size)
            elif same_size[0].needs_racks():
                _assign_ranges(same_size[0], near_only=True)
    assignment: dict[MemberId, list[TopicPartition]] = {m: [] for m in members_in_order(subscriptions)}
    for name, topic in topics.items():
        _assign_ranges(topic, near_only=False)
        for member_id, partitions in topic.assigned.items():
            assignment[member_id] += [TopicPartition(name, partition) for partition in sorted(partitions)]
    return assignment


def _assign_ranges(topic: _Topic, *, near_only: bool) -> None:
    """Give each subscriber its next unassigned partitions, up to its capacity. With `near_only`, give it only
    near ones.
    """
    for member_id in topic.consumers:
        fitting = [p for p in topic.unassigned if not near_only or topic.is_near(member_id, p)]
        topic.assign(member_id, fitting[: topic.capacity(member_id)])


def _assign_nearby_together(topics: list[_Topic]) -> None:
    """Assign each partition number of the co-partitioned topics to one member.

    The member is near these partitions and has capacity in all topics. If there is no such member, the number
    stays unassigned.
    """
    with_capacity = dict.fromkeys(topics[0].consumers)  # an ordered set
    for partition in range(len(topics[0].partition_racks)):
        for member_id in with_capacity:
            if all(topic.is_near(member_id, partition) and topic.capacity(member_id) for topic in topics):
                break
        else:
            continue
        for topic in topics:
            topic.assign(member_id, [partition])
        if not any(topic.capacity(member_id) for topic in topics):
            del with_capacity[member_id]


class RangeAssignor:
    """Kafka's range rule. If a topic does not divide evenly, its first subscribers get one partition more.

    Members with the same topics get the same partition numbers of topics of equal size (co-partitioning). The
    first members therefore get the extra partition of *every* topic. If racks make a difference, members get
    partitions on their own rack first (KIP-881). Shares have the same size and stay co-partitioned. The
    server-side RangeAssignor of KIP-848 is this rule without racks.
    """

    name: Final = "range"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
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
