"""The earlier state versions that this code reads, and the migration of each to the next.

A change of a group's layout needs three steps: raise `codec.STATE_VERSION`, copy the structs that change to
this module as they were, and enter the version that they had. Such a copy never changes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from state.kafka.classic_group import ClassicGroup
from state.kafka.configs_only import ConfigsOnly
from state.kafka.consumer_group import ConsumerGroup
from state.rocketmq.group import Group as RocketMqGroup


class Migration(NamedTuple):
    """`groups` is the union of the structs that this version stored. `migrate` makes a group of the next
    version of one of them.
    """

    groups: Any
    migrate: Callable[[Any], Any]


def _unchanged(group: Any) -> Any:
    return group


EARLIER: dict[int, Migration] = {
    # Version 2 has share groups, and its other groups are as before.
    1: Migration(ClassicGroup | ConsumerGroup | ConfigsOnly | RocketMqGroup, _unchanged),
}
"""By version, up to the one before `codec.STATE_VERSION`, without a gap."""
