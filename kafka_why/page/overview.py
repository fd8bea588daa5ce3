"""The list of all groups, those with findings first, for the first page and `/api/groups`.

It is computed from the fleet, the page's data of all groups.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from kafka_why.contract.kafka.history import DEAD, GroupState, HistoryEntry
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.lifetimes import BackgroundThread
from kafka_why.now import now_ms
from kafka_why.page.findings import Finding, FindingKind, findings
from kafka_why.page.fleet import WINDOW_MS, Fleet, GroupFacts
from kafka_why.page.members import EMPTY, Members, MembersSum, ViewMembers, view_members
from kafka_why.rocketmq_group import group_state
from kafka_why.why.model import RebalanceOutcome
from kafka_why.why.report import HistoryAnalysis, Report, analyze, report_of
from kafka_why.why.state_timelines import Span

INTERVALS = 30
"""The number of equal intervals of the last hour."""
PAGE_LINES = 100
"""The number of lines that one page of a list shows."""
LINES_INTERVAL_S = 0.5
"""The minimum pause before the lines are computed again."""
MEMBERS_INTERVAL = 5
"""The pause before the clients and hosts are computed again, as a multiple of the time that this takes."""

_SETTLED_STATES = (GroupState.STABLE.value, GroupState.EMPTY.value, DEAD)


class GroupProtocol(StrEnum):
    """The protocols of groups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"
    ROCKETMQ = "RocketMQ"


class GroupLine(Struct, frozen=True, kw_only=True):
    """A group in the list."""

    group_id: str
    protocol: GroupProtocol
    state: str
    since_ms: int  # when the group entered its state
    members: int  # number of members or, for RocketMQ, of client ids
    lag_records: int | None  # sum of the partitions' lags; None if unknown for all
    lag_ms: int | None  # greatest lag in time; None if unknown for all
    rebalances: int  # of the last hour
    # For each interval of the last hour, the fraction in which the group was neither Stable nor Empty; [] if
    # there was no such time.
    not_stable: list[float]
    changed_ms: int | None  # time of the last rebalance; in a RocketMQ group, of the last entry
    change: str  # its reason
    findings: list[Finding]

    @property
    def is_unwell(self) -> bool:
        """True if the group has a fault."""
        return bool(self.findings)


class _LastHour(NamedTuple):
    """The last hour of a group, computed from its entries. It is valid up to `until_ms` or to a new entry."""

    entries_version: int
    until_ms: float  # when the oldest rebalance will be older than an hour
    report: Report | None
    not_settled: list[Span]  # when the group was neither Stable nor Empty
    reason: str  # of the last rebalance, as in the view when this was computed
    change: str  # `reason` with the short names of members


class OverviewThread(BackgroundThread):
    """A thread that computes the lines of all groups repeatedly, so that no reader waits for them."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__("page-overview")
        self._fleet = fleet
        self._overview = Overview(fleet)
        self.version = 0
        """The fleet's version just before the lines were computed. They may include later changes."""
        self.lines: list[GroupLine] = []
        """The lines. They are at most some seconds old, or older if computing them takes longer."""
        self.members: Members = EMPTY
        """The clients and hosts of the same moment."""

    def _run(self) -> None:
        pause_s = members_due_s = 0.0
        while not self._stopped.wait(pause_s):
            began_s = time.monotonic()
            with_members = began_s >= members_due_s
            version = self._fleet.version
            self.lines = self._overview.lines(now_ms(), with_members=with_members)
            self.members = self._overview.members
            self.version = version
            if with_members:
                ended_s = time.monotonic()
                members_due_s = ended_s + MEMBERS_INTERVAL * (ended_s - began_s)
            # This thread uses at most a third of the interpreter's time, because readers need it, too.
            pause_s = max(LINES_INTERVAL_S, 2 * (time.monotonic() - began_s))


