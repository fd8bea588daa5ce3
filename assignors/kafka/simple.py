"""The broker's SimpleAssignor of share groups (KIP-932): any number of members may have a partition.

Rows SB1 to SB10 of docs/rules-share.md. Source: SimpleAssignor, SimpleHomogeneousAssignmentBuilder,
SimpleHeterogeneousAssignmentBuilder.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition

NAME: Final = "simple"

PartitionsByMember = dict[MemberId, set[TopicPartition]]
"""Partitions by member. A partition may be held by several members."""


def assign(
    partitions: Mapping[str, Collection[int]],
    subscriptions: Mapping[MemberId, Collection[str]],
    last: Mapping[MemberId, Iterable[TopicPartition]],
) -> dict[MemberId, list[TopicPartition]]:
    """Assign each partition to at least one subscriber of its topic.

    `partitions` are each topic's partition numbers, `subscriptions` each member's topic names, and `last` is
    the last assignment. The result has an entry for every member, sorted by topic and number.

    If all members subscribe to the same topics, even to some that are not in `partitions`, all partitions are
    divided together, as one pool. Otherwise each topic is a pool, so the first members get the remainder of
    every topic (row SB10). Where Kafka follows the order of a hash table, this rule orders members by id and
    partitions by topic and number.
    """
    members = sorted(subscriptions)
    last_held = {member: set(last.get(member, ())) for member in members}
    result: PartitionsByMember = {member: set() for member in members}
    for pool, subscribers in _pools(partitions, subscriptions):
        in_pool = set(pool)
        held_of_pool = {member: last_held[member] & in_pool for member in subscribers}
        for member, assigned in _divide(pool, held_of_pool).items():
            result[member] |= assigned
    return {member: sorted(result[member]) for member in members}


def _pools(
    partitions: Mapping[str, Collection[int]], subscriptions: Mapping[MemberId, Collection[str]]
) -> Iterable[tuple[list[TopicPartition], list[MemberId]]]:
    """Yield each pool: its partitions, sorted, and the ids of the members among which they are divided."""
    subscribed = {name for names in subscriptions.values() for name in names}
    pools = {
        name: [TopicPartition(name, number) for number in sorted(partitions.get(name, ()))]
        for name in sorted(subscribed)
    }
    if all(subscribed == set(names) for names in subscriptions.values()):
        yield [partition for pool in pools.values() for partition in pool], sorted(subscriptions)
        return
    for name, pool in pools.items():
        yield pool, sorted(member for member, names in subscriptions.items() if name in names)


def quotas(partitions: int, members: int) -> list[int]:
    """Rows SB1 and SB2: return the number of partitions of each member, in the order of the members.

    With more members than partitions, each partition has the same number of members. Kafka computes in
    floating point and is off by one in rare cases.
    """
    if not partitions or not members:
        return [0] * members
    quota_sum = partitions * _members_per_partition(partitions, members)
    # The sum of the first `index` quotas is that part of `quota_sum`, rounded up: `-(-x // y)`.
    ends = [-(-quota_sum * index // members) for index in range(members + 1)]
    return [end - begin for begin, end in pairwise(ends)]


def _members_per_partition(partitions: int, members: int) -> int:
    """Return the members divided by the partitions, rounded up."""
    return -(-members // partitions)


def _divide(pool: Sequence[TopicPartition], held: PartitionsByMember) -> PartitionsByMember:
    """Divide the pool among the members of `held`, each member's present partitions of the pool. Members keep
    these, if possible. Change `held` in place, and return it.
    """
    members = list(held)
    quota = dict(zip(members, quotas(len(pool), len(members)), strict=True))
    if not pool or not members:
        return held
    members_per_partition = _members_per_partition(len(pool), len(members))
    unfilled = [member for member in members if len(held[member]) < quota[member]]
    for member in members:  # row SB4: a member above its quota gives up its last partitions
        held[member] = set(sorted(held[member])[: quota[member]])
    holders: dict[TopicPartition, list[MemberId]] = {partition: [] for partition in pool}
    for member in members:
        for partition in held[member]:
            holders[partition].append(member)
    for partition in pool:  # row SB5: the first of too many holders give the partition up
        surplus_count = max(len(holders[partition]) - members_per_partition, 0)
        surplus = holders[partition][:surplus_count]
        del holders[partition][:surplus_count]
        for member in surplus:
            held[member].remove(partition)
            if member not in unfilled:
                unfilled.append(member)
    _fill(holders, held, quota, members_per_partition, unfilled)
    return held


def _fill(
    holders: Mapping[TopicPartition, list[MemberId]],
    held: PartitionsByMember,
    quota: Mapping[MemberId, int],
    members_per_partition: int,
    unfilled: list[MemberId],
) -> None:
    """Row SB6: add members to each partition until it has enough.

    `unfilled` are the members below their quota. They form one cycle, which continues from partition to
    partition. For each member that a partition lacks, the inner loop advances to the next member of the cycle
    that does not have the partition. If a whole cycle adds no member, all unfilled members already have the
    partition. Then the function returns, and this partition, and perhaps a later one, has one member less.
    """
    index, has_added = 0, False  # position in the cycle; True if this cycle has added a member
    for partition in sorted(holders, key=lambda partition: not holders[partition]):  # the held ones first
        for _ in range(members_per_partition - len(holders[partition])):
            while True:
                if index == len(unfilled):
                    if not has_added:
                        return
                    index, has_added = 0, False
                    continue
                member = unfilled[index]
                if len(held[member]) >= quota[member]:
                    del unfilled[index]
                    continue
                index += 1
                if partition not in held[member]:
                    held[member].add(partition)
                    has_added = True
                    break
