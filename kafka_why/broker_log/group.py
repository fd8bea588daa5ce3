"""Derives a group's history entries from the lines about it in brokers' logs."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from msgspec.structs import replace

from kafka_why.broker_log.events import LogEvent
from kafka_why.contract.kafka.history import (
    BY_EPOCHS,
    CLASSIC,
    CONSUMER,
    DEAD,
    SHARE,
    ConsumerGroupState,
    EntryType,
    GroupState,
    HistoryEntry,
)
from kafka_why.contract.messages import RECORD_VERSION

OF_MEMBERS = (
    EntryType.MEMBER_ADDED,
    EntryType.MEMBER_REJOINED,
    EntryType.MEMBER_REPLACED,
    EntryType.MEMBER_REMOVED,
    EntryType.GROUP_CONVERTED,
)
# Events that can follow the line about a removed member and belong to the same removal.
_AFTER_MEMBERS = (
    EntryType.GROUP_EPOCH_BUMPED,
    EntryType.TARGET_ASSIGNMENT_COMPUTED,
    EntryType.TOPICS_CHANGED,
    EntryType.MEMBER_REMOVED,
)
# A new group has epoch 1 in Kafka 3.7 to 4.2, and 2 later.
_FIRST_EPOCH_MAX = 2
_LEFT = "L6"
_DETAILS = (
    "member_id",
    "replaced_member_id",
    "group_instance_id",
    "client_id",
    "client_host",
    "client_reason",
    "leader_id",
    "assignor_name",
)


class LoggedHistory(NamedTuple):
    """A group's entries, derived from log lines."""

    entries: list[HistoryEntry]
    unnamed: int | None  # current members that no line names; None if unknown


def entries_of(events: Iterable[LogEvent]) -> LoggedHistory:
    """Derive entries from the events of one group, in order of time.

    Where lines are missing, the entries skip a sequence number. The broker logs some lines only at DEBUG.
    """
    history = _History()
    for event in events:
        history.take(event)
    return LoggedHistory(history.numbered(), history.unnamed)


