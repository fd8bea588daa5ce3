"""Sticky for members with different topics or racks, done exactly.

Kafka's (AbstractStickyAssignor's GeneralAssignmentBuilder) moves single partitions from member to member
until no single move helps, and takes all back if that has not made things better. Here the same aims are
reached as far as they can be, in Kafka's order: the loads are as even as the subscriptions allow, then as
many partitions as possible are on a rack of their member, then as few as possible move away from their owner,
and of those as many as possible go back to their previous owner. So the answer is never less even than
Kafka's, nor does it move more where it is as even.
"""

from assignors.kafka.sticky.balance import fill, level
from assignors.kafka.sticky.group import StickyGroup
from assignors.kafka.sticky.min_cost_flow import minimise_cost
from assignors.kafka.sticky.pools import Pools


def assign_exact(group: StickyGroup) -> list[int]:
    """The new holder of each partition. Every topic of the group has a subscriber."""
    pools = Pools(group)
    fill(pools)
    level(pools)
    minimise_cost(pools)
    return pools.holder
