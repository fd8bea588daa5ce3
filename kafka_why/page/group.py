"""The data of a group's page and of a rebalance's page, also as JSON."""

from collections.abc import Mapping, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.groups.streams import StreamsRow, streams_row
from kafka_why.lag.definitions import Partition, PartitionLag
from kafka_why.page.findings import Finding, awaited_members, findings, lines_of
from kafka_why.page.fleet import WINDOW_MS, GroupFacts
from kafka_why.page.timeline import TimelinePicture, rebalance_end_ms, shown_ms, timeline
from kafka_why.why.model import Rebalance, RebalanceOutcome
from kafka_why.why.report import HistoryAnalysis, Summary, report_of, summary
from kafka_why.why.state_timelines import StateTimeline
from kafka_why.why.text import cause_text, details
from kafka_why.wording import Names, duration_text, holdings, progress, shortened, topics_text


class CurrentMember(Struct, frozen=True, kw_only=True):
    """A present member."""

    name: str
    member_id: str
    client_id: str
    host: str
    is_leader: bool
    holds: str  # its assignment in words
    partitions: int | None
    since_ms: int | None  # of the assignment; None if it is older than the history


class PartitionLine(Struct, frozen=True, kw_only=True):
    """A partition with a committed offset."""

    topic: str
    partition: int
    offset: int
    committed_ms: int  # of the last commit
    stands_since_ms: int  # of the first commit of the same offset
    lag_records: int | None
    lag_ms: int | None


class RebalanceLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rebalance in one line."""

    number: int
    at_ms: int
    sentence: str  # as in `why`
    outcome: str
    took_ms: int | None
    waited: str
    moved: int | None
    needless: int | None
    is_begin_unknown: bool = False  # as in the report
    within_ms: int | None = None  # the report's `began_within_ms`


class GroupPage(Struct, frozen=True, kw_only=True):
    """The data of a group's page. If the group has ended, it is from the history alone."""

    group_id: str
    protocol: str
    state: str
    since_ms: int
    generation: int
    assignor: str
    now_ms: int
    findings: list[Finding]
    awaited: str
    member_count: int
    members: list[CurrentMember]
    partitions: list[PartitionLine]
    picture: TimelinePicture
    rebalances: list[RebalanceLine]
    notes: list[str]
    summary: str
    shares: list[str] = []  # lines about a share group's partitions
    streams: StreamsRow | None = None  # a streams group's processes


def group_page(
    facts: GroupFacts,
    analysis: HistoryAnalysis | None,
    limits_ms: tuple[int, int],
    now_ms: int,
    *,
    unfolded: bool = False,
    only_time: bool = False,
    notes: Sequence[str] = (),
) -> GroupPage:
    """Return the data of a Kafka group's page.

    It has the rebalances within `limits_ms`, and the faults of the last hour. If `analysis` is None, `facts`
    must have a view. `only_time` omits members and committed offsets, which do not depend on the limits.
    `notes` come before those of the analysis.
    """
    if analysis is None:
        return _page_of_view(facts, limits_ms, now_ms)
    hour_ms = now_ms - WINDOW_MS
    found = report_of(facts.group_id, analysis, now_ms, min(limits_ms[0], hour_ms))
    names = analysis.names
    view = facts.view if isinstance(facts.view, GroupSnapshot) else None
    within = [
        r
        for r in found.rebalances
        if limits_ms[0] <= rebalance_end_ms(r, now_ms) and r.began_ms <= limits_ms[1]
    ]
    of_hour = replace(
        found, rebalances=[r for r in found.rebalances if rebalance_end_ms(r, now_ms) >= hour_ms]
    )
    last = found.rebalances[-1] if found.rebalances else None
    awaited = awaited_members(last) if last is not None and last.outcome is RebalanceOutcome.UNDER_WAY else []
    return GroupPage(
        group_id=facts.group_id,
        protocol=found.group_type,
        state=found.state if view is None else view.state,
        since_ms=found.state_since_ms if view is None else view.state_timestamp_ms,
        generation=found.generation if view is None else view.generation,
        assignor=_assignor(view),
        now_ms=now_ms,
        findings=findings(facts, of_hour, now_ms),
        awaited=shortened([names.of(member_id) for member_id in awaited]),
        member_count=0 if view is None else len(view.members),
        members=[] if view is None or only_time else _members(view, analysis.lanes, names),
        partitions=[] if only_time else _partitions(facts.lags),
        picture=timeline(
            analysis.lanes,
            within,
            analysis.removals,
            names,
            analysis.clients,
            shown_ms(limits_ms, found.from_ms),
            now_ms,
            unfolded=unfolded,
        ),
        rebalances=[rebalance_line(r, names) for r in reversed(within)],
        notes=[*notes, *(names.put_in(note) for note in found.notes)],
        summary=_summary(summary(within, now_ms)),
        shares=[] if view is None or only_time else lines_of(view, now_ms),
        streams=None if view is None or only_time else streams_row(view),
    )


