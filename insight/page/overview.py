"""All groups in lines, the unwell ones first, for the first page and `/api/groups`."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from insight.page.fleet import WINDOW_MS, Fleet, GroupFacts
from insight.page.unwell import Finding, findings
from insight.rocketmq_group import group_state
from insight.why.lanes import Span, state_spans
from insight.why.lives import lives
from insight.why.report import Report, report
from state.kafka.classic_group import GroupState
from state.kafka.group import DEAD
from state.kafka.history import HistoryEntry
from state.kafka.snapshot import GroupSnapshot
from state.rocketmq.snapshot import GroupSnapshot as RocketMqSnapshot

STRETCHES = 30
"""The last hour as so many stretches of equal length."""
PAGE_LINES = 100

_SETTLED = (GroupState.STABLE.value, GroupState.EMPTY.value, DEAD)


class Protocol(StrEnum):
    """The protocols of groups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    ROCKETMQ = "RocketMQ"


class GroupLine(Struct, frozen=True, kw_only=True):
    """One group. `lag_records` is None if no end is known, `lag_since_ms` the time since which the oldest
    record waits that is not committed. `not_stable` is the share of each stretch of the last hour in which the
    group was not Stable, from 0 to 1. `rebalances` are those of the last hour.
    """

    group_id: str
    protocol: Protocol
    state: str
    since_ms: int
    members: int
    lag_records: int | None
    lag_since_ms: int | None
    rebalances: int
    not_stable: list[float]
    changed_ms: int | None
    change: str
    findings: list[Finding]

    @property
    def is_unwell(self) -> bool:
        return bool(self.findings)


class Overview:
    """The lines of all groups. A line is made again when its group changes, and as time passes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._reports: dict[str, tuple[int, int, Report | None]] = {}

    def lines(self, now_ms: int) -> list[GroupLine]:
        """All groups that there are, the unwell ones first, then those that rebalanced most."""
        found = [line for facts in self._fleet.all_facts() if (line := self._line(facts, now_ms)) is not None]
        return sorted(found, key=_urgency)

    def report(self, facts: GroupFacts, now_ms: int) -> Report | None:
        """The report of the group's last hour, None if it is RocketMQ's or has no entries."""
        minute = now_ms // 60_000
        known = self._reports.get(facts.group_id)
        if known is not None and known[:2] == (facts.version, minute):
            return known[2]
        ours = [entry for entry in facts.entries if isinstance(entry, HistoryEntry)]
        made = report(facts.group_id, ours, now_ms, now_ms - WINDOW_MS, from_start=False) if ours else None
        self._reports[facts.group_id] = (facts.version, minute, made)
        return made

    def _line(self, facts: GroupFacts, now_ms: int) -> GroupLine | None:
        view = facts.view
        if view is None:
            self._reports.pop(facts.group_id, None)
            return None
        if isinstance(view, RocketMqSnapshot):
            return _rocketmq_line(facts, view, now_ms)
        of_hour = self.report(facts, now_ms)
        known = [lag.records for lag in facts.lags.values() if lag.records is not None]
        return GroupLine(
            group_id=facts.group_id,
            protocol=Protocol.CONSUMER if view.consumer else Protocol.CLASSIC,
            state=view.state,
            since_ms=view.state_timestamp_ms,
            members=len(view.members),
            lag_records=sum(known) if known else None,
            lag_since_ms=min(
                (lag.since_ms for lag in facts.lags.values() if lag.records and lag.since_ms is not None),
                default=None,
            ),
            rebalances=0 if of_hour is None else of_hour.summary.rebalances,
            not_stable=not_stable(facts, view, now_ms),
            changed_ms=view.last_rebalance_at_ms,
            change=view.last_rebalance_reason,
            findings=findings(facts, of_hour, now_ms),
        )


def _rocketmq_line(facts: GroupFacts, view: RocketMqSnapshot, now_ms: int) -> GroupLine:
    last = facts.entries[-1] if facts.entries else None
    return GroupLine(
        group_id=facts.group_id,
        protocol=Protocol.ROCKETMQ,
        state=group_state(view),
        since_ms=view.at_ms,
        members=len({consumer.client_id for consumer in view.consumers}),
        lag_records=None,
        lag_since_ms=None,
        rebalances=0,
        not_stable=[],
        changed_ms=None if last is None else last.at_ms,
        change="" if last is None else last.reason,
        findings=findings(facts, None, now_ms),
    )


def _urgency(line: GroupLine) -> tuple[object, ...]:
    gravest = line.findings[0].kind if line.findings else 99
    return gravest, -line.rebalances, line.group_id


def not_stable(facts: GroupFacts, view: GroupSnapshot, now_ms: int) -> list[float]:
    """Return the share of each stretch of the last hour in which the group was not Stable or Empty."""
    ours = [entry for entry in facts.entries if isinstance(entry, HistoryEntry)]
    spans = state_spans(lives(ours)) if ours else [Span(view.state, view.state_timestamp_ms)]
    return shares([span for span in spans if span.what not in _SETTLED], now_ms)


def shares(spans: Iterable[Span], now_ms: int) -> list[float]:
    """Return which share of each stretch of the last hour these spans fill."""
    begin_ms, step_ms = now_ms - WINDOW_MS, WINDOW_MS / STRETCHES
    filled = [0.0] * STRETCHES
    for span in spans:
        from_ms = max(span.from_ms, begin_ms) - begin_ms
        to_ms = min(now_ms if span.to_ms is None else span.to_ms, now_ms) - begin_ms
        for stretch in range(int(from_ms // step_ms), STRETCHES):
            overlap = min(to_ms, (stretch + 1) * step_ms) - max(from_ms, stretch * step_ms)
            if overlap <= 0:
                break
            filled[stretch] += overlap / step_ms
    return [round(min(share, 1.0), 3) for share in filled] if any(filled) else []


class Selection(Struct, frozen=True, kw_only=True):
    """Which lines the reader wants: from the address, so that a view can be sent to somebody."""

    text: str = ""
    state: str = ""
    protocol: str = ""
    sort: str = "unwell"
    page: int = 1

    def of(self, lines: Sequence[GroupLine]) -> list[GroupLine]:
        """Return the lines that fit, in the order that is wanted."""
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