class Overview:
    """The lines of all groups. Not thread-safe.

    The report on a group's last hour is computed again only if its entries change, or if one of its
    rebalances has become older than an hour.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._last_hours: dict[str, _LastHour] = {}
        self._view_members: dict[str, ViewMembers] = {}  # of each group, from the last call `with_members`
        self.members: Members = EMPTY
        """The clients and hosts of all groups, as the last call of `lines` with `with_members` found them."""

    def lines(self, now_ms: int, *, with_members: bool = True) -> list[GroupLine]:
        """Return a line for each existing group. Unwell groups are first, then those that rebalanced most.

        `with_members` also computes the clients and hosts.
        """
        # The caches are built anew, so that groups that have ended do not stay.
        last_hours, self._last_hours = self._last_hours, {}
        view_members_before = self._view_members
        if with_members:
            self._view_members = {}
        lines, members_sum = [], MembersSum()
        for facts in self._fleet.all_facts():
            line = self._line(facts, last_hours.get(facts.group_id), now_ms)
            if line is not None:
                lines.append(line)
                if with_members:
                    self._add_members(members_sum, facts, view_members_before.get(facts.group_id))
        if with_members:
            self.members = members_sum.members()
        # A group's findings are in order, so the first one is the most serious.
        return sorted(
            lines,
            key=lambda line: (
                line.findings[0].kind if line.findings else len(FindingKind),
                -line.rebalances,
                line.group_id,
            ),
        )

    def _add_members(self, members_sum: MembersSum, facts: GroupFacts, cached: ViewMembers | None) -> None:
        """Add a group. `cached` has its members at the last call, which are valid for the same view."""
        assert facts.view is not None, "a group with a line has a view"
        if cached is None or cached.view is not facts.view:
            cached = view_members(facts.view)
        self._view_members[facts.group_id] = cached
        last_hour = self._last_hours.get(facts.group_id)
        report = None if last_hour is None else last_hour.report
        members_sum.add(facts, cached, () if report is None else report.rebalances)

    def _line(self, facts: GroupFacts, cached: _LastHour | None, now_ms: int) -> GroupLine | None:
        """Return a group's line, or None if it has ended. `cached` is its last hour at the last call."""
        view = facts.view
        if view is None:
            return None
        if isinstance(view, RocketMqSnapshot):
            return _rocketmq_line(facts, view, now_ms)
        is_valid = cached is not None and cached.entries_version == facts.entries_version
        if cached is None or not is_valid or cached.until_ms < now_ms:
            cached = _last_hour(facts, view, now_ms)
        self._last_hours[facts.group_id] = cached
        report = cached.report
        not_settled: Iterable[Span] = cached.not_settled
        if not facts.entries:  # the present state has lasted for the whole hour
            not_settled = _not_settled([Span(view.state, view.state_timestamp_ms)])
        records = [lag.records for lag in facts.lags.values() if lag.records is not None]
        reason = view.last_rebalance_reason
        change = cached.change if cached.reason == reason else reason  # the view may be newer
        return GroupLine(
            group_id=facts.group_id,
            protocol=GroupProtocol(view.group_type),
            state=view.state,
            since_ms=view.state_timestamp_ms,
            members=len(view.members),
            lag_records=sum(records) if records else None,
            lag_ms=max((lag.ms for lag in facts.lags.values() if lag.ms is not None), default=None),
            rebalances=0 if report is None else report.summary.rebalances,
            not_stable=covered_fractions(not_settled, now_ms),
            changed_ms=view.last_rebalance_at_ms,
            change=change,
            findings=findings(facts, report, now_ms),
        )


def _rocketmq_line(facts: GroupFacts, view: RocketMqSnapshot, now_ms: int) -> GroupLine:
    last_entry = facts.entries[-1] if facts.entries else None
    return GroupLine(
        group_id=facts.group_id,
        protocol=GroupProtocol.ROCKETMQ,
        state=group_state(view),
        since_ms=view.at_ms,
        members=len({consumer.client_id for consumer in view.consumers}),
        lag_records=None,
        lag_ms=None,
        rebalances=0,
        not_stable=[],
        changed_ms=None if last_entry is None else last_entry.at_ms,
        change="" if last_entry is None else last_entry.reason,
        findings=findings(facts, report=None, now_ms=now_ms),
    )


