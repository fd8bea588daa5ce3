"""Kafka's StickyAssignor (KIP-54) and CooperativeStickyAssignor (KIP-429)."""

from collections.abc import Mapping
from typing import Final

from assignors.kafka.api import NO_RACKS, MemberId, MemberSubscription, PartitionRacks, TopicPartition
from assignors.kafka.sticky.equal_subscriptions import assign_equal
from assignors.kafka.sticky.group import NOBODY, StickyGroup, number_group
from assignors.kafka.sticky.unequal_subscriptions import assign_exact
from assignors.kafka.user_data import Claim, cooperative_claim, sticky_claim


class StickyAssignor:
    """As even as the subscriptions allow, and with that as few partitions moved as can be.

    A member's earlier partitions are those in its user data (`assignors.kafka.user_data`). Where two members
    claim one, the higher generation counts; in the same generation neither has it. Near racks go before
    staying, as in Kafka.

    Where members have the same topics and racks are of no use, the rule is Kafka's own step by step
    (`assignors.kafka.sticky.equal_subscriptions`). Otherwise it is an exact one for Kafka's aims
    (`sticky_exact`). Kafka's own is not: it leaves loads uneven or moves more than it has to, gives members
    partitions they do not subscribe to any more, and takes partitions that no rack is near from their owner
    at every rebalance.
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
    """Sticky for members that keep their partitions while they join, so that nothing stops.

    A partition that moves is given to nobody in the round in which its owner loses it. That owner joins
    again, and the next round gives it to the member it is for. A partition that two members claim in the same
    generation is taken from both first. Earlier partitions are the owned partitions of the subscription.
    """

    name: Final = "cooperative-sticky"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """See `Assignor.assign`, but partitions that must be given up first are in no list."""
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
    """The sticky rule for any source of claims; each member has one, be it empty."""
    group = number_group(partitions_per_topic, subscriptions, claims, racks)
    return group.answer(_assign(group), subscriptions)


def _assign(group: StickyGroup) -> list[int]:
    if not group.members:
        return []
    if group.is_equal() and not group.replica_racks:
        return assign_equal(group)
    return assign_exact(group)
