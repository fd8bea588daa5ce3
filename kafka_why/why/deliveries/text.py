"""Formats a share group's deliveries as text."""

from collections.abc import Collection, Iterator

from kafka_why.contract.telemetry import ACCEPTED, GONE, REJECTED, Counted
from kafka_why.why.deliveries.report import DeliveryReport, LoneDeliveries, MemberSum, SuspectLine, Verdict
from kafka_why.wording import (
    Clock,
    Names,
    VisibleText,
    columns,
    count,
    duration_text,
    listing,
    shortened,
    times,
    visible_text,
)

MAX_ROWS, MAX_SUSPECTS = 20, 20
_SLOW_RATIO = 0.8
"""A member is slow if its longest time from delivery to acknowledgement is this share of the lock
duration.
"""
_MANY_RENEWALS = 1
"""A member renews locks often if it has at least this number of renewals per record."""
_HEADINGS = (
    "partition",
    "member",
    "delivered",
    "again",
    "accepted",
    "released",
    "rejected",
    "expired",
    "late",
)


def non_member_notes(report: DeliveryReport, known: Collection[str]) -> Iterator[str]:
    """Yield a note if clients that were never in the group got records.

    Brokers do not check membership. `known` are the group's current and former members.
    """
    receivers = {member.member_id for member in report.members if member.delivered}
    strangers = sorted(receivers.difference(known))
    if strangers:
        verb = "was" if len(strangers) == 1 else "were"
        sentence = f"{shortened(strangers)} got records but {verb} never in the group"
        yield f"{sentence}: brokers give records to any client with READ on the group and the topic"


def names_of(report: DeliveryReport) -> Names:
    """Return names for all members in the report."""
    # Of suspects; "" if no member rejected the record.
    releasing = (m for suspect in report.suspects for m in (*suspect.released_by, suspect.rejected_by) if m)
    return Names({*(member.member_id for member in report.members), *releasing})


def deliveries_text(report: DeliveryReport, clock: Clock, names: Names) -> VisibleText:
    """Return the table of deliveries, and the conclusions from it."""
    head = f"Deliveries from {clock.time(report.from_ms)} to {clock.time(report.to_ms)}"
    seen = f"{head}, as {count(report.gateways, 'gateway')} saw them:"
    return visible_text([seen, *table_lines(report, names), *columns(conclusion_lines(report, names))])


def lone_deliveries_text(alone: LoneDeliveries, clock: Clock) -> VisibleText:
    """Return the text about a group that has deliveries but no history."""
    report = alone.deliveries
    head = f"Group {report.group_id} has no history here: the brokers may coordinate it."
    return visible_text([head, "", deliveries_text(report, clock, names_of(report))])


def table_lines(report: DeliveryReport, names: Names) -> Iterator[str]:
    """Yield a table of counts by partition and member: the MAX_ROWS rows with the most deliveries.

    The last row has the sums of all others, if there are any.
    """
    shown = sorted(report.rows, key=lambda row: -row.delivered)[:MAX_ROWS]
    in_order = [row for row in report.rows if row in shown]
    rows: list[tuple[str, ...]] = [_HEADINGS, *(_row_cells(row, place_text(row), names) for row in in_order)]
    hidden = [row for row in (*report.rows, report.others) if row is not None and row not in shown]
    if hidden:
        others = Counted()
        for row in hidden:
            others.add(row)
        rows.append(_row_cells(others, place_text(others), names))
    widths = [max(len(line[column]) for line in rows) for column in range(len(_HEADINGS))]
    for line in rows:
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        # The partition and the member are texts.
        cells[:2] = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        yield f"  {'  '.join(cells)}".rstrip()


