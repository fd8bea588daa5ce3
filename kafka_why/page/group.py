"""The data of a group's page and of a rebalance's page, also as JSON."""

from collections.abc import Mapping, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.groups.streams import StreamsRow, streams_row
from kafka_why.lag.definitions import Partition, PartitionLag
from kafka_why.page.findings import Finding, awaited_members, findings, share_group_lines
from kafka_why.page.fleet import WINDOW_MS, GroupFacts
from kafka_why.page.timeline import TimelinePicture, picture_limits_ms, timeline
from kafka_why.why.model import Rebalance, RebalanceOutcome
from kafka_why.why.report import HistoryAnalysis, Summary, report_of, summary
from kafka_why.why.state_timelines import StateTimeline
from kafka_why.why.text import cause_text, details
from kafka_why.wording import Names, duration_text, holdings, progress, shortened, times, topics_text


class CurrentMember(Struct, frozen=True, kw_only=True):
    """A present member."""

    name: str
    member_id: str
    client_id: str
    host: str
    is_leader: bool
    holds: str  # its assignment in words
    partitions: int | None  # their number; None if unknown
    since_ms: int | None  # of the member's present state; None if the history does not have it


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
    at_ms: int  # its beginning
    sentence: str  # the cause, as in `why`
    outcome: str
    took_ms: int | None  # None while it is under way, or if its beginning is unknown
    waited: str  # for which member, and how long; or ""
    moved: int | None  # as in `Moves`; None if unknown
    needless: int | None  # as in `Moves`; None if unknown
    is_begin_unknown: bool = False  # as in `Rebalance`
    within_ms: int | None = None  # `Rebalance.began_within_ms`


class GroupPage(Struct, frozen=True, kw_only=True):
    """The data of a group's page. If the group has ended, all data is from its history."""

    group_id: str
    protocol: str
    state: str
    since_ms: int  # of the state
    generation: int
    assignor: str
    now_ms: int
    findings: list[Finding]
    awaited: str  # members that the current rebalance still awaits, or ""
    member_count: int  # 0 if the group has ended
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
    must have a view, a snapshot of the group's state. `only_time` omits members and committed offsets, which
    do not depend on the limits. `unfolded` shows all lanes of the picture. `notes` come before those of the
    analysis.
    """
    if analysis is None:
        return _page_of_view(facts, limits_ms, now_ms)
    hour_ago_ms = now_ms - WINDOW_MS
    report = report_of(facts.group_id, analysis, now_ms, min(limits_ms[0], hour_ago_ms))
    names = analysis.names
    view = facts.view if isinstance(facts.view, GroupSnapshot) else None
    view_of_members = None if only_time else view
    within = [r for r in report.rebalances if limits_ms[0] <= r.end_ms(now_ms) and r.began_ms <= limits_ms[1]]
    report_of_hour = replace(
        report, rebalances=[r for r in report.rebalances if r.end_ms(now_ms) >= hour_ago_ms]
    )
    last = report.rebalances[-1] if report.rebalances else None
    awaited = awaited_members(last) if last is not None and last.outcome is RebalanceOutcome.UNDER_WAY else []
    return GroupPage(
        group_id=facts.group_id,
        protocol=report.group_type,
        state=report.state if view is None else view.state,
        since_ms=report.state_since_ms if view is None else view.state_timestamp_ms,
        generation=report.generation if view is None else view.generation,
        assignor=_assignor_name(view),
        now_ms=now_ms,
        findings=findings(facts, report_of_hour, now_ms),
        awaited=shortened([names.of(member_id) for member_id in awaited]),
        member_count=0 if view is None else len(view.members),
        members=[] if view_of_members is None else _current_members(view_of_members, analysis.lanes, names),
        partitions=[] if only_time else _partition_lines(facts.lags),
        picture=timeline(
            analysis.lanes,
            within,
            analysis.removals,
            names,
            analysis.clients,
            picture_limits_ms(limits_ms, report.from_ms),
            now_ms,
            unfolded=unfolded,
        ),
        rebalances=[rebalance_line(r, names) for r in reversed(within)],
        notes=[*notes, *(names.put_in(note) for note in report.notes)],
        summary=_summary(summary(within, now_ms)),
        shares=[] if view_of_members is None else share_group_lines(view_of_members, now_ms),
        streams=None if view_of_members is None else streams_row(view_of_members),
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
        assignor=_assignor_name(view),
        now_ms=now_ms,
        findings=findings(facts, report=None, now_ms=now_ms),
        awaited="",
        member_count=len(view.members),
        members=_current_members(view, (), names),
        partitions=_partition_lines(facts.lags),
        picture=timeline(
            lanes=(),
            rebalances=(),
            removals=(),
            names=names,
            clients={},
            limits_ms=limits_ms,
            now_ms=now_ms,
        ),
        rebalances=[],
        notes=["its whole history is older than what its topic keeps"],
        summary="",
        shares=share_group_lines(view, now_ms),
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
    # The time until the last awaited member reached its target, joined or was removed. If it has several
    # such entries, the latest one of the first kind counts.
    ends_of_wait = chain(
        ((one.member_id, one.settled_after_ms) for one in reversed(r.progress)),
        ((joined.member_id, joined.after_ms) for joined in reversed(r.joined)),
        ((gone.member_id, gone.after_ms) for gone in reversed(r.removed)),
    )
    after_ms = next((after_ms for member_id, after_ms in ends_of_wait if member_id == r.last), None)
    inferred = " (inferred)" if r.began_within_ms is not None else ""
    return (
        f"{duration_text(after_ms)} of it waiting for {names.of(r.last or '')}{inferred}" if after_ms else ""
    )


def _assignor_name(view: GroupSnapshot | None) -> str:
    """Return the assignor of a group with epochs, or the chosen protocol of a classic group, or ""."""
    if view is None:
        return ""
    return view.consumer.assignor_name if view.consumer else view.protocol_name or ""


def _current_members(
    view: GroupSnapshot, lanes: Sequence[StateTimeline], names: Names
) -> list[CurrentMember]:
    lane_of = {lane.member_id: lane for lane in lanes if lane.is_open}
    return [_current_member(member, view, lane_of.get(member.member_id), names) for member in view.members]


def _current_member(
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


def _partition_lines(lags: Mapping[Partition, PartitionLag]) -> list[PartitionLine]:
    return [
        PartitionLine(
            topic=topic,
            partition=number,
            offset=lag.offset,
            committed_ms=lag.committed_ms,
            stands_since_ms=lag.stands_since_ms,
            lag_records=lag.records,
            lag_ms=lag.ms,
        )
        for (topic, number), lag in sorted(lags.items())
    ]


def _summary(figures: Summary) -> str:
    """Return a sentence such as `It rebalanced 14 times in this time: 13 x session timeout (worker-3).`"""
    number = figures.rebalances
    if not number:
        return "It did not rebalance in this time."
    causes = "; ".join(
        f"{cause.rebalances} x {cause.kind} ({', '.join(list(cause.by_client)[:3])})"
        for cause in figures.causes[:3]
    )
    return f"It rebalanced {times(number)} in this time: {causes}."


MAX_MEMBERS = 12
"""Maximum number of members shown in a phase: the slowest."""
LEAST_PERCENT = 0.3
"""The minimum width of a bar."""


class PhaseBar(Struct, frozen=True):
    """A bar for a phase, or for a member's part of it."""

    name: str
    kind: str  # CSS class
    x: float  # in per cent of the rebalance, as `width`
    width: float
    took: str  # duration in words


