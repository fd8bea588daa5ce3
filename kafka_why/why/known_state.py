"""The group's known state when a rebalance begins: the assignment, and the current member ids."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition
from kafka_why.why.assignments import Holdings
from kafka_why.why.moves import owners


@dataclass(slots=True)
class KnownState:
    """The state that one segment of a life hands to the next.

    `holdings` is None if the assignment is unknown. `released` has the last owners of partitions that the
    last rebalance revoked and did not assign. `settled`: the last rebalance was completed.
    """

    holdings: Holdings | None = field(default_factory=dict)
    released: dict[TopicPartition, MemberId] = field(default_factory=dict)
    settled: bool = True
    _instances: dict[str, MemberId] = field(default_factory=dict)

    def lose_track(self) -> None:
        """Forget the assignment, because entries are missing and it may have changed."""
        self.holdings, self.released = None, {}

    def follow_static_members(self, entries: Iterable[HistoryEntry]) -> dict[MemberId, MemberId]:
        """Follow static members to their new ids. Return the new id for each old one."""
        renamed: dict[MemberId, MemberId] = {}
        for event in entries:
            if event.group_instance_id is None or event.member_id is None:
                continue
            if event.type is EntryType.MEMBER_REPLACED:
                old = event.replaced_member_id or self._instances.get(event.group_instance_id)
                if old is not None:
                    renamed = {was: event.member_id if now == old else now for was, now in renamed.items()}
                    renamed[old] = event.member_id
            self._instances[event.group_instance_id] = event.member_id
        if self.holdings is not None and renamed:
            self.holdings = {renamed.get(m, m): held for m, held in self.holdings.items()}
        self.released = {p: renamed.get(m, m) for p, m in self.released.items()}
        return renamed

    def set_holdings(self, holdings: Holdings | None) -> None:
        """Set the new assignment."""
        if self.holdings is not None and holdings is not None:
            now: frozenset[TopicPartition] = frozenset().union(*holdings.values())
            before = self.holdings.items()
            left = {m: had - now for m, had in before if holdings.get(m) is not had}
            self.released = owners(left)
        else:
            self.released = {}
        self.holdings = holdings
