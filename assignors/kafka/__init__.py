"""Kafka's assignors by name: those of its clients, which a consumer offers in JoinGroup, and its broker's."""

from collections.abc import Mapping
from types import MappingProxyType

from assignors.kafka.api import Assignor
from assignors.kafka.range import RangeAssignor
from assignors.kafka.roundrobin import RoundRobinAssignor
from assignors.kafka.sticky.assignor import CooperativeStickyAssignor, StickyAssignor
from assignors.kafka.uniform import UniformAssignor

_CLIENT: tuple[Assignor, ...] = (
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
)

_BROKER: tuple[Assignor, ...] = (UniformAssignor(), RangeAssignor())

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({assignor.name: assignor for assignor in _CLIENT})
"""Of clients: "range", "roundrobin", "sticky", "cooperative-sticky"."""

BROKER_ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({assignor.name: assignor for assignor in _BROKER})
"""Of the broker (group.consumer.assignors, KIP-848): "uniform", which is the default, and "range"."""
