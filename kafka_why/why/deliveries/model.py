"""The data of a report on a share group's deliveries."""

from enum import StrEnum

from msgspec import Struct

from kafka_why.contract.deliveries import Counted


class Verdict(StrEnum):
    """The probable fault. POISON: some records fail on every member. BAD_MEMBER: only one member fails.
    OUTAGE: all members fail.
    """

    NOTHING = "nothing"
    POISON = "poison"
    BAD_MEMBER = "bad member"
    OUTAGE = "outage"


class SuspectLine(Struct, frozen=True, kw_only=True):
    """A record that may be poison. `at_ms` is when a gateway last reported it. `outcome` is one of
    `kafka_why.contract.deliveries`, and is inferred unless the record was rejected or accepted.
    """

    topic: str
    partition: int
    offset: int
    deliveries: int
    releases: int
    released_by: list[str]
    rejected_by: str
    outcome: str
    at_ms: int


class MemberSum(Struct, frozen=True, kw_only=True):
    """The totals of one member. `processing_ms` is the mean time from the delivery of a record to its
    acknowledgement, and `processing_max_ms` the longest; both are None if it acknowledged nothing.
    """

    member_id: str
    delivered: int
    accepted: int
    failed: int
    renewed: int
    acknowledged: int
    processing_ms: int | None
    processing_max_ms: int | None


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
    """The counts of one member in one partition. Unlike those in telemetry, its JSON includes zeros."""


class DeliveryReport(Struct, frozen=True, kw_only=True):
    """The deliveries of a share group between two times, as gateways counted them. `lock_ms` is 0 if no
    broker has reported it.

    `rows` are in the order of topic, partition and member. `others` has the sums of the rows beyond the
    maximum. `is_cut`: there were too many records to read, so the earliest are missing. `member_id` is the
    member of the verdict.
    """

    group_id: str
    from_ms: int
    to_ms: int
    gateways: int
    delivery_limit: int
    is_limit_known: bool
    lock_ms: int
    is_cut: bool
    verdict: Verdict
    member_id: str | None
    rows: list[Row]
    others: Row | None
    members: list[MemberSum]
    suspects: list[SuspectLine]
    intervals: list[Interval]


class LoneDeliveries(Struct, frozen=True):
    """The report of `why` on a group that has deliveries but no history."""

    group_id: str
    deliveries: DeliveryReport
