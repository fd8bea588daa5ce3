"""Kafka's client-side assignors, by the names a consumer puts in its JoinGroup protocols."""

from collections.abc import Mapping
from types import MappingProxyType

from assignors.kafka.api import Assignor
from assignors.kafka.range import RangeAssignor
from assignors.kafka.roundrobin import RoundRobinAssignor

_ALL: tuple[Assignor, ...] = (RangeAssignor(), RoundRobinAssignor())

ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({assignor.name: assignor for assignor in _ALL})
"""Assignor by name: "range", "roundrobin"."""
