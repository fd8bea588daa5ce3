"""One group, for its page and `/api/group`: what it is now, what is wrong, its timeline, its rebalances."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from insight.page.end_offsets import Partition
from insight.page.fleet import GroupFacts, Lag
from insight.page.timeline import Timeline, timeline
from insight.page.unwell import Finding, awaited_members, findings
from insight.view import holdings, progress
from insight.why.clock import duration_text
from insight.why.history import History
from insight.why.lanes import Lane
from insight.why.model import Outcome, Rebalance
from insight.why.names import Names
from insight.why.report import Report, lanes_of, report
from insight.why.text import cause_text, names_of
from insight.why.wording import shortened
from state.kafka.history import HistoryEntry
from state.kafka.snapshot import GroupSnapshot, MemberSnapshot


class MemberLine(Struct, frozen=True, kw_only=True):
    """A member now. `holds` is what it has in words, `since_ms` when that began (None: before the history)."""

    name: str
    member_id: str
    client_id: str
    host: str
    is_leader: bool
    holds: str
    partitions: int | None
    since_ms: int | None


class PartitionLine(Struct, frozen=True, kw_only=True):
    """A partition with a committed offset."""

    topic: str
    partition: int
    offset: int
    committed_ms: int
    lag_records: int | None
    lag_since_ms: int | None


class RebalanceLine(Struct, frozen=True, kw_only=True):
    """A rebalance in one line. `sentence` is that of `why`."""

    number: int
    at_ms: int
    sentence: str
    outcome: str
    took_ms: int | None
    waited: str
    moved: int | None
    needless: int | None


class GroupPage(Struct, frozen=True, kw_only=True):
    """A group. Of one that has ended, `view` is what the history says."""

    group_id: str
    protocol: str
    state: str
    since_ms: int
    generation: int
    assignor: str
    now_ms: int
    findings: list[Finding]
    awaited: str
    members: list[MemberLine]
    partitions: list[PartitionLine]
    picture: Timeline
    rebalances: list[RebalanceLine]
    notes: list[str]
    summary: str


def group_page(
    facts: GroupFacts, history: History, limits_ms: tuple[int, int], now_ms: int, *, unfolded: bool = False
) -> GroupPage:
    """Return the page of a group of Kafka's. The rebalances are those that ended after the first limit."""
    ours = [entry for entry in history.entries if isinstance(entry, HistoryEntry)]
    found = report(
        facts.group_id, ours, now_ms, limits_ms[0], unread=history.unread, from_start=history.from_start
    )
    _, lanes = lanes_of(ours)
    shown_ms = max(limits_ms[0], found.from_ms - (limits_ms[1] - found.from_ms) // 50), limits_ms[1]
    names = names_of(found)
    view = facts.view if isinstance(facts.view, GroupSnapshot) else None
    within = [r for r in found.rebalances if r.began_ms <= limits_ms[1]]
    last = found.rebalances[-1] if found.rebalances else None
    awaited = awaited_members(last) if last is not None and last.outcome is Outcome.UNDER_WAY else []
    return GroupPage(
        group_id=facts.group_id,
        protocol=found.group_type,
        state=found.state if view is None else view.state,
        since_ms=found.state_since_ms,
        generation=found.generation,
        assignor=_assignor(view),
        now_ms=now_ms,
        findings=findings(facts, found, now_ms),
        awaited=shortened([names.of(member_id) for member_id in awaited]),
        members=[] if view is None else _members(view, lanes, names),
        partitions=_partitions(facts.lags),
        picture=timeline(lanes, within, ours, names, found.clients, shown_ms, now_ms, unfolded=unfolded),
        rebalances=[rebalance_line(r, names) for r in reversed(within)],
        notes=[names.put_in(note) for note in found.notes],
        summary=_summary(found),
    )


def rebalance_line(r: Rebalance, names: Names) -> RebalanceLine:
    """Return a rebalance in one line."""
    joined = max(r.joined, key=lambda one: one.after_ms, default=None)
    slowest = (
        ""
        if joined is None or not joined.after_ms
        else (f"{duration_text(joined.after_ms)} of it waiting for {names.of(joined.member_id)}")
    )
    return RebalanceLine(
        number=r.number,
        at_ms=r.began_ms,
        sentence=cause_text(r, names),
        outcome=r.outcome,
        took_ms=None if r.ended_ms is None else r.ended_ms - r.began_ms,
        waited=slowest,
        moved=None if r.moves is None else r.moves.moved,
        needless=None if r.moves is None else r.moves.needless,
    )


def _assignor(view: GroupSnapshot | None) -> str:
    if view is None:
        return ""
    return view.consumer.assignor_name if view.consumer else view.protocol_name or ""


def _members(view: GroupSnapshot, lanes: Sequence[Lane], names: Names) -> list[MemberLine]:
    by_id = {lane.member_id: lane for lane in lanes if lane.is_open}
    return [_member(member, view, by_id.get(member.member_id), names) for member in view.members]


def _member(member: MemberSnapshot, view: GroupSnapshot, lane: Lane | None, names: Names) -> MemberLine:
    holds = progress(member.consumer) if member.consumer else holdings(member.assignment, view.protocol_type)
    return MemberLine(
        name=names.of(member.member_id),
        member_id=member.member_id,
        client_id=member.client_id,
        host=member.client_host,
        is_leader=member.member_id == view.leader_id,
        holds=holds,
        partitions=None if lane is None else lane.partitions,
        since_ms=None if lane is None else lane.spans[-1].from_ms,
    )


def _partitions(lags: Mapping[Partition, Lag]) -> list[PartitionLine]:
    found = []
    for (topic, number), lag in sorted(lags.items()):
        found.append(
            PartitionLine(
                topic=topic,
                partition=number,
                offset=lag.commit.offset,
                committed_ms=lag.commit.at_ms,
                lag_records=lag.records,
                lag_since_ms=lag.since_ms,
            )
        )
    return found


def _summary(found: Report) -> str:
    """`It rebalanced 14 times. 13 times: session timeout of worker-3.`"""
    number = found.summary.rebalances
    if not number:
        return "It did not rebalance in this time."
    times = "once" if number == 1 else f"{number} times"
    causes = "; ".join(
        f"{cause.rebalances} x {cause.kind} ({', '.join(list(cause.by_client)[:3])})"
        for cause in found.summary.causes[:3]
    )
    return f"It rebalanced {times} in this time: {causes}."