def _page_of_view(facts: GroupFacts, limits_ms: tuple[int, int], now_ms: int) -> GroupPage:
    """Return the page of a group whose history has exceeded the topic's retention."""
    view = facts.view
    assert isinstance(view, GroupSnapshot), "a group without a history has a view"
    names = Names([member.member_id for member in view.members])
    return GroupPage(
        group_id=facts.group_id,
        protocol=view.group_type,
        state=view.state,
        since_ms=view.state_timestamp_ms,
        generation=view.generation,
        assignor=_assignor(view),
        now_ms=now_ms,
        findings=findings(facts, None, now_ms),
        awaited="",
        member_count=len(view.members),
        members=_members(view, (), names),
        partitions=_partitions(facts.lags),
        picture=timeline((), (), (), names, {}, limits_ms, now_ms),
        rebalances=[],
        notes=["its whole history is older than what its topic keeps"],
        summary="",
        shares=lines_of(view, now_ms),
        streams=streams_row(view),
    )


def rebalance_line(r: Rebalance, names: Names) -> RebalanceLine:
    """Return a rebalance in one line."""
    return RebalanceLine(
        number=r.number,
        at_ms=r.began_ms,
        sentence=cause_text(r, names),
        outcome=r.outcome,
        took_ms=None if r.ended_ms is None or r.is_begin_unknown else r.ended_ms - r.began_ms,
        is_begin_unknown=r.is_begin_unknown,
        within_ms=r.began_within_ms,
        waited=_waited(r, names),
        moved=None if r.moves is None else r.moves.moved,
        needless=None if r.moves is None else r.moves.needless,
    )


def _waited(r: Rebalance, names: Names) -> str:
    """Return a text such as `2.9 s of it waiting for worker-2`, or ""."""
    if r.is_shared:
        return ""
    came = chain(
        ((one.member_id, one.settled_after_ms) for one in reversed(r.progress)),
        ((joined.member_id, joined.after_ms) for joined in reversed(r.joined)),
        ((gone.member_id, gone.after_ms) for gone in reversed(r.removed)),
    )
    after_ms = next((after_ms for member_id, after_ms in came if member_id == r.last), None)
    inferred = " (inferred)" if r.began_within_ms is not None else ""
    return (
        f"{duration_text(after_ms)} of it waiting for {names.of(r.last or '')}{inferred}" if after_ms else ""
    )


def _assignor(view: GroupSnapshot | None) -> str:
    if view is None:
        return ""
    return view.consumer.assignor_name if view.consumer else view.protocol_name or ""


def _members(view: GroupSnapshot, lanes: Sequence[StateTimeline], names: Names) -> list[CurrentMember]:
    by_id = {lane.member_id: lane for lane in lanes if lane.is_open}
    return [_member(member, view, by_id.get(member.member_id), names) for member in view.members]


def _member(
    member: MemberSnapshot, view: GroupSnapshot, lane: StateTimeline | None, names: Names
) -> CurrentMember:
    holds = progress(member.consumer) if member.consumer else holdings(member.assignment, view.protocol_type)
    return CurrentMember(
        name=names.of(member.member_id),
        member_id=member.member_id,
        client_id=member.client_id,
        host=member.client_host,
        is_leader=member.member_id == view.leader_id,
        holds=holds,
        partitions=None if lane is None else lane.partitions,
        since_ms=None if lane is None else lane.spans[-1].from_ms,
    )


def _partitions(lags: Mapping[Partition, PartitionLag]) -> list[PartitionLine]:
    found = []
    for (topic, number), lag in sorted(lags.items()):
        found.append(
            PartitionLine(
                topic=topic,
                partition=number,
                offset=lag.offset,
                committed_ms=lag.committed_ms,
                stands_since_ms=lag.stands_since_ms,
                lag_records=lag.records,
                lag_ms=lag.ms,
            )
        )
    return found


def _summary(figures: Summary) -> str:
    """Return a sentence such as `It rebalanced 14 times in this time: 13 x session timeout (worker-3).`"""
    number = figures.rebalances
    if not number:
        return "It did not rebalance in this time."
    times = "once" if number == 1 else f"{number} times"
    causes = "; ".join(
        f"{cause.rebalances} x {cause.kind} ({', '.join(list(cause.by_client)[:3])})"
        for cause in figures.causes[:3]
    )
    return f"It rebalanced {times} in this time: {causes}."


