"""Members of a classic group that hand partitions over one by one, as with `cooperative-sticky` (KIP-429)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bench.load.connection import Connection
from bench.load.member import LoadGroup, Member
from kafka_why.connections.address import Address
from kafka_why.contract.protocols.subscriptions import (
    Assignment,
    Subscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

_VERSION = 1  # the first one with owned partitions


class CooperativeGroup(LoadGroup):
    """It has formed when its members have all `partitions` of the topic in one generation."""

    def __init__(self, group_id: str, topic: str, partitions: int) -> None:
        super().__init__(group_id)
        self.topic, self.partitions = topic, partitions

    async def add(self, address: Address) -> "CooperativeMember":
        member = CooperativeMember(self, len(self.members), await Connection.open(address))
        member.topic, member.partitions = self.topic, self.partitions
        self.members.append(member)
        self._formed.clear()
        return member

    def synced(self) -> None:
        held = [len(member.owned) for member in self.members if isinstance(member, CooperativeMember)]
        if all(held) and sum(held) == self.partitions:
            super().synced()


@dataclass
class CooperativeMember(Member):
    """A member that keeps what it has while the group rebalances. `owned` are partitions of `topic`."""

    protocol: ClassVar[str] = "cooperative-sticky"
    topic: str = ""
    partitions: int = 0
    owned: frozenset[int] = frozenset()
    _has_lost: bool = False

    async def enter(self) -> None:
        """Join again at once if the member has given partitions up."""
        await super().enter()
        while self._has_lost:
            await super().enter()

    def subscription(self) -> bytes:
        owned = tuple(TopicPartition(self.topic, index) for index in sorted(self.owned))
        return encode_subscription(Subscription((self.topic,), owned_partitions=owned), _VERSION)

    def plan(self, members: Sequence[Any]) -> dict[str, bytes]:
        """Deal the partitions: each member keeps what it has up to its share. What is given up is not dealt
        yet.
        """
        owned = {
            member.member_id: sorted(
                one.partition for one in decode_subscription(bytes(member.metadata)).owned_partitions
            )
            for member in members
        }
        free = sorted(set(range(self.partitions)) - {index for held in owned.values() for index in held})
        share, extra = divmod(self.partitions, len(members))
        plan: dict[str, bytes] = {}
        for place, (member_id, held) in enumerate(sorted(owned.items(), key=lambda item: -len(item[1]))):
            size = share + (place < extra)
            dealt = held[:size]
            dealt += [free.pop() for _ in range(min(size - len(dealt), len(free)))]
            partitions = tuple(TopicPartition(self.topic, index) for index in sorted(dealt))
            plan[member_id] = encode_assignment(Assignment(partitions))
        return plan

    def on_assignment(self, assignment: bytes) -> None:
        owned = frozenset(one.partition for one in decode_assignment(assignment).partitions)
        self._has_lost, self.owned = bool(self.owned - owned), owned
