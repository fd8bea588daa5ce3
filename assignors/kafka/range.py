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

    consumers: list[MemberId]
    rack_of: Mapping[MemberId, str]
    partition_racks: list[frozenset[str]]
    unassigned: dict[int, None] = field(init=False)
    assigned: dict[MemberId, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.unassigned = dict.fromkeys(range(len(self.partition_racks)))
        self.assigned = {member_id: [] for member_id in self.consumers}
        self._quota, self._extras_left = divmod(len(self.partition_racks), len(self.consumers))

    def needs_racks(self) -> bool:
        racks = {self.rack_of[member_id] for member_id in self.consumers if member_id in self.rack_of}
        return do_racks_matter(racks, self.partition_racks)

    def is_near(self, member_id: MemberId, partition: int) -> bool:
        rack = self.rack_of.get(member_id)
        # A member without a rack is near all, as in Kafka.
        return rack is None or rack in self.partition_racks[partition]

    def capacity(self, member_id: MemberId) -> int:
        return max(0, self._quota + (self._extras_left > 0) - len(self.assigned[member_id]))

    def assign(self, member_id: MemberId, partitions: Collection[int]) -> None:
        self.assigned[member_id] += partitions
        if partitions and len(self.assigned[member_id]) > self._quota:
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

    Topics with the same subscribers and as many partitions stay co-partitioned: a partition number goes to
    the first member that is near that partition of all these topics.
    """
    rack_of = member_racks(subscriptions)
    topics: dict[str, _Topic] = {}
    alike: defaultdict[tuple[tuple[MemberId, ...], int], list[_Topic]] = defaultdict(list)
    for name, consumers in consumers_per_topic(subscriptions).items():
        count = partitions_per_topic.get(name, 0)
        topics[name] = topic = _Topic(
            consumers, rack_of, [replica_racks(racks, name, p) for p in range(count)]
        )
        alike[tuple(consumers), count].append(topic)
    if any(topic.needs_racks() for topic in topics.values()):
        for group in alike.values():
            if len(group) > 1:
                _assign_nearby_together(group)
            elif group[0].needs_racks():
                _assign_ranges(group[0], near_only=True)
    assignment: dict[MemberId, list[TopicPartition]] = {m: [] for m in members_in_order(subscriptions)}
    for name, topic in topics.items():
        _assign_ranges(topic, near_only=False)
        for member_id, partitions in topic.assigned.items():
            assignment[member_id] += [TopicPartition(name, partition) for partition in sorted(partitions)]
    return assignment


def _assign_ranges(topic: _Topic, *, near_only: bool) -> None:
    for member_id in topic.consumers:
        fitting = [p for p in topic.unassigned if not near_only or topic.is_near(member_id, p)]
        topic.assign(member_id, fitting[: topic.capacity(member_id)])


def _assign_nearby_together(topics: list[_Topic]) -> None:
    """Assign each partition number of the co-partitioned topics to one member.

    The member is near these partitions and has capacity in all topics.
    """
    remaining = dict.fromkeys(topics[0].consumers)
    for partition in range(len(topics[0].partition_racks)):
        for member_id in remaining:
            if all(topic.is_near(member_id, partition) and topic.capacity(member_id) for topic in topics):
                break
        else:
            continue
        for topic in topics:
            topic.assign(member_id, [partition])
        if not any(topic.capacity(member_id) for topic in topics):
            del remaining[member_id]


class RangeAssignor:
    """Kafka's range rule. If a topic does not divide evenly, its first subscribers get one partition more.

    Members with the same topics get the same partition numbers of topics of equal size (co-partitioning). The
    first members therefore get the extra partition of *every* topic. If racks make a difference, members get
    partitions on their own rack first (KIP-881), in shares of the same size and still co-partitioned. The
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
