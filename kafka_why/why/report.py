"""A report on a group: its current state, a summary of its rebalances, and the rebalances."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.contract.kafka.history import DEAD, EntryType, HistoryEntry
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.grouping import grouped
from kafka_why.why.client_telemetry import NO_TELEMETRY, Telemetry, with_client_metrics
from kafka_why.why.deliveries.report import DeliveryReport
from kafka_why.why.model import (
    CauseKind,
    Joined,
    Rebalance,
    SharePartitionStates,
    StreamsNow,
)
from kafka_why.why.moves import AssignmentDecoder
from kafka_why.why.rebalances import rebalances_of
from kafka_why.why.segments import IncarnationHistory, by_incarnation, history_notes
from kafka_why.why.share_state import share_partitions_after
from kafka_why.why.state_timelines import Span, StateTimeline, member_timelines, state_spans
from kafka_why.why.tasks import streams_now
from kafka_why.wording import Clock, Names, clients_of, count, lasting_name, shortened

OBSERVED = (
    "derived from the records of Kafka's own coordinator, which do not show everything: docs/observe.md says "
    "which lines are exact and which are inferred"
)


@dataclass(frozen=True, slots=True)
class HistoryAnalysis:
    """The analysis of a group: all parts of its reports that follow from its entries, whatever time it is."""

    first: HistoryEntry
    last: HistoryEntry
    state_since_ms: int  # when the group entered the state after the last entry
    members: list[MemberId]  # after the last entry
    rebalances: list[Rebalance]
    states: list[Span]  # of the group, for the page's timeline
    lanes: list[StateTimeline]  # the states of each member, for the page's timeline
    removals: list[HistoryEntry]  # entries about removed members
    notes: list[str]  # about gaps in the history, and faults
    clients: dict[MemberId, str]  # from `kafka_why.wording.clients_of`
    names: Names  # short names of all members
    shares: SharePartitionStates | None = None  # of a share group
    streams: StreamsNow | None = None  # of a streams group


def analyze(
    history: Iterable[HistoryEntry],
    *,
    unread: Collection[tuple[str, int]] = (),
    from_start: bool = True,
    telemetry: Telemetry = NO_TELEMETRY,
) -> HistoryAnalysis:
    """Return the analysis of a group. `history` has at least one entry. It may have duplicates and gaps.

    `unread` has the (incarnation, seq) of entries that were not read because nothing depends on them. If
    `from_start`, `history` begins with the first retained entry. `telemetry` has the metrics of the members'
    clients.
    """
    group_lives = by_incarnation(history, unread)
    assert group_lives, "a group without history has no analysis"
    last_life = group_lives[-1]
    assignments = AssignmentDecoder()
    rebalances = with_client_metrics(rebalances_of(group_lives, assignments), telemetry)
    lanes_of_earlier_lives = member_timelines(group_lives[:-1], assignments)
    lanes_of_last_life = member_timelines([last_life], assignments)
    entries = [event for life in group_lives for event in life.entries]
    members = [lane.member_id for lane in lanes_of_last_life if lane.is_open]
    clients = clients_of(entries)
    return HistoryAnalysis(
        first=entries[0],
        last=entries[-1],
        state_since_ms=_state_since_ms(last_life),
        members=members,
        rebalances=with_returns(rebalances, clients),
        states=state_spans(group_lives),
        lanes=[*lanes_of_earlier_lives, *lanes_of_last_life],
        removals=[event for event in entries if event.type is EntryType.MEMBER_REMOVED],
        notes=_notes(group_lives, from_start),
        clients=clients,
        names=names_in(members, rebalances, clients),
        shares=share_partitions_after(last_life.entries),
        streams=streams_now(last_life.entries),
    )


def with_returns(rebalances: Sequence[Rebalance], clients: Mapping[MemberId, str]) -> list[Rebalance]:
    """Return the rebalances. Set `returned` in each that began because a client left and later came back.

    A client that comes back has the same client id and host. `clients` is the result of `clients_of`.
    """
    found = list(rebalances)
    # By client id and host, the index of the rebalance that began when the client left.
    departures: dict[tuple[str, str | None], int] = {}
    for index, r in enumerate(found):
        client_id, host = r.cause.client_id, r.cause.client_host
        if len(r.cause.member_ids) != 1 or client_id is None:
            continue
        if r.cause.kind in (CauseKind.MEMBER_LEFT, CauseKind.MEMBER_GONE, CauseKind.SESSION_TIMEOUT):
            # If a member that stayed has the client id, too, it does not identify the one that left.
            if client_id not in (lasting_name(member_id, clients) for member_id in r.members):
                departures[client_id, host] = index
        elif r.cause.kind is CauseKind.MEMBER_JOINED:
            departure = departures.pop((client_id, host), None)
            if departure is not None:
                after_ms = r.began_ms - found[departure].began_ms
                found[departure] = replace(found[departure], returned=Joined(r.cause.member_ids[0], after_ms))
    return found


def _state_since_ms(life: IncarnationHistory[HistoryEntry]) -> int:
    """Return when the group entered its last state, or the time of the first entry if that is unknown."""
    last = life.entries[-1]
    for event in reversed(life.entries):
        if event.from_state != event.to_state:
            # If the states differ, the entry about the last change is missing.
            return event.at_ms if event.to_state == last.to_state else last.at_ms
    return life.entries[0].at_ms


def _notes(group_lives: Sequence[IncarnationHistory[HistoryEntry]], from_start: bool) -> list[str]:
    last_life = group_lives[-1]
    last = last_life.entries[-1]
    observed = [OBSERVED] if last.observed else []
    ended = [f"the group has ended: {last.reason}"] if last.to_state == DEAD else []
    hints = _hints(last_life.entries)
    return [*observed, *history_notes(group_lives, from_start=from_start), *ended, *hints]


def _hints(entries: Sequence[HistoryEntry]) -> Iterator[str]:
    """Yield notes on replaced static members, and on members that share no topic."""
    replaced_ms = grouped(
        (entry.group_instance_id, entry.at_ms)
        for entry in entries
        if entry.type is EntryType.MEMBER_REPLACED and entry.group_instance_id
    )
    names = [
        f"{name} {count(len(at_ms), 'time')}, last at {Clock(UTC).time(at_ms[-1])} UTC"
        for name, at_ms in replaced_ms.items()
    ]
    if names:
        yield (
            f"static members were replaced by another instance: {shortened(names)}. A restart does that. If "
            "the former instance was still running, two clients share a group.instance.id, and it was fenced "
            "(FENCED_INSTANCE_ID)"
        )
    formed = [entry for entry in entries if entry.type is EntryType.COMPLETING_REBALANCE]
    members_by_topics = _unrelated((formed[-1].subscriptions or {}) if formed else {})
    if len(members_by_topics) > 1:
        parts = "; ".join(
            f"{shortened(members)} to {shortened(sorted(topics))}"
            for topics, members in members_by_topics.items()
        )
        yield (
            f"some members share no topic with the others: {parts}. They still rebalance each other, so "
            "applications that share no topic should have different group.ids"
        )


def _unrelated(subscriptions: Mapping[MemberId, Sequence[str]]) -> dict[frozenset[str], list[MemberId]]:
    """Divide the topics into as many disjoint sets as possible. Return each set with its subscribers.

    No member subscribes to topics of two sets. Members without topics are left out.
    """
    members_by_topics: dict[frozenset[str], list[MemberId]] = {}
    for member_id, topics in subscriptions.items():
        # Merge all sets that have a topic of this member.
        overlapping = [others for others in members_by_topics if others & set(topics)]
        members = [other for others in overlapping for other in members_by_topics.pop(others)]
        if topics:
            members_by_topics[frozenset(topics).union(*overlapping)] = [*members, member_id]
    return members_by_topics


# Originators of rebalances that are not a client.
_NOT_A_CLIENT = {
    CauseKind.TOPICS_CHANGED: "the cluster",
    CauseKind.PATTERN_RESOLVED: "the cluster",
    CauseKind.PARTITIONS_INITIALIZED: "the share coordinator",
    CauseKind.COORDINATED_ELSEWHERE: "the share coordinator",
    CauseKind.OFFSETS_ALTERED: "an administrator",
    CauseKind.CONVERTED: "the group",
}


class CauseCount(Struct, frozen=True):
    """The number of rebalances with one kind of cause, in total and for each client."""

    kind: CauseKind
    rebalances: int  # their number
    by_client: dict[str, int]  # by group.instance.id, or else by client id; member ids change at a restart


class Summary(Struct, frozen=True, kw_only=True):
    """The totals of the rebalances."""

    rebalances: int  # their number
    causes: list[CauseCount]  # the most frequent first
    not_stable_ms: int  # total duration; a rebalance that is under way counts until now
    longest: int | None  # number of the longest rebalance
    longest_ms: int  # its duration, or 0
    moved: int  # sum of `Moves.moved`
    needless: int  # sum of `Moves.needless`, where it is defined


class Report(Struct, frozen=True, kw_only=True):
    """A report on a group."""

    group_id: str
    now_ms: int
    since_ms: int | None  # rebalances that ended earlier are left out; None if none are
    from_ms: int  # time of the first entry
    state: str  # after the last entry; "Dead" if the group ended
    state_since_ms: int
    generation: int  # the group epoch, except for `group_type` classic
    members: list[str]  # after the last entry
    summary: Summary
    notes: list[str]  # about gaps in the history, and faults
    rebalances: list[Rebalance]
    group_type: str = "classic"
    clients: dict[str, str] = {}  # from `kafka_why.wording.clients_of`
    shares: SharePartitionStates | None = None  # of a share group
    deliveries: DeliveryReport | None = None  # of a share group
    unnamed: int = 0  # number of members that brokers' logs do not name
    streams: StreamsNow | None = None  # of a streams group


def report(
    group_id: str,
    history: Iterable[HistoryEntry],
    now_ms: int,
    since_ms: int | None = None,
    *,
    unread: Collection[tuple[str, int]] = (),
    from_start: bool = True,
) -> Report:
    """Return the report on a group. The arguments are those of `analyze` and `report_of`."""
    return report_of(group_id, analyze(history, unread=unread, from_start=from_start), now_ms, since_ms)


def report_of(group_id: str, analysis: HistoryAnalysis, now_ms: int, since_ms: int | None = None) -> Report:
    """Return the report on a group, without the rebalances that ended before `since_ms`.

    The other rebalances are numbered from 1.
    """
    recent = [r for r in analysis.rebalances if since_ms is None or r.end_ms(now_ms) >= since_ms]
    rebalances = [replace(rebalance, number=number) for number, rebalance in enumerate(recent, 1)]
    return Report(
        group_id=group_id,
        now_ms=now_ms,
        since_ms=since_ms,
        from_ms=analysis.first.at_ms,
        state=analysis.last.to_state,
        state_since_ms=analysis.state_since_ms,
        generation=analysis.last.generation,
        members=analysis.members,
        summary=summary(rebalances, now_ms),
        notes=analysis.notes,
        rebalances=rebalances,
        group_type=analysis.last.group_type,
        clients=analysis.clients,
        shares=analysis.shares,
        streams=analysis.streams,
    )


def summary(found: Sequence[Rebalance], now_ms: int) -> Summary:
    """Return the totals of these rebalances."""
    clients_by_kind = grouped((rebalance.cause.kind, client_of(rebalance)) for rebalance in found)
    counts = [
        CauseCount(kind, len(clients), dict(Counter(clients).most_common()))
        for kind, clients in clients_by_kind.items()
    ]
    durations_ms = {r.number: r.end_ms(now_ms) - r.began_ms for r in found}
    longest = max(durations_ms, key=lambda number: durations_ms[number], default=None)
    return Summary(
        rebalances=len(found),
        causes=sorted(counts, key=lambda count: -count.rebalances),
        not_stable_ms=sum(durations_ms.values()),
        longest=longest,
        longest_ms=0 if longest is None else durations_ms[longest],
        moved=sum(r.moves.moved for r in found if r.moves is not None),
        needless=sum(r.moves.needless or 0 for r in found if r.moves is not None),
    )


def client_of(rebalance: Rebalance) -> str:
    """Return the lasting name of the client that caused the rebalance.

    Return a text such as `the cluster` if no client caused it, or `unknown`.
    """
    cause = rebalance.cause
    lasting = _NOT_A_CLIENT.get(cause.kind) or cause.group_instance_id or cause.client_id
    return lasting or next((lasting_name(m, {}) for m in cause.member_ids), "unknown")


def names_in(
    members: Iterable[MemberId], rebalances: Iterable[Rebalance], clients: Mapping[MemberId, str]
) -> Names:
    """Return short names for these members and for all members in these rebalances."""
    ids = set(members)
    for r in rebalances:
        ids.update(r.waited_for, r.members, r.cause.member_ids, r.assignment_bytes or (), r.connect)
        ids.update([joined.member_id for joined in r.joined], [gone.member_id for gone in r.removed])
        ids.update([member.member_id for member in r.moves.members] if r.moves is not None else ())
        ids.update([one.member_id for one in r.progress])
    return Names(ids, clients)
