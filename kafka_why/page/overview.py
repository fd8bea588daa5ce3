"""The list of all groups, the unwell ones first, for the first page and `/api/groups`."""

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
from kafka_why.page.findings import Finding, findings
from kafka_why.page.fleet import WINDOW_MS, Fleet, GroupFacts
from kafka_why.page.members import EMPTY, Members, MembersSum, ViewMembers, view_members
from kafka_why.page.timeline import rebalance_end_ms
from kafka_why.rocketmq_group import group_state
from kafka_why.why.model import RebalanceOutcome
from kafka_why.why.report import HistoryAnalysis, Report, analyze, report_of
from kafka_why.why.state_timelines import Span

INTERVALS = 30
"""The number of equal intervals of the last hour."""
PAGE_LINES = 100
LINES_INTERVAL_S = 0.5
MEMBERS_INTERVAL = 5
"""The pause before the clients and hosts are computed again, as a multiple of the time that this takes."""

_SETTLED = (GroupState.STABLE.value, GroupState.EMPTY.value, DEAD)


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
    since_ms: int
    members: int
    lag_records: int | None  # sum of the partitions' lags; None if unknown for all
    lag_ms: int | None  # greatest lag in time; None if unknown for all
    rebalances: int  # of the last hour
    # For each interval of the last hour, the fraction in which the group was neither Stable nor Empty; [] if
    # there was no such time.
    not_stable: list[float]
    changed_ms: int | None
    change: str
    findings: list[Finding]

    @property
    def is_unwell(self) -> bool:
        return bool(self.findings)


class _LastHour(NamedTuple):
    """The last hour of a group, computed from its entries. It is valid until there is a new entry."""

    version: int
    until_ms: float  # end of the validity: the oldest rebalance is then older than an hour
    report: Report | None
    not_settled: list[Span]
    reason: str  # of the last rebalance, as in the view
    change: str  # `reason` with the names of members


class OverviewThread(BackgroundThread):
    """A thread that computes the lines again and again, so that no reader waits for them."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__("page-overview")
        self._fleet = fleet
        self._overview = Overview(fleet)
        self.version = 0
        """The fleet's version when the lines were computed. They may be newer."""
        self.lines: list[GroupLine] = []
        """The lines. They are some seconds old at most, or as old as computing them takes."""
        self.members: Members = EMPTY
        """The clients and hosts of the same moment."""

    def _run(self) -> None:
        pause_s = members_from_s = 0.0
        while not self._stopped.wait(pause_s):
            began_s = time.monotonic()
            with_members = began_s >= members_from_s
            version = self._fleet.version
            self.lines = self._overview.lines(now_ms(), with_members=with_members)
            self.members = self._overview.members
            self.version = version
            if with_members:
                ended_s = time.monotonic()
                members_from_s = ended_s + MEMBERS_INTERVAL * (ended_s - began_s)
            # This thread uses at most a third of the interpreter's time, because readers need it, too.
            pause_s = max(LINES_INTERVAL_S, 2 * (time.monotonic() - began_s))


