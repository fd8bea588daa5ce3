"""A report on a group: its current state, a summary of its rebalances, and the rebalances."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.why.course import Course, course_of
from kafka_why.why.deliveries.model import DeliveryReport
from kafka_why.why.model import CauseKind, Rebalance, RebalanceOutcome, SharesNow
from kafka_why.why.names import lasting_name

_NO_CLIENTS = {
    CauseKind.TOPICS_CHANGED: "the cluster",
    CauseKind.PATTERN_RESOLVED: "the cluster",
    CauseKind.PARTITIONS_INITIALIZED: "the share coordinator",
    CauseKind.COORDINATED_ELSEWHERE: "the share coordinator",
    CauseKind.OFFSETS_ALTERED: "an administrator",
    CauseKind.CONVERTED: "the group",
}


class CauseCount(Struct, frozen=True):
    """How often one kind of cause opened a rebalance, and how often for each client.

    A client is named by its group.instance.id, else its client id, because its member id changes when it
    restarts.
    """

    kind: CauseKind
    rebalances: int
    by_client: dict[str, int]


class Summary(Struct, frozen=True, kw_only=True):
    """Figures of the rebalances. One under way counts until now; `longest` is a rebalance's number."""

    rebalances: int
    causes: list[CauseCount]
    not_stable_ms: int
    longest: int | None
    longest_ms: int
    moved: int
    needless: int


class Report(Struct, frozen=True, kw_only=True):
    """One group. `state` is that of the last entry, "Dead" if it ended. `notes` name gaps and faults.
    `group_type` is `classic` or `consumer`, the group's protocol; `generation` is the group epoch with the
    latter. `clients` are as in `kafka_why.why.names.clients_of`. `shares` and `deliveries` are set for a
    share group. `unnamed` is the number of further members, which brokers' logs do not name.
    """

    group_id: str
    now_ms: int
    since_ms: int | None
    from_ms: int
    state: str
    state_since_ms: int
    generation: int
    members: list[str]
    summary: Summary
    notes: list[str]
    rebalances: list[Rebalance]
    group_type: str = "classic"
    clients: dict[str, str] = {}
    shares: SharesNow | None = None
    deliveries: DeliveryReport | None = None
    unnamed: int = 0


def report(
    group_id: str,
    history: Iterable[HistoryEntry],
    now_ms: int,
    since_ms: int | None = None,
    *,
    unread: Collection[tuple[str, int]] = (),
    from_start: bool = True,
) -> Report:
    """Return the report on a group. For the other arguments see `course_of` and `report_of`."""
    return report_of(group_id, course_of(history, unread=unread, from_start=from_start), now_ms, since_ms)


def report_of(group_id: str, course: Course, now_ms: int, since_ms: int | None = None) -> Report:
    """Return the report on a group that has taken this course.

    `since_ms` omits the rebalances that ended before it; the others are numbered from 1.
    """
    found = [r for r in course.rebalances if since_ms is None or _end_ms(r, now_ms) >= since_ms]
    found = [replace(rebalance, number=number) for number, rebalance in enumerate(found, 1)]
    return Report(
        group_id=group_id,
        now_ms=now_ms,
        since_ms=since_ms,
        from_ms=course.first.at_ms,
        state=course.last.to_state,
        state_since_ms=course.state_since_ms,
        generation=course.last.generation,
        members=course.members,
        summary=summary(found, now_ms),
        notes=course.notes,
        rebalances=found,
        group_type=course.last.group_type,
        clients=course.clients,
        shares=course.shares,
    )


def summary(found: Sequence[Rebalance], now_ms: int) -> Summary:
    """Return the figures of these rebalances."""
    causes: dict[CauseKind, Counter[str]] = {}
    for rebalance in found:
        causes.setdefault(rebalance.cause.kind, Counter())[client_of(rebalance)] += 1
    counts = [
        CauseCount(kind, clients.total(), dict(clients.most_common())) for kind, clients in causes.items()
    ]
    lengths = {r.number: _end_ms(r, now_ms) - r.began_ms for r in found}
    longest = max(lengths, key=lambda number: lengths[number], default=None)
    return Summary(
        rebalances=len(found),
        causes=sorted(counts, key=lambda count: -count.rebalances),
        not_stable_ms=sum(lengths.values()),
        longest=longest,
        longest_ms=0 if longest is None else lengths[longest],
        moved=sum(r.moves.moved for r in found if r.moves is not None),
        needless=sum(r.moves.needless or 0 for r in found if r.moves is not None),
    )


def client_of(rebalance: Rebalance) -> str:
    """Return the client that caused the rebalance, by its lasting name; the cluster, if its topics did, and
    the share coordinator, if it has initialized partitions.
    """
    cause = rebalance.cause
    lasting = _NO_CLIENTS.get(cause.kind) or cause.group_instance_id or cause.client_id
    return lasting or next((lasting_name(m, {}) for m in cause.member_ids), "unknown")


def _end_ms(rebalance: Rebalance, now_ms: int) -> int:
    """Return when the rebalance ended, now if it is under way, or its beginning if the end is lost."""
    if rebalance.ended_ms is not None:
        return rebalance.ended_ms
    under_way = rebalance.outcome is RebalanceOutcome.UNDER_WAY
    return max(now_ms, rebalance.began_ms) if under_way else rebalance.began_ms
