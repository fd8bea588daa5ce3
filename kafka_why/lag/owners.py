"""Which member holds which partition, by the view of a group on the groups topic."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.kafka.states import GroupState
from kafka_why.contract.protocols.consumer_protocol import PROTOCOL_TYPE, ProtocolError
from kafka_why.lag.log import Partition

_SETTLED = (GroupState.STABLE.value, GroupState.EMPTY.value)
"""A group of the consumer protocol has these states under the same names."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The holders of the partitions of a group.

    `settled_ms` is the time since which the group has been in its state, None if it is rebalancing, or if its
    view does not say who holds what. `holders` are member ids. `topics` are those that the members are known
    to subscribe to, None if there are no members.
    """

    settled_ms: int | None = None
    holders: Mapping[Partition, str] = field(default_factory=dict)
    topics: frozenset[str] | None = None

    def wants(self, topic: str) -> bool:
        """Whether the group is to consume a topic. Without members it is whatever it has an offset of."""
        return self.topics is None or topic in self.topics


UNKNOWN = Ownership()


def ownership(view: GroupSnapshot) -> Ownership:
    """Return who holds what in a group of Kafka's."""
    if view.state not in _SETTLED or (view.truncated and view.state != GroupState.EMPTY):
        return UNKNOWN
    try:
        holders = {where: m.member_id for m in view.members for where in held(m, view.protocol_type)}
    except ProtocolError:
        return UNKNOWN
    return Ownership(view.state_timestamp_ms, holders, _topics(view) if view.members else None)


def held(member: MemberSnapshot, protocol_type: str | None) -> tuple[Partition, ...]:
    """Return the partitions that a member may use. Raises ProtocolError if its bytes are no assignment."""
    return member.held() if member.consumer is not None or protocol_type == PROTOCOL_TYPE else ()


def _topics(view: GroupSnapshot) -> frozenset[str]:
    if view.consumer:
        return frozenset(view.consumer.topics)
    return frozenset(view.subscribed_topics or ())