def _last_hour(facts: GroupFacts, view: GroupSnapshot, now_ms: int) -> _LastHour:
    kafka_entries = [entry for entry in facts.entries if isinstance(entry, HistoryEntry)]
    if not kafka_entries:
        return _LastHour(facts.entries_version, math.inf, report=None, not_settled=[], reason="", change="")
    analysis = analyze(kafka_entries, from_start=False)
    report = report_of(facts.group_id, analysis, now_ms, now_ms - WINDOW_MS)
    ends_ms = (r.end_ms(now_ms) for r in report.rebalances if r.outcome is not RebalanceOutcome.UNDER_WAY)
    return _LastHour(
        facts.entries_version,
        until_ms=min(ends_ms, default=math.inf) + WINDOW_MS,
        report=report,
        not_settled=list(_not_settled(_state_spans(analysis))),
        reason=view.last_rebalance_reason,
        change=analysis.names.put_in(view.last_rebalance_reason),
    )


def _state_spans(analysis: HistoryAnalysis) -> Iterator[Span]:
    """Yield the group's states, also the one before the first entry."""
    first = analysis.first
    if first.seq > 1:  # the group is older than its first entry
        yield Span(first.from_state, 0, first.at_ms)
    yield from analysis.states


def _not_settled(spans: Iterable[Span]) -> Iterator[Span]:
    return (span for span in spans if span.what not in _SETTLED_STATES)


def covered_fractions(spans: Iterable[Span], now_ms: int) -> list[float]:
    """Return the fraction of each interval of the last hour that `spans` cover, or [] if they cover none."""
    begin_ms, interval_ms = now_ms - WINDOW_MS, WINDOW_MS / INTERVALS
    fractions = [0.0] * INTERVALS
    for span in spans:
        # Times since the beginning of the hour.
        from_ms = max(span.from_ms, begin_ms) - begin_ms
        to_ms = min(now_ms if span.to_ms is None else span.to_ms, now_ms) - begin_ms
        if from_ms >= to_ms:
            continue
        for number in range(int(from_ms // interval_ms), min(int(to_ms // interval_ms) + 1, INTERVALS)):
            overlap_ms = min(to_ms, (number + 1) * interval_ms) - max(from_ms, number * interval_ms)
            fractions[number] += overlap_ms / interval_ms
    return [round(min(fraction, 1.0), 3) for fraction in fractions] if any(fractions) else []


class GroupSelection(Struct, frozen=True, kw_only=True):
    """The filter and order of the lines. A reader can share it as an address."""

    text: str = ""
    state: str = ""
    protocol: str = ""
    sort: str = "unwell"
    page: int = 1

    def select(self, lines: Sequence[GroupLine]) -> list[GroupLine]:
        """Return the lines that match `text`, `state` and `protocol`, in the order of `sort`."""
        text = self.text.casefold()
        selected = [
            line
            for line in lines
            if text in line.group_id.casefold()
            and (self.state in ("", line.state) or (self.state == "unwell" and line.is_unwell))
            and self.protocol in ("", line.protocol)
        ]
        order = _ORDERS.get(self.sort)  # None for "unwell", the order that the lines have
        return selected if order is None else sorted(selected, key=order)


_ORDERS = {
    "name": lambda line: line.group_id,
    "state": lambda line: (line.state, line.group_id),
    "members": lambda line: (-line.members, line.group_id),
    "lag": lambda line: (-(line.lag_records or 0), line.group_id),
    "rebalances": lambda line: (-line.rebalances, line.group_id),
    "changed": lambda line: (-(line.changed_ms or 0), line.group_id),
}
SORTS = ("unwell", *_ORDERS)
