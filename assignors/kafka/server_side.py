"""Assignors that run at the coordinator, as those of KIP-848 do, for groups of the classic protocol.

A consumer asks for one by the name of the protocol it offers in JoinGroup: `coordinator:` and the assignor's
own name. What the members vote for is then the coordinator's to carry out, and none of them computes
anything. All that a member has to say of earlier partitions is in its subscription; members of eager
assignors that say nothing are taken to have held what the coordinator gave them last.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from assignors.kafka import ASSIGNORS, BROKER_ASSIGNORS
from assignors.kafka.api import Assignor, Subscription, TopicPartition
from assignors.kafka.sticky.assignor import StickyAssignor
from assignors.kafka.uniform import UniformAssignor
from assignors.kafka.user_data import Claim, encode_sticky_user_data

PREFIX: Final = "coordinator:"

COORDINATOR_ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {PREFIX + name: assignor for name, assignor in {**BROKER_ASSIGNORS, **ASSIGNORS}.items()}
)
"""By protocol name: `coordinator:uniform`, `coordinator:sticky` and so on."""


def is_for_coordinator(protocol_name: str | None) -> bool:
    """Whether a protocol of this name leaves the assignment to the coordinator."""
    return protocol_name is not None and protocol_name.startswith(PREFIX)


def with_last_assignment(
    assignor: Assignor, subscription: Subscription, partitions: tuple[TopicPartition, ...], generation_id: int
) -> Subscription:
    """The subscription of a member that held these partitions in this generation, as far as it matters.

    A cooperative member's word holds as it is: what it has lost must not be taken for what it owns.
    """
    if subscription.user_data or subscription.owned_partitions or not partitions:
        return subscription
    if isinstance(assignor, StickyAssignor):
        return replace(subscription, user_data=encode_sticky_user_data(Claim(partitions, generation_id)))
    if isinstance(assignor, UniformAssignor):
        return replace(subscription, owned_partitions=partitions, generation_id=generation_id)
    return subscription