def conclusion_lines(report: DeliveryReport, names: Names) -> Iterator[tuple[str, str]]:
    """Yield the conclusions, each with its label."""
    verdict = verdict_text(report, names)
    if verdict:
        yield "Verdict", verdict
    poison = [suspect for suspect in reversed(report.suspects) if suspect.outcome != ACCEPTED]
    shown = poison[:MAX_SUSPECTS]
    yield from listing(
        "Poison?", [f"{place_of(suspect)}: {suspect_text(suspect, report, names)}" for suspect in shown]
    )
    if len(poison) > MAX_SUSPECTS:
        yield "", f"{len(poison) - MAX_SUSPECTS} more: see them with -o json"
    slow = ((member, _slow_text(member, report.lock_ms)) for member in report.members)
    yield from listing("Slow", [f"{names.of(member.member_id)}: {text}" for member, text in slow if text])
    if not report.is_limit_known:
        limit = "no gateway knows the brokers' share.delivery.count.limit"
        yield "Note", f"{limit}: {report.delivery_limit} is assumed"
    if report.is_cut:
        yield "Note", "there are too many counts to read: the earliest are missing"


def verdict_text(report: DeliveryReport, names: Names) -> str:
    """Return the probable fault as a sentence, or "" if there is none."""
    if report.verdict is Verdict.BAD_MEMBER:
        who = names.of(report.member_id or "")
        return f"{who} fails on most of its records, and the other members do not: check {who}"
    if report.verdict is Verdict.OUTAGE and report.member_id is not None:
        who = names.of(report.member_id)
        return (
            f"{who}, the only member, fails on most of its records: check it and the services it depends on"
        )
    if report.verdict is Verdict.OUTAGE:
        return "all members fail on most of their records: a service they depend on is probably down"
    if report.verdict is Verdict.POISON:
        number = sum(suspect.outcome != ACCEPTED for suspect in report.suspects)
        fails = "record fails" if number == 1 else "records fail"
        return f"{number} {fails}, and others pass: probably poison"
    return ""


def place_text(row: Counted) -> str:
    """Return a row's partition, such as `orders-2`, or `others` for a sum."""
    return f"{row.topic}-{row.partition}" if row.topic else "others"


def place_of(suspect: SuspectLine) -> str:
    """Return a record's partition and offset: `orders-2@4711`."""
    return f"{suspect.topic}-{suspect.partition}@{suspect.offset}"


def suspect_text(suspect: SuspectLine, report: DeliveryReport, names: Names) -> str:
    """Return a text such as `delivered 5 times (limit 5), released 4 times by a, b; archived`."""
    limit = f" (limit {report.delivery_limit})" if suspect.deliveries >= report.delivery_limit else ""
    parts = [f"delivered {times(suspect.deliveries)}{limit}"]
    if suspect.releases:
        by = shortened([names.of(m) for m in suspect.released_by])
        parts.append(f"released {times(suspect.releases)} by {by}")
    if suspect.rejected_by:
        parts.append(f"rejected by {names.of(suspect.rejected_by)}")
    return f"{', '.join(parts)}; {_OUTCOMES.get(suspect.outcome, 'it will be delivered again')}"


_OUTCOMES = {
    REJECTED: "archived, or a dead letter",
    GONE: "archived, or a dead letter (inferred: its last delivery failed)",
    ACCEPTED: "accepted in the end",
}


def _slow_text(member: MemberSum, lock_ms: int) -> str:
    """Return how far a member's processing uses up the lock duration, or how often it renews locks.

    The text is "" if neither is remarkable, or if the lock duration is unknown.
    """
    if member.processing_ms is None or member.processing_max_ms is None or not lock_ms:
        return ""
    parts = []
    if member.processing_max_ms >= _SLOW_RATIO * lock_ms:
        mean, longest = duration_text(member.processing_ms), duration_text(member.processing_max_ms)
        share = f"{member.processing_max_ms / lock_ms:.0%} of the lock's {duration_text(lock_ms)}"
        parts.append(f"{mean} a record, {longest} at most, {share}")
    if member.renewed and member.renewed >= _MANY_RENEWALS * member.acknowledged:
        parts.append(f"{member.renewed} renewals of {count(member.acknowledged, 'record')}")
    return f"{'; '.join(parts)}: it needs a longer share.record.lock.duration.ms" if parts else ""


def _row_cells(row: Counted, place: str, names: Names) -> tuple[str, ...]:
    """Return the cells of a row of the table, under _HEADINGS."""
    numbers = (
        row.delivered,
        row.redelivered,
        row.accepted,
        row.released,
        row.rejected,
        row.expired,
        row.late,
    )
    return place, names.of(row.member_id), *map(str, numbers)
