"""The broker's UniformAssignor (KIP-848), its default: balance has priority over stickiness."""

from collections.abc import Mapping
from typing import Final

from assignors.kafka.api import NO_RACKS
from assignors.kafka.sticky.group import NOBODY, StickyGroup, number_group
from assignors.kafka.uniform_unequal import assign_unequal
from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    MemberSubscription,
    PartitionRacks,
    TopicPartition,
)
from kafka_why.contract.protocols.user_data import cooperative_claim


class UniformAssignor:
    """Kafka's own rule step by step, for members with the same topics and for members with different ones.

    A member's current target assignment is its `owned_partitions`. A partition that two members own counts as
    unassigned; on Kafka's broker this cannot happen. The rule is not rack-aware, as in Kafka 4.0 and later.
    Where Kafka follows the order of a hash table, this rule orders members by member id. Where Kafka orders
    topics by topic id, this rule orders them by name.
    """

    name: Final = "uniform"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """See `Assignor.assign`."""
        claims = {m: cooperative_claim(member.subscription) for m, member in subscriptions.items()}
        group = number_group(partitions_per_topic, subscriptions, claims)
        if not group.members:
            return {}
        holder = _assign_equal(group) if group.is_equal() else assign_unequal(group)
        return group.answer(holder, subscriptions)


def _assign_equal(group: StickyGroup) -> list[int]:
    """UniformHomogeneousAssignmentBuilder as of Kafka 4.3.

    Members keep their first partitions, up to their share. The first members that own more than the share
    without an extra partition keep one more. The last members get one more each until every extra partition
    is assigned.
    """
    holder = list(group.owner)
    unassigned = [partition for partition, owner in enumerate(holder) if owner == NOBODY]
    owned: list[list[int]] = [[] for _ in group.members]
    for partition, owner in enumerate(holder):
        if owner != NOBODY:
            owned[owner].append(partition)
    quota, extras_left = divmod(group.size, len(group.members))
    takers: list[int] = []
    for member, partitions in enumerate(owned):
        members_left = len(group.members) - member
        has_extra = extras_left > 0 and (len(partitions) > quota or members_left <= extras_left)
        extras_left -= has_extra
        share = quota + has_extra
        unassigned += partitions[share:]
        takers += [member] * (share - len(partitions))
    for partition, member in zip(unassigned, takers, strict=True):
        holder[partition] = member
    return holder
