"""Looks at a classic group by DescribeGroups, each as what was seen of a rebalance. No IO here."""

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.contract.kafka.states import GroupState
from kafka_why.contract.sightings import RebalanceSeen, SeenMember
from kafka_why.observed.records import ClassicMember

REBALANCING = (GroupState.PREPARING_REBALANCE.value, GroupState.COMPLETING_REBALANCE.value)


class ClassicLook(Struct, frozen=True):
    """A classic group as DescribeGroups has it, asked at `asked_ms` and answered at `answered_ms`.

    A member has its subscription and its assignment if the group is Stable, else empty bytes.
    """

    asked_ms: int
    answered_ms: int
    state: str
    protocol_type: str
    protocol_name: str | None
    members: tuple[ClassicMember, ...]

    def moved(self, by_ms: int) -> "ClassicLook":
        """Return the look with its times by another clock."""
        return replace(self, asked_ms=self.asked_ms + by_ms, answered_ms=self.answered_ms + by_ms)


class Looks:
    """Finds the beginning and the end of a group's rebalances in successive looks."""

    def __init__(self) -> None:
        self.completing_ms: int | None = None
        """When the rebalance under way was first seen to have formed a generation."""
        self._run: RebalanceSeen | None = None
        self._calm_ms: int | None = None

    @property
    def is_rebalancing(self) -> bool:
        """True if the group was rebalancing at the last look."""
        return self._run is not None

    def take(self, look: ClassicLook, calm_ms: int) -> RebalanceSeen | None:
        """Return what the next look shows of a rebalance, or its end; None if the group was calm before, too.

        The group is known to have been calm at `calm_ms`, for the case that this is the first look.
        """
        before = self._run
        if look.state not in REBALANCING:
            self._run, self.completing_ms, self._calm_ms = None, None, look.asked_ms
            return None if before is None else _seen(before.run, before.first_ms, before.within_ms, look)
        if before is not None:
            run, first_ms, within_ms = before.run, before.first_ms, before.within_ms
        else:
            since_ms = calm_ms if self._calm_ms is None else self._calm_ms
            run, first_ms = f"DescribeGroups at {look.answered_ms}", look.answered_ms
            within_ms = max(look.answered_ms - since_ms, 0)
        if look.state == GroupState.COMPLETING_REBALANCE and self.completing_ms is None:
            self.completing_ms = look.answered_ms
        elif look.state == GroupState.PREPARING_REBALANCE:
            self.completing_ms = None
        self._run = _seen(run, first_ms, within_ms, look)
        return self._run


def _seen(run: str, first_ms: int, within_ms: int, look: ClassicLook) -> RebalanceSeen:
    """Return a sighting. The group's log, or what else is known of it, is read up to the look."""
    return RebalanceSeen(
        run=run,
        state=look.state,
        first_ms=first_ms,
        seen_ms=look.answered_ms,
        within_ms=within_ms,
        read_ms=look.answered_ms,
        is_over=look.state not in REBALANCING,
        members=tuple(
            SeenMember(m.member_id, m.group_instance_id, m.client_id, m.client_host) for m in look.members
        ),
    )
