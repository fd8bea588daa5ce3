"""The interface of a Kafka assignor, with the names of Kafka's ConsumerPartitionAssignor, and `StickyGroup`,
the input of the sticky algorithms (AbstractStickyAssignor).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Protocol

from kafka_why.contract.protocols.subscriptions import (
    Claim,
    MemberId,
    MemberSubscription,
    PartitionRacks,
    TopicPartition,
    java_order,
)

NO_RACKS: Final[PartitionRacks] = MappingProxyType({})


class Assignor(Protocol):
    """A rule that divides the partitions of the subscribed topics among a group's members.

    An assignor is a pure function. The order of the mappings does not change the result. Where Kafka has the
    order of a Java hash table, these assignors have the order of names.
    """

    @property
    def name(self) -> str:
        """The protocol name in JoinGroup. The members vote for a protocol that all support."""

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """Assign all partitions of the subscribed topics to their subscribers.

        `partitions_per_topic` has each topic's number of partitions. A subscribed topic without metadata, or
        with 0 partitions, is ignored. The result has every member, in the order of `members_in_order`. A
        member's partitions are sorted by topic, then by number. Assignors that are not rack-aware ignore
        `racks`.
        """


def members_in_order(subscriptions: Mapping[MemberId, MemberSubscription]) -> list[MemberId]:
    """Return static members by group.instance.id, then dynamic members by member id.

    So a static member keeps its position when it rejoins with a new member id.
    """

    def sort_key(member_id: MemberId) -> tuple[bool, bytes, bytes]:
        instance_id = subscriptions[member_id].group_instance_id
        # The member id decides between equal instance ids. Kafka has no such case.
        return instance_id is None, java_order(instance_id or ""), java_order(member_id)

    return sorted(subscriptions, key=sort_key)


def consumers_per_topic(subscriptions: Mapping[MemberId, MemberSubscription]) -> dict[str, list[MemberId]]:
    """Return the subscribers of each topic.

    Topics are in Java's order, members in that of `members_in_order`.
    """
    consumers: defaultdict[str, list[MemberId]] = defaultdict(list)
    for member_id in members_in_order(subscriptions):
        # A member may name a topic twice.
        for topic in dict.fromkeys(subscriptions[member_id].subscription.topics):
            consumers[topic].append(member_id)
    return {topic: consumers[topic] for topic in sorted(consumers, key=java_order)}


def replica_racks(racks: PartitionRacks, topic: str, number: int) -> frozenset[str]:
    """Return the racks of a partition's replicas. The set is empty if they are unknown."""
    racks_of_topic = racks.get(topic, ())
    return racks_of_topic[number] if number < len(racks_of_topic) else frozenset()


def do_racks_matter(member_racks: Collection[str], partition_racks: Collection[frozenset[str]]) -> bool:
    """Return True if racks can change the assignment: some member is near some, but not all, partitions."""
    all_racks = frozenset[str]().union(*partition_racks)
    # If all partitions have the same racks, a member is near every partition or near none.
    return not all_racks.isdisjoint(member_racks) and any(racks != all_racks for racks in partition_racks)


NOBODY: Final = -1


@dataclass(slots=True)
class StickyGroup:
    """A group whose members, topics and partitions are numbers.

    A topic's partitions have consecutive numbers. Two claims of a partition in the same generation void each
    other. The owner of a partition is its sole claimant in the highest generation.
    """

    members: list[MemberId]  # in the order of ids, even static ones, as in Kafka's sticky assignors
    topics: list[str]  # existing topics with a subscriber, in the order of names
    first: list[int]  # by topic, the number of its partition 0; the last element is the number of partitions
    topics_of: list[list[int]]  # by member, ascending
    owner: list[int]  # by partition; NOBODY without one, or if it no longer subscribes to the topic
    previous: list[int]  # by partition: its sole claimant in the next lower generation, or NOBODY
    claimants: dict[int, list[int]]  # by partition, all members that claim it, valid or not
    rack_of: list[str | None]  # by member; None if racks make no difference
    replica_racks: list[frozenset[str]]  # by partition, or empty

    @property
    def size(self) -> int:
        """The number of partitions."""
        return self.first[-1]

    def topic_of(self) -> list[int]:
        """Return the topic of each partition."""
        return [t for t in range(len(self.topics)) for _ in range(self.first[t], self.first[t + 1])]

    def has_topic(self, member: int, topic: int) -> bool:
        """Return True if the member subscribes to the topic."""
        topics = self.topics_of[member]
        index = bisect_left(topics, topic)
        return index < len(topics) and topics[index] == topic

    def is_equal(self) -> bool:
        """Return True if all members subscribe to the same topics."""
        return all(topics == self.topics_of[0] for topics in self.topics_of)

    def is_near(self, member: int, partition: int) -> bool:
        """Return True if the member's rack has a replica of the partition, or is unknown."""
        rack = self.rack_of[member]
        return rack is None or rack in self.replica_racks[partition]

    def by_name(
        self, holder: list[int], subscriptions: Mapping[MemberId, MemberSubscription]
    ) -> dict[MemberId, list[TopicPartition]]:
        """Return the assignment with names instead of numbers.

        `holder` has each partition's member, or NOBODY.
        """
        lists: list[list[TopicPartition]] = [[] for _ in self.members]
        for index, topic in enumerate(self.topics):
            start = self.first[index]
            for partition in range(start, self.first[index + 1]):
                if holder[partition] != NOBODY:
                    lists[holder[partition]].append(TopicPartition(topic, partition - start))
        partitions = dict(zip(self.members, lists, strict=True))
        return {member_id: partitions[member_id] for member_id in members_in_order(subscriptions)}


