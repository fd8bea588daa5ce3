"""A group in numbers, the input of the sticky algorithms, with partition owners (AbstractStickyAssignor)."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from kafka_why.contract.protocols.subscriptions import (
    Claim,
    MemberId,
    MemberSubscription,
    PartitionRacks,
    TopicPartition,
    java_order,
)
from kafka_why.sticky.api import NO_RACKS, do_racks_matter, members_in_order, replica_racks

NOBODY: Final = -1


@dataclass(slots=True)
class StickyGroup:
    """Members, topics and partitions by number; the partitions of one topic have consecutive numbers.

    Members are ordered by member id, static members too, as in Kafka's sticky assignors. Topics are those
    that exist and have a subscriber, by name. `owner` of a partition is the one valid claimant of the highest
    generation. `previous` is the one valid claimant of the next lower generation, or of the highest if the
    claims of the highest are void. Either is `NOBODY` if that member no longer subscribes to the topic. Racks
    are None and empty where they make no difference.
    """

    members: list[MemberId]
    topics: list[str]
    first: list[int]  # by topic, the number of its partition 0; then the number of all partitions
    topics_of: list[list[int]]  # by member, ascending
    owner: list[int]  # by partition
    previous: list[int]  # by partition
    claimants: dict[int, list[int]]  # by partition, all members that claim it, valid or not
    rack_of: list[str | None]  # by member
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
        place = bisect_left(topics, topic)
        return place < len(topics) and topics[place] == topic

    def is_equal(self) -> bool:
        """Return True if all members have the same topics."""
        return all(topics == self.topics_of[0] for topics in self.topics_of)

    def is_near(self, member: int, partition: int) -> bool:
        """Return True if racks allow it: the member's rack is unknown, or has a replica of the partition."""
        rack = self.rack_of[member]
        return rack is None or rack in self.replica_racks[partition]

    def answer(
        self, holder: list[int], subscriptions: Mapping[MemberId, MemberSubscription]
    ) -> dict[MemberId, list[TopicPartition]]:
        """Replace numbers by names. `holder` is by partition; partitions held by `NOBODY` are omitted."""
        lists: list[list[TopicPartition]] = [[] for _ in self.members]
        for index, topic in enumerate(self.topics):
            start = self.first[index]
            for partition in range(start, self.first[index + 1]):
                if holder[partition] != NOBODY:
                    lists[holder[partition]].append(TopicPartition(topic, partition - start))
        by_name = dict(zip(self.members, lists, strict=True))
        return {member_id: by_name[member_id] for member_id in members_in_order(subscriptions)}


def number_group(
    partitions_per_topic: Mapping[str, int],
    subscriptions: Mapping[MemberId, MemberSubscription],
    claims: Mapping[MemberId, Claim],
    racks: PartitionRacks = NO_RACKS,
) -> StickyGroup:
    """Return the group in numbers, with the owner and previous owner of each partition."""
    members = sorted(subscriptions, key=java_order)
    wishes = [subscriptions[member_id].subscription.topics for member_id in members]
    wanted = set().union(*set(wishes))
    topics = sorted((t for t in wanted if partitions_per_topic.get(t, 0) > 0), key=java_order)
    number_of = {topic: index for index, topic in enumerate(topics)}
    # Most groups have few different subscriptions: each is processed once.
    numbers_of = {wish: sorted({number_of[t] for t in wish if t in number_of}) for wish in set(wishes)}
    first = [0, *accumulate(partitions_per_topic[topic] for topic in topics)]
    group = StickyGroup(
        members=members,
        topics=topics,
        first=first,
        topics_of=[numbers_of[wish] for wish in wishes],
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
    """Set owners: the claim of the highest generation counts; two in the same generation void each other."""
    for member, claim in enumerate(claims):
        for partition in _known_partitions(group, number_of, claim):
            group.claimants.setdefault(partition, []).append(member)
    topic_of = group.topic_of()
    for partition, rivals in group.claimants.items():
        owner, previous = _settle(rivals, claims) if len(rivals) > 1 else (rivals[0], NOBODY)
        if owner != NOBODY and group.has_topic(owner, topic_of[partition]):
            group.owner[partition] = owner
        if previous != NOBODY and group.has_topic(previous, topic_of[partition]):
            group.previous[partition] = previous


def _settle(rivals: list[int], claims: list[Claim]) -> tuple[int, int]:
    """Return the sole claimant of the latest generation, and that of the previous one, or `NOBODY`."""
    generations = sorted({claims[member].generation_id for member in rivals}, reverse=True)
    sole = [NOBODY, NOBODY]
    for place, generation in enumerate(generations[:2]):
        claimants = {member for member in rivals if claims[member].generation_id == generation}
        if len(claimants) == 1:
            sole[place] = claimants.pop()
    return sole[0], sole[1]


def _known_partitions(group: StickyGroup, number_of: Mapping[str, int], claim: Claim) -> Iterator[int]:
    for topic, number in claim.partitions:
        index = number_of.get(topic)
        if index is not None and 0 <= number < group.first[index + 1] - group.first[index]:
            yield group.first[index] + number


def _set_racks(group: StickyGroup, member_racks: list[str | None], racks: PartitionRacks) -> None:
    """Set the racks of members and partitions, if they can change the assignment."""
    known = {rack for rack in member_racks if rack is not None}
    if not known or not racks:
        return
    replicas = [
        replica_racks(racks, topic, number)
        for index, topic in enumerate(group.topics)
        for number in range(group.first[index + 1] - group.first[index])
    ]
    if do_racks_matter(known, replicas):
        group.rack_of, group.replica_racks = member_racks, replicas
