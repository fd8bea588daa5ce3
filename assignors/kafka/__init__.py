"""Kafka's assignors by name: the client-side ones that a consumer offers in JoinGroup, and the broker's."""

from collections.abc import Mapping
from types import MappingProxyType

from assignors.kafka.range import RangeAssignor
from assignors.kafka.roundrobin import RoundRobinAssignor
from assignors.kafka.uniform import UniformAssignor
from kafka_why.sticky.api import Assignor
from kafka_why.sticky.assignor import CooperativeStickyAssignor, StickyAssignor

_CLIENT: tuple[Assignor, ...] = (
    RangeAssignor(),
    RoundRobinAssignor(),
    StickyAssignor(),
    CooperativeStickyAssignor(),
)

_BROKER: tuple[Assignor, ...] = (UniformAssignor(), RangeAssignor())

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({assignor.name: assignor for assignor in _CLIENT})
"""Client-side assignors: "range", "roundrobin", "sticky", "cooperative-sticky"."""

BROKER_ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({assignor.name: assignor for assignor in _BROKER})
"""Broker-side assignors (group.consumer.assignors, KIP-848): "uniform", the default, and "range"."""
