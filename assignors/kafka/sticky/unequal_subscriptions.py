"""Sticky for members with different topics or racks, solved exactly.

Kafka's rule (AbstractStickyAssignor's GeneralAssignmentBuilder) moves single partitions from member to member
until no single move helps, and reverts all moves if they have not improved the balance. This module reaches
the same aims as far as possible, in Kafka's order:

1. The loads are as even as the subscriptions allow.
2. As many partitions as possible are on a rack of their member.
3. As few partitions as possible move away from their owner.
4. Of the moved partitions, as many as possible go back to their previous owner.

So the assignment is never less even than Kafka's, and where it is as even it does not move more.
"""

from assignors.kafka.sticky.balance import fill, level
from assignors.kafka.sticky.group import StickyGroup
from assignors.kafka.sticky.min_cost_flow import minimise_cost
from assignors.kafka.sticky.pools import Pools


def assign_exact(group: StickyGroup) -> list[int]:
    """Return the new holder of each partition. Every topic of the group has a subscriber."""
    pools = Pools(group)
    fill(pools)
    level(pools)
    minimise_cost(pools)
    return pools.holder
