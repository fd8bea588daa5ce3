"""Reads the counts of one share group's deliveries from the telemetry topic, adds them up, and finds the
probable fault.

Gateways, the proxies between clients and brokers, count the deliveries. A record is suspected to be poison,
which no member can process, if members fail on it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum

from kafka import TopicPartition
from msgspec import Struct

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.telemetry import (
    ACCEPTED,
    GONE,
    OPEN,
    REJECTED,
    Counted,
    GroupDeliveries,
    Suspect,
    decode_telemetry,
    is_of_deliveries,
)
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import TopicReader


class Verdict(StrEnum):
    """The probable fault in a share group's deliveries."""

    NOTHING = "nothing"
    POISON = "poison"  # some records fail on every member
    BAD_MEMBER = "bad member"  # one member fails
    OUTAGE = "outage"  # all members fail


class SuspectLine(Struct, frozen=True, kw_only=True):
    """A record that may be poison."""

    topic: str
    partition: int
    offset: int
    deliveries: int
    releases: int
    released_by: list[str]  # the first members that released it
    rejected_by: str  # a member, or ""
    outcome: str  # of `kafka_why.contract.telemetry`; inferred, except rejected and accepted
    at_ms: int  # when a gateway last reported the record


class MemberSum(Struct, frozen=True, kw_only=True):
    """The totals of one member."""

    member_id: str
    delivered: int
    accepted: int
    failed: int  # released, rejected or expired
    renewed: int
    acknowledged: int  # accepted, released or rejected
    processing_ms: int | None  # mean time from delivery to acknowledgement; None if it acknowledged nothing
    processing_max_ms: int | None  # the longest such time


class Interval(Struct, frozen=True, kw_only=True):
    """The counts of one interval of the report's time."""

    from_ms: int
    delivered: int = 0
    redelivered: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    expired: int = 0


class Row(Counted, kw_only=True, omit_defaults=False, gc=False):
    """The counts of one member in one partition. Its JSON includes zeros; a telemetry record's omits them."""


class DeliveryReport(Struct, frozen=True, kw_only=True):
    """The deliveries of a share group between two times, as gateways counted them."""

    group_id: str
    from_ms: int
    to_ms: int
    gateways: int  # their number
    delivery_limit: int
    is_limit_known: bool  # False if `delivery_limit` is Kafka's default
    lock_ms: int  # lock duration; 0 if no broker has reported it
    is_cut: bool  # True if the earliest counts are missing, because there were too many to read
    verdict: Verdict
    member_id: str | None  # the member that the verdict blames
    rows: list[Row]  # in the order of topic, partition and member
    others: Row | None  # sums of the rows beyond ROWS_MAX
    members: list[MemberSum]
    suspects: list[SuspectLine]  # the last reported last
    intervals: list[Interval]  # without those that have no counts


class LoneDeliveries(Struct, frozen=True):
    """The report of `why` on a group that has deliveries but no history."""

    group_id: str
    deliveries: DeliveryReport


ROWS_MAX, SUSPECTS_MAX, MEMBERS_MAX = 1_000, 1_000, 1_000
INTERVALS = 24
"""The number of intervals into which the report's time is divided."""
MANY = 20
"""The number of failed deliveries from which a few bad records cannot be the reason."""
# By its ratio of failed records, a member fails if it is above the first limit, and is well up to the second.
_FAILING_RATIO, _WELL_RATIO = 0.5, 0.1

RecordKey = tuple[str, int, int]  # topic, partition, offset