# One rebalance, for its page and `/api/rebalance`: `why`'s words, its phases, who was slow, what moved.

MAX_MEMBERS = 12
"""Maximum number of members shown in a phase: the slowest."""
LEAST_PERCENT = 0.3


class PhaseBar(Struct, frozen=True):
    """A bar for a phase, or for a member's part of it."""

    name: str
    kind: str
    x: float  # in per cent of the rebalance, as `width`
    width: float
    took: str


class MovedMember(Struct, frozen=True, kw_only=True):
    """The partitions that one member gained and lost, in words."""

    name: str
    before: int
    after: int
    gained: str
    lost: str


class RebalancePage(Struct, frozen=True, kw_only=True):
    """The data of a rebalance's page."""

    group_id: str
    line: RebalanceLine
    ended_ms: int | None
    lines: list[tuple[str, str]]
    phases: list[PhaseBar]
    moves: list[MovedMember]
    earlier_ms: int | None  # identifies the neighbour's page, as `later_ms`
    later_ms: int | None
    now_ms: int


def rebalance_page(group_id: str, analysis: HistoryAnalysis, at_ms: int, now_ms: int) -> RebalancePage | None:
    """Return the page of the rebalance that began at `at_ms`, or None."""
    found = report_of(group_id, analysis, now_ms)
    # Of several rebalances in one millisecond, the last one replaced the others.
    by_time = {r.began_ms: r for r in found.rebalances}
    r = by_time.get(at_ms)
    if r is None:
        return None
    names = analysis.names
    return RebalancePage(
        group_id=group_id,
        line=rebalance_line(r, names),
        ended_ms=r.ended_ms,
        lines=_lines(r, now_ms, names),
        phases=_phases(r, names, now_ms),
        moves=_moves(r, names),
        earlier_ms=max((other for other in by_time if other < at_ms), default=None),
        later_ms=min((other for other in by_time if other > at_ms), default=None),
        now_ms=now_ms,
    )


def _lines(r: Rebalance, now_ms: int, names: Names) -> list[tuple[str, str]]:
    """Return the lines of `why`, without the moves."""
    found: list[tuple[str, str]] = []
    # The page has the moves in a table.
    for label, text in details(r, now_ms, names):
        if label:
            found.append((label, text))
        elif found and found[-1][0] != "moved":
            found.append(("", text))
    return found


def _phases(r: Rebalance, names: Names, now_ms: int) -> list[PhaseBar]:
    joins_ms, ends_ms = r.preparing_ms, rebalance_end_ms(r, now_ms) - r.began_ms
    if joins_ms is None and r.outcome is RebalanceOutcome.UNDER_WAY and not r.has_epochs:
        joins_ms = ends_ms
    joined = sorted(r.joined, key=lambda one: -one.after_ms)[:MAX_MEMBERS]
    # If the end of the rebalance is lost, its last known event counts as the end.
    whole_ms = max(ends_ms, joins_ms or 0, *(one.after_ms for one in joined), 1)

    def phase(name: str, kind: str, from_ms: int, to_ms: int) -> PhaseBar:
        width = max((to_ms - from_ms) * 100 / whole_ms, LEAST_PERCENT)
        x = min(from_ms * 100 / whole_ms, 100 - width)
        return PhaseBar(name, kind, round(x, 3), round(width, 3), duration_text(to_ms - from_ms))

    found = []
    if joins_ms is not None:
        found.append(phase("members join", "waits", 0, joins_ms))
        found += [phase(names.of(one.member_id), "member", 0, one.after_ms) for one in joined]
        if ends_ms > joins_ms:
            found.append(phase("assignment", "gives", joins_ms, ends_ms))
    ends = [(whole_ms if w.settled_after_ms is None else w.settled_after_ms, w) for w in r.progress]
    for to_ms, one in sorted(ends, key=lambda one: -one[0])[:MAX_MEMBERS]:
        kind = (
            "waits" if r.outcome is RebalanceOutcome.UNDER_WAY and one.settled_after_ms is None else "member"
        )
        found.append(phase(names.of(one.member_id), kind, 0, to_ms))
    return found


def _moves(r: Rebalance, names: Names) -> list[MovedMember]:
    if r.moves is None:
        return []
    return [
        MovedMember(
            name=names.of(member.member_id),
            before=member.before,
            after=member.after,
            gained=topics_text(member.gained),
            lost=topics_text(member.lost),
        )
        for member in r.moves.members
        if member.gained or member.lost
    ]
