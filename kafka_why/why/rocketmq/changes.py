"""A RocketMQ group's history as a list of changes: the effect of each request or scan, and notifications."""

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

from msgspec.structs import replace

from kafka_why.contract.rocketmq.history import EntryType, HistoryEntry
from kafka_why.contract.rocketmq.requests import MessageModel
from kafka_why.why.incarnations import IncarnationHistory
from kafka_why.why.rocketmq.model import Change, ChangeKind, Concerned, Consumer, Trap

_KINDS = {
    EntryType.DUPLICATE_CLIENT_ID: ChangeKind.DUPLICATE,
    EntryType.CONSUMER_CONNECTED: ChangeKind.CONNECTED,
    EntryType.CLIENT_ID_REPLACED: ChangeKind.REPLACED,
    EntryType.CONSUMER_REMOVED: ChangeKind.LEFT,
    EntryType.SUBSCRIPTION_CHANGED: ChangeKind.TOPICS,
    EntryType.QUEUE_LOCKS_TAKEN_OVER: ChangeKind.LOCKS,
    EntryType.MESSAGE_REQUEST_MODE_SET: ChangeKind.MODE,
    EntryType.CONSUMERS_NOTIFIED: ChangeKind.NOTIFIED,
}


def changes_of(group_lives: Iterable[IncarnationHistory[HistoryEntry]]) -> list[Change]:
    """Return all changes in order. A life without its beginning starts with no known clients."""
    found: list[Change] = []
    for life in group_lives:
        clients: dict[str, str] = {}  # by connection
        gaps = {after.seq for before, after in pairwise(life.entries) if after.seq > before.seq + 1}
        complete = life.first_seq == 1
        for _, entries in groupby(life.entries, key=lambda event: event.cause):
            step = list(entries)
            complete = complete and not any(event.seq in gaps for event in step)
            _follow(clients, step)
            consumers = [Consumer(client_id, connection) for connection, client_id in clients.items()]
            kinds = _kinds(step)
            if kinds:
                found.append(_change(len(found) + 1, kinds, step, consumers, complete=complete))
    return found


def _follow(clients: dict[str, str], step: Iterable[HistoryEntry]) -> None:
    """Update the table of connections with the entries."""
    for event in step:
        if event.connection is None or event.client_id is None:
            continue
        if event.type in (EntryType.CONSUMER_CONNECTED, EntryType.CLIENT_ID_REPLACED):
            clients[event.connection] = event.client_id
        elif event.type is EntryType.CONSUMER_REMOVED:
            clients.pop(event.connection, None)


def _kinds(step: Sequence[HistoryEntry]) -> list[ChangeKind]:
    """Return the kinds of a step, the main kind first; empty if the step does not concern consumers."""
    there = {ChangeKind.EXPIRED if event.is_expiry else _KINDS.get(event.type) for event in step}
    return [kind for kind in ChangeKind if kind in there]


def _change(
    number: int,
    kinds: Sequence[ChangeKind],
    step: Sequence[HistoryEntry],
    consumers: list[Consumer],
    *,
    complete: bool,
) -> Change:
    def of(event_type: EntryType) -> list[HistoryEntry]:
        return [event for event in step if event.type is event_type]

    naming = ChangeKind.LEFT if kinds[0] is ChangeKind.EXPIRED else kinds[0]
    about = [event for event in step if _KINDS.get(event.type) is naming]
    topics, notified = of(EntryType.SUBSCRIPTION_CHANGED), of(EntryType.CONSUMERS_NOTIFIED)
    duplicates = of(EntryType.DUPLICATE_CLIENT_ID)
    return Change(
        number=number,
        incarnation=step[0].incarnation,
        at_ms=step[0].at_ms,
        kind=kinds[0],
        also=list(kinds[1:]),
        trigger=step[0].cause,
        concerned=[Concerned(event.reason, event.client_id, event.connection) for event in about],
        topics=topics[-1].topics if topics else None,
        topics_reason=topics[-1].reason if topics else None,
        notification=notified[-1].reason if notified else None,
        consumers=consumers,
        complete=complete,
        traps={e.client_id: e.connections or [] for e in duplicates if e.client_id},
        harmless=any(e.message_model is MessageModel.BROADCASTING for e in duplicates),
        released=[e.client_id for e in of(EntryType.DUPLICATE_CLIENT_ID_OVER) if e.client_id],
    )


def traps_of(changes: Sequence[Change]) -> list[Trap]:
    """Return the client ids that were on several connections at once, in the order of their beginnings."""
    found: list[Trap] = []
    on: dict[str, int] = {}  # by client id, the index in `found` of its trap while it lasts
    incarnation = ""
    for change in changes:
        if change.incarnation != incarnation:
            # The entries that ended them are missing: no connection outlives the group.
            _end(found, on, list(on), change)
            incarnation = change.incarnation
        for client_id, connections in change.traps.items():
            if client_id not in on:
                on[client_id] = len(found)
                found.append(Trap(client_id, [], change.number, change.at_ms, None, None, change.harmless))
            trap = found[on[client_id]]
            found[on[client_id]] = replace(
                trap, connections=_joined(trap.connections, connections), harmless=change.harmless
            )
        _end(found, on, change.released, change)
    return found


def _end(found: list[Trap], on: dict[str, int], client_ids: Iterable[str], change: Change) -> None:
    for client_id in client_ids:
        if client_id in on:
            place = on.pop(client_id)
            found[place] = replace(found[place], ended=change.number, to_ms=change.at_ms)


def _joined(known: Sequence[str], more: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*known, *more]))
