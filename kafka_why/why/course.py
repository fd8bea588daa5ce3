"""The course of a group: all that its entries say, whatever the time at which somebody asks."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.kafka.states import DEAD
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.why.assignments import Assignments
from kafka_why.why.client_telemetry import NOTHING_SAID, Telemetry, with_clients_said
from kafka_why.why.incarnations import IncarnationHistory, by_incarnation
from kafka_why.why.model import Rebalance, SharesNow
from kafka_why.why.names import Names, clients_of, names_in
from kafka_why.why.notes import notes
from kafka_why.why.rebalances import rebalances_of
from kafka_why.why.share_state import shares_now
from kafka_why.why.state_timelines import Span, StateTimeline, member_timelines, state_spans

OBSERVED = "a group of the cluster's own coordinator: this is what can be seen of it (docs/observe.md)"


@dataclass(frozen=True, slots=True)
class Course:
    """What happened to a group. It does not keep the entries, but for the first, the last and `removals`,
    which say that a member was removed.

    `members` are those at the end. `states` and `lanes` are for the page's picture. `notes` name gaps and
    faults. `clients` are as in `kafka_why.why.names.clients_of`, and `names` are for all members. `shares`
    says how far the partitions of a share group are.
    """

    first: HistoryEntry
    last: HistoryEntry
    state_since_ms: int
    members: list[MemberId]
    rebalances: list[Rebalance]
    states: list[Span]
    lanes: list[StateTimeline]
    removals: list[HistoryEntry]
    notes: list[str]
    clients: dict[MemberId, str]
    names: Names
    shares: SharesNow | None = None


def course_of(
    history: Iterable[HistoryEntry],
    *,
    unread: Collection[tuple[str, int]] = (),
    from_start: bool = True,
    telemetry: Telemetry = NOTHING_SAID,
) -> Course:
    """Follow a group through its history, which has at least one entry; it may have duplicates and gaps.

    `unread` are the names of entries that were not read because nothing depends on them. `from_start`: the
    history begins with the first retained entry. `telemetry` is what the members' clients said.
    """
    group_lives = by_incarnation(history, unread)
    assert group_lives, "a group without history has no course"
    last_life = group_lives[-1]
    assignments = Assignments()
    rebalances = with_clients_said(rebalances_of(group_lives, assignments), telemetry)
    earlier, latest = (
        member_timelines(some_lives, assignments) for some_lives in (group_lives[:-1], group_lives[-1:])
    )
    entries = [event for life in group_lives for event in life.entries]
    members = [lane.member_id for lane in latest if lane.is_open]
    clients = clients_of(entries)
    return Course(
        first=entries[0],
        last=entries[-1],
        state_since_ms=_state_since_ms(last_life),
        members=members,
        rebalances=rebalances,
        states=state_spans(group_lives),
        lanes=[*earlier, *latest],
        removals=[event for event in entries if event.type is EntryType.MEMBER_REMOVED],
        notes=_notes(group_lives, from_start),
        clients=clients,
        names=names_in(members, rebalances, clients),
        shares=shares_now(last_life.entries),
    )


def _state_since_ms(life: IncarnationHistory[HistoryEntry]) -> int:
    last = life.entries[-1]
    for event in reversed(life.entries):
        if event.from_state != event.to_state:
            return event.at_ms if event.to_state == last.to_state else last.at_ms
    return life.entries[0].at_ms


def _notes(group_lives: Sequence[IncarnationHistory[HistoryEntry]], from_start: bool) -> list[str]:
    last = group_lives[-1].entries[-1]
    ended = [f"the group has ended: {last.reason}"] if last.to_state == DEAD else []
    observed = [OBSERVED] if group_lives[-1].entries[-1].observed else []
    return [*observed, *notes(group_lives, from_start=from_start), *ended]