class _History:
    """The state of one group while its lines are read."""

    def __init__(self) -> None:
        self.unnamed: int | None = None
        self._entries: list[HistoryEntry] = []
        self._gaps: set[int] = set()
        self._members: dict[str, None] = {}
        self._pending: dict[str, LogEvent] = {}
        # Epoch of the last target assignment, or None if the current epoch has none.
        self._target: int | None = None
        self._at_target: set[str] = set()
        self._news: LogEvent | None = None  # last event about changed topics since the last epoch
        self._generation = 0
        self._begin("", CLASSIC)

    def numbered(self) -> list[HistoryEntry]:
        """Return the entries with their sequence numbers."""
        self._end_without_line()
        found: list[HistoryEntry] = []
        for place, entry in enumerate(self._entries):
            is_next = bool(found) and found[-1].incarnation == entry.incarnation
            seq = 1 + (found[-1].seq if is_next else 0) + (place in self._gaps)
            found.append(replace(entry, seq=seq))
        return found

    def take(self, event: LogEvent) -> None:
        """Add the entries that follow from the next event."""
        if not self._incarnation:
            self._begin(event.place, event.group_type)
        if event.type not in _AFTER_MEMBERS:
            self._end_without_line()
        _HANDLERS.get(event.type, _History._change_member)(self, event)

    def _assign(self, event: LogEvent) -> None:
        self._generation = event.generation or self._generation
        self._enter(event, GroupState.STABLE.value, members=self._all_members())

    def _empty(self, event: LogEvent) -> None:
        self._generation = event.generation or self._generation
        self._members, self._pending, self.unnamed = {}, {}, 0
        self._enter(event, GroupState.EMPTY.value)

    def _delete(self, event: LogEvent) -> None:
        self._enter(event, DEAD)
        self._incarnation = ""

    def _assign_id(self, event: LogEvent) -> None:
        self._pending[event.member_id or ""] = event

    def _change_topics(self, event: LogEvent) -> None:
        self._news = event

    def _begin(self, incarnation: str, group_type: str) -> None:
        self._incarnation, self._type = incarnation, group_type or CONSUMER
        # Indexes of entries: the first one of the last rebalance, and the one after the last that sets the
        # state.

        self._round = self._tail = self._first = len(self._entries)
        self._generation, self._state = 0, ""
        self._members, self._pending, self._at_target = {}, {}, set()
        self._target = self._news = None
        self._is_open = False  # a rebalance is under way
        self.unnamed = None

    def _entry(self, event: LogEvent, **more: Any) -> HistoryEntry:
        details = {name: value for name in _DETAILS if (value := getattr(event, name)) is not None}
        return HistoryEntry(
            version=RECORD_VERSION,
            type=event.type,
            group_id=event.group_id,
            incarnation=self._incarnation,
            seq=0,
            at_ms=event.at_ms,
            from_state=self._state,
            to_state=more.pop("to_state", self._state),
            generation=self._generation,
            reason=event.reason,
            rule=event.rule,
            cause=event.place,
            group_type=self._type,
            observed=True,
            **{**details, **more},
        )

    def _enter(self, event: LogEvent, to_state: str, **more: Any) -> None:
        self._entries.append(self._entry(event, to_state=to_state, **more))
        self._state, self._tail = to_state, len(self._entries)
        self._is_open = event.type not in (EntryType.STABLE, EntryType.EMPTY)

    def _all_members(self) -> list[str] | None:
        return list(self._members) if self.unnamed == 0 else None

    def _change_member(self, event: LogEvent) -> None:
        """Add an entry about a member, unless the rebalance has it already."""
        if event.group_type == CLASSIC and self._type not in BY_EPOCHS:
            for place in range(self._round, len(self._entries)):
                entry = self._entries[place]
                if entry.type is event.type and entry.member_id == event.member_id is not None:
                    self._entries[place] = _with_details(entry, event)
                    return
        elif self._is_known(event):
            return
        # A group with epochs may have members on the classic protocol.
        if event.group_type != CLASSIC or self._type not in BY_EPOCHS:
            self._type = event.group_type or self._type
        self._follow(event)
        self._entries.append(self._entry(event))

    def _is_known(self, event: LogEvent) -> bool:
        # A group with epochs logs each new subscription, also the first one of a new member.
        if event.type is EntryType.MEMBER_REJOINED:
            joined = (
                entry.member_id
                for entry in self._entries[self._tail :]
                if entry.type is EntryType.MEMBER_ADDED
            )
            return event.member_id in joined
        return event.type is EntryType.MEMBER_ADDED and event.member_id in self._members

    def _follow(self, event: LogEvent) -> None:
        member_id = event.member_id or ""
        self._pending.pop(member_id, None)
        if event.type is EntryType.MEMBER_REMOVED:
            if member_id in self._members:
                del self._members[member_id]
            elif self.unnamed:
                self.unnamed -= 1
        elif event.type is EntryType.MEMBER_REPLACED:
            self._members.pop(event.replaced_member_id or "", None)
        if event.type in (EntryType.MEMBER_ADDED, EntryType.MEMBER_REPLACED) and member_id:
            self._members[member_id] = None

    def _prepare(self, event: LogEvent) -> None:
        """Start a rebalance. Entries just before it with the same cause belong to it."""
        generation = event.generation or 0
        if self._tail == self._first:
            self._state = GroupState.STABLE.value if generation else GroupState.EMPTY.value
            self.unnamed = None if generation else 0
        self._type, self._generation = CLASSIC, generation
        lead = [self._pop(cause) or self._new(cause, event) for cause in event.causes]
        if "LeaveGroup" in event.reason:  # the reason omits members that left by instance id only
            while len(self._entries) > self._tail and self._entries[-1].rule == _LEFT:
                lead.insert(0, self._entries.pop())
        self._round = len(self._entries)
        self._entries += [replace(entry, cause=event.place, reason=event.reason) for entry in lead]
        alone = lead[0].member_id if len(lead) == 1 else None
        self._enter(replace(event, member_id=alone), GroupState.PREPARING_REBALANCE.value, within_ms=0)

    def _pop(self, cause: LogEvent) -> HistoryEntry | None:
        for place in range(len(self._entries) - 1, self._tail - 1, -1):
            entry = self._entries[place]
            is_same = entry.type is cause.type and (
                entry.member_id == cause.member_id
                or (entry.member_id is None and entry.group_instance_id == cause.group_instance_id)
            )
            if is_same:
                del self._entries[place]
                return _with_details(entry, cause)
        return None

    def _new(self, cause: LogEvent, preparing: LogEvent) -> HistoryEntry:
        self._follow(cause)
        at = {"at_ms": preparing.at_ms, "place": preparing.place, "group_id": preparing.group_id}
        return self._entry(replace(cause, **at))

    def _form(self, event: LogEvent) -> None:
        self._generation = event.generation or self._generation
        # The coordinator in Scala does not log that members with assigned ids have joined.
        number, pending = event.members, self._pending
        if number is not None and number == len(self._members) + len(pending) + (self.unnamed or 0):
            for assigned in pending.values():
                joined = replace(assigned, type=EntryType.MEMBER_ADDED, at_ms=event.at_ms)
                self._entries.append(self._entry(joined))
            self._members.update(dict.fromkeys(pending))
            self._pending = {}
        if number is not None and len(self._members) > number:  # a removal has no line
            self._members = {}
        self.unnamed = None if number is None else number - len(self._members)
        self._enter(event, GroupState.COMPLETING_REBALANCE.value, members=self._all_members())

    def _bump(self, event: LogEvent) -> None:
        if self._tail == self._first:
            self.unnamed = 0 if (event.generation or 0) <= _FIRST_EPOCH_MAX else None
        if event.group_type or self._type not in BY_EPOCHS:
            self._type = event.group_type or CONSUMER
        if self._is_open and self._target is not None:
            self._gaps.add(self._tail)
            self._state = ConsumerGroupState.STABLE.value
        # The causes of this epoch.
        lead = [
            replace(entry, cause=event.place, from_state=self._state, to_state=self._state)
            for entry in self._entries[self._tail :]
        ]
        self._entries[self._tail :] = lead
        self._round, self._generation = self._tail, event.generation or self._generation
        self._target, self._at_target = None, set()
        rule, reason = event.rule, "; ".join(dict.fromkeys(entry.reason for entry in lead)) or event.reason
        if not lead and self._news is not None:
            rule, reason = self._news.rule, self._news.reason
        self._news = None
        alone = lead[0].member_id if len(lead) == 1 else None
        state = GroupState.STABLE if self._type == SHARE else ConsumerGroupState.ASSIGNING
        explained = replace(event, rule=rule, reason=reason, member_id=alone)
        self._enter(explained, state.value, members=self._all_members())
        if self.unnamed == 0 and not self._members:
            gone = replace(event, type=EntryType.EMPTY, reason="the last member is gone", member_id=None)
            self._enter(gone, GroupState.EMPTY.value)

    def _bump_without_line(self, generation: int) -> None:
        """Add the epoch that follows a removal. Kafka 3, and share and streams groups, do not log it."""
        last = self._entries[-1]
        self._bump(
            LogEvent(
                type=EntryType.GROUP_EPOCH_BUMPED,
                group_id=last.group_id,
                at_ms=last.at_ms,
                place=last.cause,
                reason="the group has a new epoch",
                generation=generation,
            )
        )

    def _end_without_line(self) -> None:
        is_over = len(self._entries) > self._tail and not self._members and self.unnamed == 0
        if is_over and self._type in BY_EPOCHS and self._state not in (GroupState.EMPTY, ""):
            self._bump_without_line(self._generation + 1)

    def _compute(self, event: LogEvent) -> None:
        generation = event.generation or 0
        if generation > self._generation and len(self._entries) > self._tail:
            self._bump_without_line(generation)
        self._target = generation
        if self._state in (GroupState.EMPTY, ""):
            return
        state = self._state if self._type == SHARE else ConsumerGroupState.RECONCILING.value
        self._enter(event, state, assignment_epoch=self._target, members=self._all_members())

    def _reconcile(self, event: LogEvent) -> None:
        is_stable = event.member_state in (None, "STABLE") and event.generation == self._target
        (self._at_target.add if is_stable else self._at_target.discard)(event.member_id or "")
        # Only if the lines name all members.
        if self._is_open and self.unnamed == 0 and self._at_target >= self._members.keys():
            done = replace(event, type=EntryType.STABLE, member_id=None, reason="every member has its target")
            more = {"assignment_epoch": self._target, "members": self._all_members()}
            self._enter(done, GroupState.STABLE.value, **more)


_HANDLERS: dict[EntryType, Callable[[_History, LogEvent], None]] = {
    EntryType.PREPARING_REBALANCE: _History._prepare,
    EntryType.COMPLETING_REBALANCE: _History._form,
    EntryType.STABLE: _History._assign,
    EntryType.EMPTY: _History._empty,
    EntryType.GROUP_DELETED: _History._delete,
    EntryType.MEMBER_ID_ASSIGNED: _History._assign_id,
    EntryType.GROUP_EPOCH_BUMPED: _History._bump,
    EntryType.TARGET_ASSIGNMENT_COMPUTED: _History._compute,
    EntryType.MEMBER_RECONCILED: _History._reconcile,
    EntryType.TOPICS_CHANGED: _History._change_topics,
}


def _with_details(entry: HistoryEntry, event: LogEvent) -> HistoryEntry:
    details = {name: getattr(event, name) for name in _DETAILS if getattr(entry, name) is None}
    return replace(entry, **details)