class MovedMember(Struct, frozen=True, kw_only=True):
    """The partitions that one member gained and lost."""

    name: str
    before: int  # number of partitions before the rebalance
    after: int  # number of partitions after it
    gained: str  # topics with partitions, in words
    lost: str


class RebalancePage(Struct, frozen=True, kw_only=True):
    """The data of a rebalance's page."""

    group_id: str
    line: RebalanceLine
    ended_ms: int | None
    lines: list[tuple[str, str]]  # of `why`, each with its label
    phases: list[PhaseBar]
    moves: list[MovedMember]
    earlier_ms: int | None  # when the previous rebalance began, or None if there is none
    later_ms: int | None  # when the next rebalance began, or None if there is none
    now_ms: int


def rebalance_page(group_id: str, analysis: HistoryAnalysis, at_ms: int, now_ms: int) -> RebalancePage | None:
    """Return the page of the rebalance that began at `at_ms`, or None if none began then."""
    # Of several rebalances in one millisecond, the last one replaced the others.
    by_time = {r.began_ms: r for r in report_of(group_id, analysis, now_ms).rebalances}
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
        moves=_moved_members(r, names),
        earlier_ms=max((other for other in by_time if other < at_ms), default=None),
        later_ms=min((other for other in by_time if other > at_ms), default=None),
        now_ms=now_ms,
    )


def _lines(r: Rebalance, now_ms: int, names: Names) -> list[tuple[str, str]]:
    """Return the lines of `why`, except the second and later lines of the moves, which are in a table."""
    lines: list[tuple[str, str]] = []
    for label, text in details(r, now_ms, names):
        # A line without a label continues the line above it.
        if label:
            lines.append((label, text))
        elif lines and lines[-1][0] != "moved":
            lines.append(("", text))
    return lines


def _phases(r: Rebalance, names: Names, now_ms: int) -> list[PhaseBar]:
    """Return bars for the phases of a rebalance, and for the members that took longest."""
    is_under_way = r.outcome is RebalanceOutcome.UNDER_WAY
    joining_ms, lasted_ms = r.preparing_ms, r.end_ms(now_ms) - r.began_ms
    if joining_ms is None and is_under_way and not r.has_epochs:  # members are still joining
        joining_ms = lasted_ms
    joined = sorted(r.joined, key=lambda one: -one.after_ms)[:MAX_MEMBERS]
    # If the end of the rebalance is lost, its last known event counts as the end.
    whole_ms = max(lasted_ms, joining_ms or 0, *(one.after_ms for one in joined), 1)

    def bar(name: str, kind: str, from_ms: int, to_ms: int) -> PhaseBar:
        width = max((to_ms - from_ms) * 100 / whole_ms, LEAST_PERCENT)
        x = min(from_ms * 100 / whole_ms, 100 - width)
        return PhaseBar(name, kind, round(x, 3), round(width, 3), duration_text(to_ms - from_ms))

    bars = []
    if joining_ms is not None:
        bars.append(bar("members join", "waits", 0, joining_ms))
        bars += [bar(names.of(one.member_id), "member", 0, one.after_ms) for one in joined]
        if lasted_ms > joining_ms:
            bars.append(bar("assignment", "gives", joining_ms, lasted_ms))
    # A member that has not reached its target takes the whole time.
    settled_ms = [
        (whole_ms if one.settled_after_ms is None else one.settled_after_ms, one) for one in r.progress
    ]
    for to_ms, one in sorted(settled_ms, key=lambda item: -item[0])[:MAX_MEMBERS]:
        kind = "waits" if is_under_way and one.settled_after_ms is None else "member"
        bars.append(bar(names.of(one.member_id), kind, 0, to_ms))
    return bars


def _moved_members(r: Rebalance, names: Names) -> list[MovedMember]:
    """Return the members that gained or lost partitions, or [] if the moves are unknown."""
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
