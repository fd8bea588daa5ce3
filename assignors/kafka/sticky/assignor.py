"""Kafka's StickyAssignor (KIP-54) and CooperativeStickyAssignor (KIP-429)."""

from collections.abc import Mapping
from typing import Final

from assignors.kafka.api import NO_RACKS
from assignors.kafka.sticky.equal_subscriptions import assign_equal
from assignors.kafka.sticky.group import NOBODY, StickyGroup, number_group
from assignors.kafka.sticky.unequal_subscriptions import assign_exact
from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    MemberSubscription,
    PartitionRacks,
    TopicPartition,
)
from kafka_why.contract.protocols.user_data import Claim, cooperative_claim, sticky_claim


class StickyAssignor:
    """Assigns as evenly as the subscriptions allow and moves as few partitions as that permits.

    A member's earlier partitions are those in its user data (`kafka_why.contract.protocols.user_data`). If
    two members claim a partition, the claim of the higher generation counts; in the same generation neither
    claim counts. A near rack has priority over staying, as in Kafka.

    If members have the same topics and racks make no difference, the rule is Kafka's own, step by step
    (`assignors.kafka.sticky.equal_subscriptions`). Otherwise the rule reaches Kafka's aims exactly
    (`sticky_exact`). Kafka's own rule does not: it leaves loads uneven or moves more than necessary, gives
    members partitions they no longer subscribe to, and takes partitions that are near no rack from their
    owner at every rebalance.
    """

    name: Final = "sticky"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """See `Assignor.assign`."""
        claims = {m: sticky_claim(member.subscription) for m, member in subscriptions.items()}
        return assign_sticky(partitions_per_topic, subscriptions, claims, racks)


class CooperativeStickyAssignor:
    """Sticky for members that keep their partitions while they join, so that consumption does not stop.

    A partition that moves is unassigned in the round in which its owner loses it. That owner joins again, and
    the next round gives the partition to its new owner. A partition that two members claim in the same
    generation is first taken from both. Earlier partitions are the owned partitions of the subscription.
    """

    name: Final = "cooperative-sticky"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """See `Assignor.assign`. A partition that its owner must revoke first is in no member's list."""
        claims = {m: cooperative_claim(member.subscription) for m, member in subscriptions.items()}
        group = number_group(partitions_per_topic, subscriptions, claims, racks)
        holder = _assign(group)
        for partition, claimants in group.claimants.items():
            taker = holder[partition]
            if taker != group.owner[partition] and any(member != taker for member in claimants):
                holder[partition] = NOBODY
        return group.answer(holder, subscriptions)


def assign_sticky(
    partitions_per_topic: Mapping[str, int],
    subscriptions: Mapping[MemberId, MemberSubscription],
    claims: Mapping[MemberId, Claim],
    racks: PartitionRacks = NO_RACKS,
) -> dict[MemberId, list[TopicPartition]]:
    """Apply the sticky rule to claims of any source. `claims` has an entry for each member, perhaps empty."""
    group = number_group(partitions_per_topic, subscriptions, claims, racks)
    return group.answer(_assign(group), subscriptions)


def _assign(group: StickyGroup) -> list[int]:
    if not group.members:
        return []
    if group.is_equal() and not group.replica_racks:
        return assign_equal(group)
    return assign_exact(group)