class Overview:
    """The lines of all groups. Not thread-safe.

    The data from a group's entries is computed again when they change.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._known: dict[str, _LastHour] = {}
        self._seen: dict[str, ViewMembers] = {}
        self.members: Members = EMPTY
        """The clients and hosts of all groups, as the last call of `lines` with `with_members` found them."""

    def lines(self, now_ms: int, *, with_members: bool = True) -> list[GroupLine]:
        """Return a line for each existing group. Unwell groups are first, then those that rebalanced most.

        `with_members` also computes the clients and hosts.
        """
        before, self._known = self._known, {}
        seen = self._seen
        if with_members:
            self._seen = {}
        found, members = [], MembersSum()
        for facts in self._fleet.all_facts():
            line = self._line(facts, before.get(facts.group_id), now_ms)
            if line is not None:
                found.append(line)
                if with_members:
                    self._add_members(members, facts, seen.get(facts.group_id))
        if with_members:
            self.members = members.members()
        return sorted(found, key=_urgency)

    def _add_members(self, members: MembersSum, facts: GroupFacts, known: ViewMembers | None) -> None:
        assert facts.view is not None, "a group with a line has a view"
        if known is None or known.view is not facts.view:
            known = view_members(facts.view)
        self._seen[facts.group_id] = known
        of_hour = self._known.get(facts.group_id)
        members.add(
            facts, known, () if of_hour is None or of_hour.report is None else of_hour.report.rebalances
        )

    def _line(self, facts: GroupFacts, known: _LastHour | None, now_ms: int) -> GroupLine | None:
        view = facts.view
        if view is None:
            return None
        if isinstance(view, RocketMqSnapshot):
            return _rocketmq_line(facts, view, now_ms)
        if known is None or known.version != facts.entries_version or known.until_ms < now_ms:
            known = _last_hour(facts, view, now_ms)
        self._known[facts.group_id] = known
        of_hour = known.report
        records = [lag.records for lag in facts.lags.values() if lag.records is not None]
        return GroupLine(
            group_id=facts.group_id,
            protocol=GroupProtocol(view.group_type),
            state=view.state,
            since_ms=view.state_timestamp_ms,
            members=len(view.members),
            lag_records=sum(records) if records else None,
            lag_ms=max((lag.ms for lag in facts.lags.values() if lag.ms is not None), default=None),
            rebalances=0 if of_hour is None else of_hour.summary.rebalances,
            not_stable=shares(
                known.not_settled
                if facts.entries
                else _not_settled([Span(view.state, view.state_timestamp_ms)]),
                now_ms,
            ),
            changed_ms=view.last_rebalance_at_ms,
            change=known.change if known.reason == view.last_rebalance_reason else view.last_rebalance_reason,
            findings=findings(facts, of_hour, now_ms),
        )


def _rocketmq_line(facts: GroupFacts, view: RocketMqSnapshot, now_ms: int) -> GroupLine:
    last = facts.entries[-1] if facts.entries else None
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
        changed_ms=None if last is None else last.at_ms,
        change="" if last is None else last.reason,
        findings=findings(facts, None, now_ms),
    )


def _urgency(line: GroupLine) -> tuple[object, ...]:
    gravest = line.findings[0].kind if line.findings else 99
    return gravest, -line.rebalances, line.group_id


def _last_hour(facts: GroupFacts, view: GroupSnapshot, now_ms: int) -> _LastHour:
    ours = [entry for entry in facts.entries if isinstance(entry, HistoryEntry)]
    if not ours:
        return _LastHour(facts.entries_version, math.inf, None, [], "", "")
    analysis = analyze(ours, from_start=False)
    made = report_of(facts.group_id, analysis, now_ms, now_ms - WINDOW_MS)
    ends_ms = (
        rebalance_end_ms(r, now_ms) for r in made.rebalances if r.outcome is not RebalanceOutcome.UNDER_WAY
    )
    until_ms = min(ends_ms, default=math.inf) + WINDOW_MS
    reason = view.last_rebalance_reason
    not_settled = [*_not_settled(_states(analysis))]
    return _LastHour(
        facts.entries_version, until_ms, made, not_settled, reason, analysis.names.put_in(reason)
    )


def _states(analysis: HistoryAnalysis) -> Iterator[Span]:
    first = analysis.first
    if first.seq > 1:  # the group is older than its first entry
        yield Span(first.from_state, 0, first.at_ms)
    yield from analysis.states


def _not_settled(spans: Iterable[Span]) -> Iterator[Span]:
    return (span for span in spans if span.what not in _SETTLED)


def shares(spans: Iterable[Span], now_ms: int) -> list[float]:
    """Return the fraction of each interval of the last hour that `spans` cover."""
    begin_ms, step_ms = now_ms - WINDOW_MS, WINDOW_MS / INTERVALS
    filled = [0.0] * INTERVALS
    for span in spans:
        from_ms = max(span.from_ms, begin_ms) - begin_ms
        to_ms = min(now_ms if span.to_ms is None else span.to_ms, now_ms) - begin_ms
        if from_ms >= to_ms:
            continue
        for interval in range(int(from_ms // step_ms), min(int(to_ms // step_ms) + 1, INTERVALS)):
            overlap_ms = min(to_ms, (interval + 1) * step_ms) - max(from_ms, interval * step_ms)
            filled[interval] += overlap_ms / step_ms
    return [round(min(share, 1.0), 3) if share else 0.0 for share in filled] if any(filled) else []


class GroupSelection(Struct, frozen=True, kw_only=True):
    """The filter and order of the lines. A reader can share it as an address."""

    text: str = ""
    state: str = ""
    protocol: str = ""
    sort: str = "unwell"
    page: int = 1

    def of(self, lines: Sequence[GroupLine]) -> list[GroupLine]:
        """Return the matching lines in the wanted order."""
        wanted = self.text.casefold()
        found = [
            line
            for line in lines
            if wanted in line.group_id.casefold()
            and self.state in ("", line.state, "unwell" if line.is_unwell else "")
            and self.protocol in ("", line.protocol)
        ]
        order = _ORDERS.get(self.sort)
        return found if order is None else sorted(found, key=order)


_ORDERS = {
    "name": lambda line: line.group_id,
    "state": lambda line: (line.state, line.group_id),
    "members": lambda line: (-line.members, line.group_id),
    "lag": lambda line: (-(line.lag_records or 0), line.group_id),
    "rebalances": lambda line: (-line.rebalances, line.group_id),
    "changed": lambda line: (-(line.changed_ms or 0), line.group_id),
}
SORTS = ("unwell", *_ORDERS)
