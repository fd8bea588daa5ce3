"""Adds up gateways' counts of one share group, and concludes the probable fault. No IO here."""

from collections import OrderedDict
from collections.abc import Sequence

from kafka_why.contract.deliveries import ACCEPTED, GONE, OPEN, REJECTED, Counted, GroupDeliveries, Suspect
from kafka_why.why.deliveries.model import DeliveryReport, Interval, MemberSum, Row, SuspectLine, Verdict

ROWS_MAX, SUSPECTS_MAX, MEMBERS_MAX = 1_000, 1_000, 1_000
INTERVALS = 24
MANY = 20
"""The minimum number of failed deliveries that cannot be due to a few bad records."""
_MOST, _FEW = 0.5, 0.1

Key = tuple[str, int, int]


class Sums:
    """The sums of one group's records between two times. Records are added in the order of the topic."""

    def __init__(self, group_id: str, from_ms: int, to_ms: int) -> None:
        self._group_id = group_id
        self._from_ms, self._to_ms = from_ms, to_ms
        self._step_ms = max((to_ms - from_ms) // INTERVALS, 1)
        self._rows: dict[tuple[str, int, str], Row] = {}
        self._others: Row | None = None
        self._members: dict[str, Counted] = {}
        self._suspects: OrderedDict[Key, dict[str, tuple[int, Suspect]]] = OrderedDict()
        self._intervals: dict[int, Counted] = {}
        self._gateways: set[str] = set()
        self._last: GroupDeliveries | None = None

    def add(self, record: GroupDeliveries, at_ms: int) -> None:
        """Add a record of the group, written at this time."""
        self._last = record
        self._gateways.add(record.gateway_id)
        interval = self._intervals.setdefault(max(at_ms - self._from_ms, 0) // self._step_ms, Counted())
        for row in record.rows:
            self._row(row).add(row)
            if row.member_id in self._members or len(self._members) < MEMBERS_MAX:
                self._members.setdefault(row.member_id, Counted()).add(row)
            interval.add(row)
        if record.others is not None:
            self._beyond().add(record.others)
            interval.add(record.others)
        for suspect in record.suspects:
            self._suspect(record.gateway_id, suspect, at_ms)

    def report(self, *, is_cut: bool = False) -> DeliveryReport | None:
        """Return the report, or None if nothing was counted."""
        if self._last is None:
            return None
        members = [_member(*one) for one in sorted(self._members.items())]
        suspects = [_suspect(key, of_gateways) for key, of_gateways in self._suspects.items()]
        verdict, member_id = conclude(members, suspects)
        return DeliveryReport(
            group_id=self._group_id,
            from_ms=self._from_ms,
            to_ms=self._to_ms,
            gateways=len(self._gateways),
            delivery_limit=self._last.delivery_limit,
            is_limit_known=self._last.is_limit_known,
            lock_ms=self._last.lock_ms,
            is_cut=is_cut,
            verdict=verdict,
            member_id=member_id,
            rows=[row for _, row in sorted(self._rows.items())],
            others=self._others,
            members=members,
            suspects=suspects,
            intervals=[self._interval(*one) for one in sorted(self._intervals.items())],
        )

    def _row(self, row: Counted) -> Row:
        key = row.topic, row.partition, row.member_id
        if key in self._rows or len(self._rows) < ROWS_MAX:
            return self._rows.setdefault(key, Row(topic=key[0], partition=key[1], member_id=key[2]))
        return self._beyond()

    def _beyond(self) -> Row:
        self._others = self._others or Row()
        return self._others

    def _suspect(self, gateway_id: str, suspect: Suspect, at_ms: int) -> None:
        key = suspect.topic, suspect.partition, suspect.offset
        of_gateways = self._suspects.pop(key, {})
        of_gateways[gateway_id] = at_ms, suspect
        self._suspects[key] = of_gateways
        if len(self._suspects) > SUSPECTS_MAX:
            self._suspects.popitem(last=False)

    def _interval(self, number: int, counted: Counted) -> Interval:
        names = ("delivered", "redelivered", "accepted", "released", "rejected", "expired")
        counts = {name: getattr(counted, name) for name in names}
        return Interval(from_ms=self._from_ms + number * self._step_ms, **counts)


def conclude(members: Sequence[MemberSum], suspects: Sequence[SuspectLine]) -> tuple[Verdict, str | None]:
    """Return the probable fault, and the member if one member is at fault. A few failing records are poison,
    many failures of one member are a bad member, and many failures of all members are an outage.
    """
    active = [one for one in members if one.accepted + one.failed]
    failing = [one for one in active if one.failed >= MANY and _failed(one) > _MOST]
    well = [one for one in active if _failed(one) <= _FEW]
    if len(failing) == 1 and well and len(well) == len(active) - 1:
        return Verdict.BAD_MEMBER, failing[0].member_id
    if failing and not well:
        return Verdict.OUTAGE, failing[0].member_id if len(active) == 1 else None
    if any(one.outcome != ACCEPTED for one in suspects):
        return Verdict.POISON, None
    return Verdict.NOTHING, None


def _failed(one: MemberSum) -> float:
    return one.failed / (one.accepted + one.failed)


def _member(member_id: str, counted: Counted) -> MemberSum:
    number = counted.acknowledged
    return MemberSum(
        member_id=member_id,
        delivered=counted.delivered,
        accepted=counted.accepted,
        failed=max(counted.released + counted.rejected + counted.expired, 0),
        renewed=counted.renewed,
        acknowledged=number,
        processing_ms=counted.processed_ms // number if number else None,
        processing_max_ms=counted.processed_max_ms if number else None,
    )


def _suspect(key: Key, of_gateways: dict[str, tuple[int, Suspect]]) -> SuspectLine:
    """Combine the gateways' counts of one record; each gateway has seen some of its deliveries."""
    found = [suspect for _, suspect in of_gateways.values()]
    outcomes = {suspect.outcome for suspect in found}
    released_by = dict.fromkeys(name for suspect in found for name in suspect.released_by)
    return SuspectLine(
        topic=key[0],
        partition=key[1],
        offset=key[2],
        deliveries=max(suspect.deliveries for suspect in found),
        releases=sum(suspect.releases for suspect in found),
        released_by=list(released_by),
        rejected_by=next((suspect.rejected_by for suspect in found if suspect.rejected_by), ""),
        outcome=next(one for one in (REJECTED, ACCEPTED, GONE, OPEN) if one in outcomes),
        at_ms=max(at_ms for at_ms, _ in of_gateways.values()),
    )
