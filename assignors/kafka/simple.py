"""The broker's SimpleAssignor of share groups (KIP-932): any number of members may have a partition.

Rows SB1 to SB10. Source: SimpleAssignor, SimpleHomogeneousAssignmentBuilder,
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
    """Assign each of these partitions, by topic, to at least one subscriber of its topic.

    `subscriptions` are each member's topic names, and `last` is the last assignment. A topic without an entry
    in `partitions` is not assigned, but counts when subscriptions are compared. The result has an entry for
    every member, sorted by topic and number.

    If all members subscribe to the same topics, all partitions are one pool. Otherwise each topic is assigned
    separately, and the first members get the remainder of every topic (row SB10). Where Kafka follows the
    order of a hash table, this rule orders members by id and partitions by topic and number.
    """
    members = sorted(subscriptions)
    held = {member: set(last.get(member, ())) for member in members}
    result: PartitionsByMember = {member: set() for member in members}
    for pool, sharers in _pools(partitions, subscriptions):
        of_pool = set(pool)
        for member, dealt in _divide(pool, {m: held[m] & of_pool for m in sharers}).items():
            result[member] |= dealt
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
    floating point and is off by one in rare cases (SK13).
    """
    if not partitions or not members:
        return [0] * members
    places = partitions * _members_per_partition(partitions, members)
    ends = [-(-places * index // members) for index in range(members + 1)]
    return [end - begin for begin, end in pairwise(ends)]


def _members_per_partition(partitions: int, members: int) -> int:
    return -(-members // partitions)


def _divide(pool: Sequence[TopicPartition], held: PartitionsByMember) -> PartitionsByMember:
    """Divide the pool among the members of `held`, which is changed. Members keep what they hold if
    possible.
    """
    members = list(held)
    quota = dict(zip(members, quotas(len(pool), len(members)), strict=True))
    if not pool or not members:
        return held
    sharing = _members_per_partition(len(pool), len(members))
    unfilled = [member for member in members if len(held[member]) < quota[member]]
    for member in members:  # row SB4
        held[member] = set(sorted(held[member])[: quota[member]])
    holders: dict[TopicPartition, list[MemberId]] = {partition: [] for partition in pool}
    for member in members:
        for partition in held[member]:
            holders[partition].append(member)
    for partition in pool:  # row SB5
        too_many = holders[partition][: max(len(holders[partition]) - sharing, 0)]
        del holders[partition][: len(too_many)]
        for member in too_many:
            held[member].remove(partition)
            if member not in unfilled:
                unfilled.append(member)
    _fill(holders, held, quota, sharing, unfilled)
    return held


def _fill(
    holders: Mapping[TopicPartition, list[MemberId]],
    held: PartitionsByMember,
    quota: Mapping[MemberId, int],
    sharing: int,
    unfilled: list[MemberId],
) -> None:
    """Row SB6: add members to each partition until it has enough.

    All partitions take from one cycle over the members below their quota. The cycle ends after a pass that
    places nothing, so a partition may have one member less than the others.
    """
    at, has_placed = 0, False
    for partition in sorted(holders, key=lambda partition: not holders[partition]):  # the held ones first
        for _ in range(sharing - len(holders[partition])):
            while True:
                if at == len(unfilled):
                    if not has_placed:
                        return
                    at, has_placed = 0, False
                    continue
                member = unfilled[at]
                if len(held[member]) >= quota[member]:
                    del unfilled[at]
                    continue
                at += 1
                if partition not in held[member]:
                    held[member].add(partition)
                    has_placed = True
                    break
