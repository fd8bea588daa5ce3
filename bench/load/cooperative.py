"""Members of a classic group that revoke only moving partitions, as with `cooperative-sticky` (KIP-429)."""

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

_SUBSCRIPTION_VERSION = 1  # the first one with owned partitions


class CooperativeGroup(LoadGroup):
    """A group that has formed when its members own all `partitions` of the topic in one generation."""

    def __init__(self, group_id: str, topic: str, partitions: int) -> None:
        super().__init__(group_id)
        self.topic, self.partitions = topic, partitions

    async def add(self, address: Address) -> "CooperativeMember":
        member = CooperativeMember(self, len(self.members), await Connection.open(address))
        member.topic, member.partitions = self.topic, self.partitions
        self.members.append(member)
        self._formed.clear()
        return member

    def on_synced(self) -> None:
        owned_counts = [len(m.owned) for m in self.members if isinstance(m, CooperativeMember)]
        if all(owned_counts) and sum(owned_counts) == self.partitions:
            super().on_synced()


@dataclass
class CooperativeMember(Member):
    """A member that keeps its partitions while the group rebalances. `owned` are partitions of `topic`."""

    protocol: ClassVar[str] = "cooperative-sticky"
    topic: str = ""
    partitions: int = 0
    owned: frozenset[int] = frozenset()
    _has_revoked: bool = False

    async def join(self) -> None:
        """Join, and join again at once if the member has revoked partitions."""
        await super().join()
        while self._has_revoked:
            await super().join()

    def subscription(self) -> bytes:
        owned = tuple(TopicPartition(self.topic, index) for index in sorted(self.owned))
        return encode_subscription(Subscription((self.topic,), owned_partitions=owned), _SUBSCRIPTION_VERSION)

    def assign(self, members: Sequence[Any]) -> dict[str, bytes]:
        """Let each member keep what it owns up to its share, and assign the free partitions.

        Partitions that a member has to give up are assigned in the next rebalance.
        """
        owned = {
            member.member_id: sorted(
                p.partition for p in decode_subscription(bytes(member.metadata)).owned_partitions
            )
            for member in members
        }
        free = sorted(set(range(self.partitions)) - {index for held in owned.values() for index in held})
        share, extra = divmod(self.partitions, len(members))
        plan: dict[str, bytes] = {}
        # The members that own most get the larger shares, so that as few partitions as possible move.
        for rank, (member_id, held) in enumerate(sorted(owned.items(), key=lambda item: -len(item[1]))):
            size = share + (rank < extra)
            assigned = held[:size]
            assigned += [free.pop() for _ in range(min(size - len(assigned), len(free)))]
            partitions = tuple(TopicPartition(self.topic, index) for index in sorted(assigned))
            plan[member_id] = encode_assignment(Assignment(partitions))
        return plan

    def on_assignment(self, assignment: bytes) -> None:
        owned = frozenset(p.partition for p in decode_assignment(assignment).partitions)
        self._has_revoked, self.owned = bool(self.owned - owned), owned