def number_group(
    partitions_per_topic: Mapping[str, int],
    subscriptions: Mapping[MemberId, MemberSubscription],
    claims: Mapping[MemberId, Claim],
    racks: PartitionRacks = NO_RACKS,
) -> StickyGroup:
    """Return the StickyGroup of these members, with `claims` to their earlier partitions."""
    members = sorted(subscriptions, key=java_order)
    subscribed = [subscriptions[member_id].subscription.topics for member_id in members]
    all_subscribed = set().union(*set(subscribed))
    topics = sorted((t for t in all_subscribed if partitions_per_topic.get(t, 0) > 0), key=java_order)
    number_of = {topic: index for index, topic in enumerate(topics)}
    # Most groups have few different subscriptions, so each distinct subscription is processed once.
    numbers_of = {
        topic_names: sorted({number_of[t] for t in topic_names if t in number_of})
        for topic_names in set(subscribed)
    }
    first = [0, *accumulate(partitions_per_topic[topic] for topic in topics)]
    group = StickyGroup(
        members=members,
        topics=topics,
        first=first,
        topics_of=[numbers_of[topic_names] for topic_names in subscribed],
        owner=[NOBODY] * first[-1],
        previous=[NOBODY] * first[-1],
        claimants={},
        rack_of=[None] * len(members),
        replica_racks=[],
    )
    _settle_claims(group, number_of, [claims[member_id] for member_id in members])
    _set_racks(group, [subscriptions[member_id].subscription.rack_id or None for member_id in members], racks)
    return group


def _settle_claims(group: StickyGroup, number_of: Mapping[str, int], claims: list[Claim]) -> None:
    """Set the group's claimants, owners and previous owners from the members' claims."""
    for member, claim in enumerate(claims):
        for partition in _known_partitions(group, number_of, claim):
            group.claimants.setdefault(partition, []).append(member)
    topic_of = group.topic_of()
    for partition, claimants in group.claimants.items():
        has_rivals = len(claimants) > 1
        owner, previous = _sole_claimants(claimants, claims) if has_rivals else (claimants[0], NOBODY)
        if owner != NOBODY and group.has_topic(owner, topic_of[partition]):
            group.owner[partition] = owner
        if previous != NOBODY and group.has_topic(previous, topic_of[partition]):
            group.previous[partition] = previous


def _sole_claimants(claimants: list[int], claims: list[Claim]) -> tuple[int, int]:
    """Return the sole claimant in the highest generation, and in the next lower. Each may be NOBODY."""
    generations = sorted({claims[member].generation_id for member in claimants}, reverse=True)
    sole = [NOBODY, NOBODY]
    for index, generation in enumerate(generations[:2]):
        of_generation = {member for member in claimants if claims[member].generation_id == generation}
        if len(of_generation) == 1:
            sole[index] = of_generation.pop()
    return sole[0], sole[1]


def _known_partitions(group: StickyGroup, number_of: Mapping[str, int], claim: Claim) -> Iterator[int]:
    """Yield the numbers of the claimed partitions that the group has."""
    for topic, number in claim.partitions:
        index = number_of.get(topic)
        if index is not None and 0 <= number < group.first[index + 1] - group.first[index]:
            yield group.first[index] + number


def _set_racks(group: StickyGroup, member_racks: list[str | None], racks: PartitionRacks) -> None:
    """Store the racks in the group if they can change the assignment."""
    known_racks = {rack for rack in member_racks if rack is not None}
    if not known_racks or not racks:
        return
    replicas = [
        replica_racks(racks, topic, number)
        for index, topic in enumerate(group.topics)
        for number in range(group.first[index + 1] - group.first[index])
    ]
    if do_racks_matter(known_racks, replicas):
        group.rack_of, group.replica_racks = member_racks, replicas
