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
_AFTER_REMOVAL = (
    EntryType.GROUP_EPOCH_BUMPED,
    EntryType.TARGET_ASSIGNMENT_COMPUTED,
    EntryType.TOPICS_CHANGED,
    EntryType.MEMBER_REMOVED,
)
# A new group has epoch 1 in Kafka 3.7 to 4.2, and 2 later.
_FIRST_EPOCH_MAX = 2
_LEAVE_RULE = "L6"  # the rule by which a member leaves with LeaveGroup
# Fields that an event and a history entry have in common.
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
    unnamed: int | None  # number of current members that no line names; None if unknown


def entries_of(events: Iterable[LogEvent]) -> LoggedHistory:
    """Derive entries from the events of one group, which are in order of time.

    A sequence number is skipped where a line is missing. The broker logs some lines only at DEBUG.
    """
    history = _History()
    for event in events:
        history.apply(event)
    return LoggedHistory(history.numbered(), history.unnamed)


class _History:
    """The state of one group while its lines are read."""

    def __init__(self) -> None:
        self.unnamed: int | None = None  # number of current members that no line names; None if unknown
        self._entries: list[HistoryEntry] = []
        self._gaps: set[int] = set()  # indexes of entries before which one is missing
        self._members: dict[str, None] = {}  # ids of the current members that a line names, in order
        # MemberIdAssigned events of clients that got a member id but have not joined with it, by this id.
        self._pending: dict[str, LogEvent] = {}
        # Epoch of the last target assignment, or None if the current epoch has none.
        self._target_epoch: int | None = None
        self._at_target: set[str] = set()  # members that have reached this assignment
        self._topics_changed: LogEvent | None = None  # the last TopicsChanged since the last epoch
        self._generation = 0
        self._begin("", CLASSIC)

    def numbered(self) -> list[HistoryEntry]:
        """Return the entries with their sequence numbers, which skip one at each gap."""
        self._bump_if_empty()
        numbered: list[HistoryEntry] = []
        for index, entry in enumerate(self._entries):
            continues = bool(numbered) and numbered[-1].incarnation == entry.incarnation
            last_seq = numbered[-1].seq if continues else 0
            step = 2 if index in self._gaps else 1
            numbered.append(replace(entry, seq=last_seq + step))
        return numbered

    def apply(self, event: LogEvent) -> None:
        """Add the entries that follow from the next event."""
        if not self._incarnation:
            self._begin(event.place, event.group_type)
        if event.type not in _AFTER_REMOVAL:
            self._bump_if_empty()
        handle = _HANDLERS.get(event.type, _History._change_member)  # all other events are about members
        handle(self, event)

    def _assign(self, event: LogEvent) -> None:
        """Add the entry that a classic group's leader has sent the assignment."""
        self._generation = event.generation or self._generation
        self._change_state(event, GroupState.STABLE.value, members=self._all_members())

    def _empty(self, event: LogEvent) -> None:
        """Add the entry that a classic group has no members."""
        self._generation = event.generation or self._generation
        self._members, self._pending, self.unnamed = {}, {}, 0
        self._change_state(event, GroupState.EMPTY.value)

    def _delete(self, event: LogEvent) -> None:
        """Add the entry that the group was deleted. The next line is of a new group."""
        self._change_state(event, DEAD)
        self._incarnation = ""

    def _assign_id(self, event: LogEvent) -> None:
        """Keep the event of a client that got a member id. The client joins only when it sends this id."""
        self._pending[event.member_id or ""] = event

    def _change_topics(self, event: LogEvent) -> None:
        """Keep a change of topics, which is the cause of the next epoch unless members changed."""
        self._topics_changed = event

    def _begin(self, incarnation: str, group_type: str) -> None:
        """Begin the history of a new group. `incarnation` is the place of its first line."""
        self._incarnation, self._type = incarnation, group_type or CONSUMER
        # Indexes of entries: the incarnation's first one, the first one of its last rebalance, and the one
        # after its last change of state.
        self._incarnation_start = self._rebalance_start = self._after_last_state = len(self._entries)
        self._generation, self._state = 0, ""
        self._members, self._pending, self._at_target = {}, {}, set()
        self._target_epoch = self._topics_changed = None
        self._is_rebalancing = False
        self.unnamed = None

    def _entry(self, event: LogEvent, **fields: Any) -> HistoryEntry:
        """Return the entry of an event in the group's present state. `fields` are further fields of it."""
        details = {name: value for name in _DETAILS if (value := getattr(event, name)) is not None}
        return HistoryEntry(
            version=RECORD_VERSION,
            type=event.type,
            group_id=event.group_id,
            incarnation=self._incarnation,
            seq=0,
            at_ms=event.at_ms,
            from_state=self._state,
            to_state=fields.pop("to_state", self._state),
            generation=self._generation,
            reason=event.reason,
            rule=event.rule,
            cause=event.place,
            group_type=self._type,
            observed=True,
            **{**details, **fields},
        )

    def _change_state(self, event: LogEvent, to_state: str, **fields: Any) -> None:
        """Add the entry of an event with which the group enters `to_state`."""
        self._entries.append(self._entry(event, to_state=to_state, **fields))
        self._state, self._after_last_state = to_state, len(self._entries)
        self._is_rebalancing = event.type not in (EntryType.STABLE, EntryType.EMPTY)

    def _all_members(self) -> list[str] | None:
        """Return the ids of all members, or None if lines do not name them all."""
        return list(self._members) if self.unnamed == 0 else None

    def _change_member(self, event: LogEvent) -> None:
        """Add an entry about a member, or complete the entry that the rebalance already has."""
        if event.group_type == CLASSIC and self._type not in BY_EPOCHS:
            for index in range(self._rebalance_start, len(self._entries)):
                entry = self._entries[index]
                is_same_change = entry.type is event.type and entry.member_id == event.member_id
                if is_same_change and event.member_id is not None:
                    self._entries[index] = _with_details(entry, event)
                    return
        elif self._has_change(event):
            return
        # A member on the classic protocol does not change the type of a group with epochs.
        if event.group_type != CLASSIC or self._type not in BY_EPOCHS:
            self._type = event.group_type or self._type
        self._update_members(event)
        self._entries.append(self._entry(event))

    def _has_change(self, event: LogEvent) -> bool:
        """Return True if the entries have this change of a member already. The group has epochs."""
        if event.type is EntryType.MEMBER_REJOINED:
            # Each new subscription has a line, and so has the first one of a new member.
            new_members = (
                entry.member_id
                for entry in self._entries[self._after_last_state :]
                if entry.type is EntryType.MEMBER_ADDED
            )
            return event.member_id in new_members
        return event.type is EntryType.MEMBER_ADDED and event.member_id in self._members

    def _update_members(self, event: LogEvent) -> None:
        """Apply a change of a member to the members, named or unnamed."""
        member_id = event.member_id or ""
        self._pending.pop(member_id, None)
        if event.type is EntryType.MEMBER_REMOVED:
            if member_id in self._members:
                del self._members[member_id]
            elif self.unnamed:  # the removed member was one of them
                self.unnamed -= 1
        elif event.type is EntryType.MEMBER_REPLACED:
            self._members.pop(event.replaced_member_id or "", None)
        if event.type in (EntryType.MEMBER_ADDED, EntryType.MEMBER_REPLACED) and member_id:
            self._members[member_id] = None

    def _prepare(self, event: LogEvent) -> None:
        """Start a rebalance, after the entries of its causes."""
        generation = event.generation or 0
        if self._after_last_state == self._incarnation_start:  # the first line about the group's state
            self._state = GroupState.STABLE.value if generation else GroupState.EMPTY.value
            self.unnamed = None if generation else 0
        self._type, self._generation = CLASSIC, generation
        causes = [self._pop_entry_of(cause) or self._new_entry_of(cause, event) for cause in event.causes]
        if "LeaveGroup" in event.reason:
            # The reason omits members that left by instance id only, but their lines are just before it.
            while len(self._entries) > self._after_last_state and self._entries[-1].rule == _LEAVE_RULE:
                causes.insert(0, self._entries.pop())
        self._rebalance_start = len(self._entries)
        self._entries += [replace(entry, cause=event.place, reason=event.reason) for entry in causes]
        only_member = causes[0].member_id if len(causes) == 1 else None
        self._change_state(
            replace(event, member_id=only_member), GroupState.PREPARING_REBALANCE.value, within_ms=0
        )

    def _pop_entry_of(self, cause: LogEvent) -> HistoryEntry | None:
        """Remove and return the entry about `cause` since the last change of state, or return None."""
        for index in range(len(self._entries) - 1, self._after_last_state - 1, -1):
            entry = self._entries[index]
            is_about_cause = entry.type is cause.type and (
                entry.member_id == cause.member_id
                or (entry.member_id is None and entry.group_instance_id == cause.group_instance_id)
            )
            if is_about_cause:
                del self._entries[index]
                return _with_details(entry, cause)
        return None

    def _new_entry_of(self, cause: LogEvent, preparing: LogEvent) -> HistoryEntry:
        """Return an entry about a cause that has no line of its own."""
        self._update_members(cause)
        return self._entry(
            replace(cause, at_ms=preparing.at_ms, place=preparing.place, group_id=preparing.group_id)
        )

    def _form(self, event: LogEvent) -> None:
        """Add the generation that a rebalance has formed."""
        self._generation = event.generation or self._generation
        # The coordinator in Scala does not log that members with assigned ids join. They have joined if the
        # generation's number of members includes all of them.
        member_count, pending = event.members, self._pending
        if member_count == len(self._members) + len(pending) + (self.unnamed or 0):
            for id_assigned in pending.values():
                joined = replace(id_assigned, type=EntryType.MEMBER_ADDED, at_ms=event.at_ms)
                self._entries.append(self._entry(joined))
            self._members.update(dict.fromkeys(pending))
            self._pending = {}
        if member_count is not None and len(self._members) > member_count:
            self._members = {}  # a removal has no line, so it is unknown who is left
        self.unnamed = None if member_count is None else member_count - len(self._members)
        self._change_state(event, GroupState.COMPLETING_REBALANCE.value, members=self._all_members())

    def _bump(self, event: LogEvent) -> None:
        """Add a new group epoch, with the changes of members that led to it."""
        if self._after_last_state == self._incarnation_start:  # the first line about the group's state
            self.unnamed = 0 if (event.generation or 0) <= _FIRST_EPOCH_MAX else None
        if event.group_type or self._type not in BY_EPOCHS:
            self._type = event.group_type or CONSUMER
        if self._is_rebalancing and self._target_epoch is not None:
            # The members count as settled before this epoch, although no line says when they reached their
            # target.
            self._gaps.add(self._after_last_state)
            self._state = ConsumerGroupState.STABLE.value
        # All entries since the last change of state are causes of this epoch.
        causes = [
            replace(entry, cause=event.place, from_state=self._state, to_state=self._state)
            for entry in self._entries[self._after_last_state :]
        ]
        self._entries[self._after_last_state :] = causes
        self._rebalance_start, self._generation = self._after_last_state, event.generation or self._generation
        self._target_epoch, self._at_target = None, set()
        reasons = dict.fromkeys(entry.reason for entry in causes)
        rule, reason = event.rule, "; ".join(reasons) or event.reason
        if not causes and self._topics_changed is not None:
            rule, reason = self._topics_changed.rule, self._topics_changed.reason
        self._topics_changed = None
        only_member = causes[0].member_id if len(causes) == 1 else None
        state = GroupState.STABLE if self._type == SHARE else ConsumerGroupState.ASSIGNING
        bump = replace(event, rule=rule, reason=reason, member_id=only_member)
        self._change_state(bump, state.value, members=self._all_members())
        if self.unnamed == 0 and not self._members:
            emptied = replace(event, type=EntryType.EMPTY, reason="the last member is gone", member_id=None)
            self._change_state(emptied, GroupState.EMPTY.value)

    def _bump_without_line(self, generation: int) -> None:
        """Add the epoch after a removal, which neither Kafka 3 nor share and streams groups log."""
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

    def _bump_if_empty(self) -> None:
        """Add the epoch after the removal of the last member, unless it was added before."""
        is_emptied = len(self._entries) > self._after_last_state and not self._members and self.unnamed == 0
        if is_emptied and self._type in BY_EPOCHS and self._state not in (GroupState.EMPTY, ""):
            self._bump_without_line(self._generation + 1)

    def _compute(self, event: LogEvent) -> None:
        """Add a target assignment. If no line shows its epoch, add that first."""
        generation = event.generation or 0
        if generation > self._generation and len(self._entries) > self._after_last_state:
            self._bump_without_line(generation)
        self._target_epoch = generation
        if self._state in (GroupState.EMPTY, ""):
            return
        state = self._state if self._type == SHARE else ConsumerGroupState.RECONCILING.value
        self._change_state(event, state, assignment_epoch=self._target_epoch, members=self._all_members())

    def _reconcile(self, event: LogEvent) -> None:
        """Apply a member's new assignment. When all members have reached their targets, add Stable."""
        has_reached = event.member_state in (None, "STABLE") and event.generation == self._target_epoch
        add_or_discard = self._at_target.add if has_reached else self._at_target.discard
        add_or_discard(event.member_id or "")
        # If some members are unnamed, it is unknown when the last one reaches its target.
        if self._is_rebalancing and self.unnamed == 0 and self._at_target >= self._members.keys():
            stable = replace(
                event, type=EntryType.STABLE, member_id=None, reason="every member has its target"
            )
            self._change_state(
                stable,
                GroupState.STABLE.value,
                assignment_epoch=self._target_epoch,
                members=self._all_members(),
            )


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
    """Return the entry, with the event's details in the fields that are None."""
    details = {name: getattr(event, name) for name in _DETAILS if getattr(entry, name) is None}
    return replace(entry, **details)
