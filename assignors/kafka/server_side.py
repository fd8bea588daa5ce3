"""Assignors that run at the coordinator, as in KIP-848, for groups of the classic protocol.

A consumer selects such an assignor by the protocol name it offers in JoinGroup: `coordinator:` and the
assignor's own name. If the members vote for such a protocol, the coordinator computes the assignment and no
member does.

Some assignors need each member's earlier partitions, which its subscription has. If an eager member's
subscription has none, the coordinator adds the partitions that it last assigned to the member.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from assignors.kafka import ASSIGNORS, BROKER_ASSIGNORS
from assignors.kafka.uniform import UniformAssignor
from kafka_why.contract.protocols.subscriptions import (
    Claim,
    Subscription,
    TopicPartition,
    encode_sticky_user_data,
)
from kafka_why.sticky.api import Assignor
from kafka_why.sticky.assignor import StickyAssignor

PREFIX: Final = "coordinator:"

COORDINATOR_ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {PREFIX + name: assignor for name, assignor in {**BROKER_ASSIGNORS, **ASSIGNORS}.items()}
)
"""By protocol name: `coordinator:uniform`, `coordinator:sticky` and so on."""


def is_for_coordinator(protocol_name: str | None) -> bool:
    """Return True if the coordinator computes the assignment of a protocol of this name."""
    return protocol_name is not None and protocol_name.startswith(PREFIX)


def with_last_assignment(
    assignor: Assignor, subscription: Subscription, partitions: tuple[TopicPartition, ...], generation_id: int
) -> Subscription:
    """Return the subscription, with `partitions` if it names no earlier partitions and `assignor` uses them.

    `partitions` are the member's last assignment, in generation `generation_id`.
    """
    if subscription.user_data or subscription.owned_partitions or not partitions:
        return subscription
    if isinstance(assignor, StickyAssignor):
        return replace(subscription, user_data=encode_sticky_user_data(Claim(partitions, generation_id)))
    if isinstance(assignor, UniformAssignor):
        return replace(subscription, owned_partitions=partitions, generation_id=generation_id)
    # The other assignors do not use earlier partitions, or are cooperative. A cooperative member always names
    # its owned partitions, so a member that names none has lost them.
    return subscription