class Sums:
    """The sums of the counts in one group's telemetry records between two times.

    The records must be added in the topic's order.
    """

    def __init__(self, group_id: str, from_ms: int, to_ms: int) -> None:
        self._group_id = group_id
        self._from_ms, self._to_ms = from_ms, to_ms
        self._interval_ms = max((to_ms - from_ms) // INTERVALS, 1)
        self._rows: dict[tuple[str, int, str], Row] = {}
        self._others: Row | None = None
        self._members: dict[str, Counted] = {}
        # By record and gateway, the gateway's last report on it, and its time.
        self._suspects: OrderedDict[RecordKey, dict[str, tuple[int, Suspect]]] = OrderedDict()
        self._intervals: dict[int, Counted] = {}  # by number of the interval
        self._gateways: set[str] = set()
        self._last: GroupDeliveries | None = None  # the last record

    def add(self, record: GroupDeliveries, at_ms: int) -> None:
        """Add a record of the group with the timestamp `at_ms`."""
        self._last = record
        self._gateways.add(record.gateway_id)
        interval = self._intervals.setdefault(max(at_ms - self._from_ms, 0) // self._interval_ms, Counted())
        for row in record.rows:
            self._row_of(row).add(row)
            if row.member_id in self._members or len(self._members) < MEMBERS_MAX:
                self._members.setdefault(row.member_id, Counted()).add(row)
            interval.add(row)
        if record.others is not None:
            self._others_row().add(record.others)
            interval.add(record.others)
        for suspect in record.suspects:
            self._add_suspect(record.gateway_id, suspect, at_ms)

    def report(self, *, is_cut: bool = False) -> DeliveryReport | None:
        """Return the report, or None if nothing was counted."""
        if self._last is None:
            return None
        members = [_member_sum(member_id, counted) for member_id, counted in sorted(self._members.items())]
        suspects = [_suspect_line(key, by_gateway) for key, by_gateway in self._suspects.items()]
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
            intervals=[
                self._interval(number, counted) for number, counted in sorted(self._intervals.items())
            ],
        )

    def _row_of(self, row: Counted) -> Row:
        """Return the sums of a row's partition and member or, beyond ROWS_MAX, those of all others."""
        key = row.topic, row.partition, row.member_id
        if key in self._rows or len(self._rows) < ROWS_MAX:
            return self._rows.setdefault(key, Row(topic=key[0], partition=key[1], member_id=key[2]))
        return self._others_row()

    def _others_row(self) -> Row:
        self._others = self._others or Row()
        return self._others

    def _add_suspect(self, gateway_id: str, suspect: Suspect, at_ms: int) -> None:
        key = suspect.topic, suspect.partition, suspect.offset
        self._suspects.setdefault(key, {})[gateway_id] = at_ms, suspect
        self._suspects.move_to_end(key)  # so that the one that was reported the longest ago is dropped first
        if len(self._suspects) > SUSPECTS_MAX:
            self._suspects.popitem(last=False)

    def _interval(self, number: int, counted: Counted) -> Interval:
        counts = {name: getattr(counted, name) for name in Interval.__struct_fields__ if name != "from_ms"}
        return Interval(from_ms=self._from_ms + number * self._interval_ms, **counts)


def conclude(members: Sequence[MemberSum], suspects: Sequence[SuspectLine]) -> tuple[Verdict, str | None]:
    """Return the probable fault, and the member that is at fault, or None if no single member is."""
    active = [member for member in members if member.accepted + member.failed]
    failing = [
        member for member in active if member.failed >= MANY and _failure_ratio(member) > _FAILING_RATIO
    ]
    well = [member for member in active if _failure_ratio(member) <= _WELL_RATIO]
    if len(failing) == 1 and well and len(well) == len(active) - 1:
        return Verdict.BAD_MEMBER, failing[0].member_id
    if failing and not well:
        return Verdict.OUTAGE, failing[0].member_id if len(active) == 1 else None
    if any(suspect.outcome != ACCEPTED for suspect in suspects):
        return Verdict.POISON, None
    return Verdict.NOTHING, None


def _failure_ratio(member: MemberSum) -> float:
    """Return the share of failed records. The member has accepted or failed records."""
    return member.failed / (member.accepted + member.failed)


def _member_sum(member_id: str, counted: Counted) -> MemberSum:
    acknowledged = counted.acknowledged
    return MemberSum(
        member_id=member_id,
        delivered=counted.delivered,
        accepted=counted.accepted,
        failed=max(counted.released + counted.rejected + counted.expired, 0),
        renewed=counted.renewed,
        acknowledged=acknowledged,
        processing_ms=counted.processed_ms // acknowledged if acknowledged else None,
        processing_max_ms=counted.processed_max_ms if acknowledged else None,
    )


def _suspect_line(key: RecordKey, by_gateway: dict[str, tuple[int, Suspect]]) -> SuspectLine:
    """Combine the counts of the gateways that have seen deliveries of one record.

    The broker sends its delivery count to every gateway, so the highest is current. Each gateway counts only
    its own releases, so these are added up.
    """
    suspects = [suspect for _, suspect in by_gateway.values()]
    outcomes = {suspect.outcome for suspect in suspects}
    released_by = dict.fromkeys(name for suspect in suspects for name in suspect.released_by)
    return SuspectLine(
        topic=key[0],
        partition=key[1],
        offset=key[2],
        deliveries=max(suspect.deliveries for suspect in suspects),
        releases=sum(suspect.releases for suspect in suspects),
        released_by=list(released_by),
        rejected_by=next((suspect.rejected_by for suspect in suspects if suspect.rejected_by), ""),
        # The first of these that a gateway reports.
        outcome=next(outcome for outcome in (REJECTED, ACCEPTED, GONE, OPEN) if outcome in outcomes),
        at_ms=max(at_ms for at_ms, _ in by_gateway.values()),
    )


RECORDS_MAX = 100_000
"""The maximum number of records to read from the end of the group's partition, including other groups'
records.
"""
DEFAULT_MS = 24 * 3_600_000
"""The length of the report's time if the caller gives no start."""


def read_deliveries(
    client_config: ClientConfig, layout: TopicLayout, group_id: str, since_ms: int | None, to_ms: int
) -> DeliveryReport | None:
    """Return the deliveries from `since_ms` (or the last day) to `to_ms`, or None if there are none.

    Raises KafkaError.
    """
    from_ms = to_ms - DEFAULT_MS if since_ms is None else since_ms
    partition = TopicPartition(layout.telemetry_topic, partition_of(group_id, layout.request_partitions))
    sums = Sums(group_id, from_ms, to_ms)
    with TopicReader(client_config) as reader:
        if partition not in reader.partitions_of(partition.topic):  # a coordinator of an earlier version
            return None
        first = reader.offsets_at([partition], from_ms)[partition]
        if first is None:  # no record is that new
            return None
        end = reader.ends([partition])[partition]
        begin = max(first, end - RECORDS_MAX)
        reader.start(at={partition: begin})
        for record in reader.read_to({partition: end}):
            if record.timestamp > to_ms:
                break
            if record.value is not None and is_of_deliveries(record.key, group_id):
                deliveries = decode_telemetry(record.value, GroupDeliveries)
                if deliveries is not None:
                    sums.add(deliveries, record.timestamp)
    return sums.report(is_cut=begin > first)
