"""The processing of one record, and its results: history entries and changes of offsets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field

from kafka_why.contract.kafka.history import (
    CONSUMER,
    DEAD,
    STREAMS,
    EntryType,
    GroupState,
    HistoryEntry,
    OffsetChange,
)
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.contract.kafka.snapshot import listed as shortened
from kafka_why.contract.messages import RECORD_VERSION
from kafka_why.contract.protocols.subscriptions import (
    PROTOCOL_TYPE,
    ProtocolError,
    decode_subscribed_topics,
)
from kafka_why.observed.group import CREATION, Epochs, ObservedGroup
from kafka_why.observed.records import ClassicMember


class RecordPosition(NamedTuple):
    """The position of a record: its append time, and its id."""

    time_ms: int
    record: str  # id of the record
    incarnation: str  # of a group that begins with this record


class Observation(Struct):
    """The results of processing one record. The functions for each kind of record change `group`, and add
    entries with `record`.
    """

    group: ObservedGroup
    at: RecordPosition  # of the record
    names: Mapping[bytes, str]  # of topics, by id
    history: list[HistoryEntry] = field(default_factory=list)  # new entries
    offsets: list[OffsetChange] = field(default_factory=list)
    view_changed: bool = False  # the group's view has to be written again
    is_over: bool = False  # the group has ended
    # The time of a classic group's tombstone, if no other record of that group was read. If a group with
    # epochs begins at the same time, the classic group was converted to it.
    removed_ms: int | None = None

    def record(
        self,
        rule: str,
        type_: EntryType,
        reason: str,
        *,
        to_state: str | None = None,
        at_ms: int | None = None,
        **details: Any,
    ) -> None:
        """Add an entry, and set the group's state to `to_state` unless it is None.

        `rule` is a row of docs/observe.md.
        """
        group = self.group
        if type_ is EntryType.GROUP_CREATED:
            assert group.seq == CREATION, "a creation is the first entry"
        else:
            group.seq += 1
        from_state = group.state
        time_ms = group.last_entry_ms = max(group.last_entry_ms, self.at.time_ms if at_ms is None else at_ms)
        if to_state is not None and to_state != from_state:
            group.state, group.state_timestamp_ms = to_state, time_ms
        self.view_changed = True
        self.history.append(
            HistoryEntry(
                version=RECORD_VERSION,
                type=type_,
                group_id=group.group_id,
                incarnation=group.incarnation,
                seq=group.seq,
                at_ms=time_ms,
                from_state=from_state,
                to_state=group.state,
                generation=group.generation,
                reason=reason,
                rule=rule,
                cause=group.run,
                group_type=group.type_name,
                observed=True,
                **details,
            )
        )

    def epochs(self, kind: str) -> Epochs:
        """Return the group's epochs. A group that has none, or is of another type, becomes one of `kind`."""
        group = self.group
        if group.epochs is None or group.epochs.kind != kind:
            if group.classic is not None or group.epochs is not None:
                # The group had another type, and the tombstone that ended it is missing.
                self.skip_seq()
                group.generation = 0
            elif self.at.time_ms == self.removed_ms and group.seq == CREATION:
                # The group is a converted classic one, so its history must not begin with a creation.
                self.skip_seq()
            group.epochs, group.classic, group.sightings = Epochs(kind), None, []
            group.protocol_type = PROTOCOL_TYPE if kind == CONSUMER else kind
        return group.epochs

    def record_or_update(
        self, rule: str, type_: EntryType, reason: str, *, to_state: str | None = None, **details: Any
    ) -> None:
        """Add an entry, or only update the state of a group whose history has not begun (`Epochs.is_found`).

        A reconciled member can make the group Stable, so its entry updates the state, too.
        """
        group = self.group
        assert group.epochs is not None
        if not group.epochs.is_found:
            self.record(rule, type_, reason, to_state=to_state, **details)
        elif to_state is not None or type_ is EntryType.MEMBER_RECONCILED:
            group.state, group.state_timestamp_ms = group.epochs_state(), self.at.time_ms

    def delete(self, rule: str, reason: str) -> None:
        """Record that the group was deleted. Its offsets, if any, remain in a group without members."""
        self.record(rule, EntryType.GROUP_DELETED, reason, to_state=DEAD)
        self.is_over = True

    def skip_seq(self) -> None:
        """Skip a sequence number of the history, so that readers notice that records are missing."""
        self.group.seq += 1


def listed_partitions(seen: Observation, partitions: Partitions) -> str:
    """Return a text such as `orders-0, orders-1`, or tasks in a streams group: `active 0_3`."""
    separator = "_" if seen.group.type_name == STREAMS else "-"
    shown = seen.group.partitions_by_name(partitions, seen.names)
    texts = [f"{name}{separator}{number}" for name, numbers in shown.items() for number in numbers]
    return shortened(texts, "task" if seen.group.type_name == STREAMS else "partition")


def listed(ids: Iterable[str], noun: str) -> str:
    """Return a text such as `member a`, `members a and b`, or `members a, b and c`."""
    names = list(ids)
    if len(names) == 1:
        return f"{noun} {names[0]}"
    return f"{noun}s {', '.join(names[:-1])} and {names[-1]}"


class Change(Struct, frozen=True):
    """The difference between the members of two successive states of a group."""

    joined: list[ClassicMember]
    gone: list[ClassicMember]
    back: list[tuple[ClassicMember, str]]  # static members with a new member id, each with its former id
    changed: list[ClassicMember]  # that subscribe to other topics


def difference(
    had_members: Sequence[ClassicMember], has_members: Sequence[ClassicMember], protocol_type: str | None
) -> Change:
    """Return how a group's members changed from `had_members` to `has_members`.

    An unknown subscription counts as unchanged.
    """
    old_by_id = {m.member_id: m for m in had_members}
    new_ids = {m.member_id for m in has_members}
    old_id_by_instance = {
        m.group_instance_id: m.member_id for m in had_members if m.group_instance_id is not None
    }
    new_members = [m for m in has_members if m.member_id not in old_by_id]
    rejoined = [
        (m, old_id_by_instance[m.group_instance_id])
        for m in new_members
        if m.group_instance_id in old_id_by_instance
    ]
    rejoined_ids = {m.member_id for m, _ in rejoined}
    stayed = [(m, old_by_id[m.member_id]) for m in has_members if m.member_id in old_by_id]
    replaced_ids = {old_id for _, old_id in rejoined}
    return Change(
        joined=[m for m in new_members if m.member_id not in rejoined_ids],
        gone=[m for m in had_members if m.member_id not in new_ids and m.member_id not in replaced_ids],
        back=rejoined,
        changed=[
            m
            for m, old_member in stayed
            if old_member.subscription
            and m.subscription
            and topics_of(protocol_type, m) != topics_of(protocol_type, old_member)
        ],
    )


def open_rebalance(
    seen: Observation, change: Change, at_ms: int, *, within_ms: int | None = None, also: str = ""
) -> None:
    """Record that a rebalance began at `at_ms`, with the changes of members that led to it.

    If polls found the group rebalancing, the rebalance began at most `within_ms` earlier. `also` is appended
    to its reason.
    """
    group = seen.group
    rule, reason, member_ids = _change_reason(seen, change, at_ms)
    record_members(seen, rule, change, at_ms)
    previous_rebalance_at_ms = group.last_rebalance_at_ms
    group.last_rebalance_at_ms, group.last_rebalance_reason = at_ms, reason + also
    seen.record(
        rule if within_ms is None else "OB30",
        EntryType.PREPARING_REBALANCE,
        reason + also,
        to_state=GroupState.PREPARING_REBALANCE.value,
        at_ms=at_ms,
        member_id=member_ids[0] if len(member_ids) == 1 else None,
        last_rebalance_at_ms=previous_rebalance_at_ms,
        within_ms=within_ms,
    )


def _change_reason(seen: Observation, change: Change, at_ms: int) -> tuple[str, str, list[str]]:
    """Return why a rebalance began: the row of docs/observe.md, a sentence, and the ids of its members."""
    joined = [m.member_id for m in change.joined]
    gone = [m.member_id for m in change.gone]
    back = [m.member_id for m, _ in change.back]
    changed = [m.member_id for m in change.changed]
    texts = []
    if joined:
        texts.append(f"{listed(joined, 'member')} joined")
    if gone:
        texts.append("; ".join(removal_reason(seen, m, at_ms) for m in change.gone))
    if back:
        texts.append(f"static {listed(back, 'member')} came back")
    if changed:
        texts.append(f"{listed(changed, 'member')} subscribed to other topics")
    # Each rule that applies, with the members to which it applies.
    rules = [(rule, ids) for rule, ids in zip(_ROWS, (joined, gone, back, changed), strict=True) if ids]
    if not rules:
        return "OB8", "the same members joined again, and the log does not say which was the first", []
    if len(rules) == 1:
        rule, member_ids = rules[0]
        return rule, texts[0], member_ids
    reason = f"{'; '.join(texts)}; the log does not say in which order"
    return "OB7", reason, [member_id for _, ids in rules for member_id in ids]


_ROWS = ("OB4", "OB3", "OB5", "OB6")  # members joined, left, came back, or changed their subscriptions


def removal_reason(seen: Observation, member: ClassicMember, at_ms: int) -> str:
    """Return a sentence about a member that is gone at `at_ms`, with the time of its last commit if known."""
    group = seen.group
    assert group.classic is not None
    held, since_ms = group.held_by(member), group.classic.since_ms
    return group.removal_reason(member.member_id, held, since_ms, at_ms)


def record_members(
    seen: Observation,
    rule: str,
    change: Change,
    at_ms: int,
    why: Callable[[ClassicMember], str] | None = None,
) -> None:
    """Add an entry for each member that joined, left, came back or subscribed to other topics.

    `why` returns the reason of each entry, except of those about members that came back. If it is None, the
    entries have the usual reasons.
    """
    for member, former in change.back:
        record_return(seen, rule, member, former, at_ms)
    for type_, members in (
        (EntryType.MEMBER_ADDED, change.joined),
        (EntryType.MEMBER_REMOVED, change.gone),
        (EntryType.MEMBER_REJOINED, change.changed),
    ):
        for member in members:
            if why is not None:
                reason = why(member)
            elif type_ is EntryType.MEMBER_REMOVED:
                reason = removal_reason(seen, member, at_ms)
            else:
                reason = _MEMBER_REASONS[type_]
            seen.record(rule, type_, reason, at_ms=at_ms, **_member_fields(member))


_MEMBER_REASONS = {
    EntryType.MEMBER_ADDED: "a new member joined",
    EntryType.MEMBER_REJOINED: "a member subscribed to other topics",
}


def record_return(seen: Observation, rule: str, member: ClassicMember, former: str, at_ms: int) -> None:
    """Record that a static member came back under a new id."""
    seen.record(
        rule,
        EntryType.MEMBER_REPLACED,
        "a static member came back",
        at_ms=at_ms,
        replaced_member_id=former,
        **_member_fields(member),
    )


def _member_fields(member: ClassicMember) -> dict[str, str | None]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
    }


def topics_of(protocol_type: str | None, member: ClassicMember) -> tuple[str, ...] | None:
    """Return the topics of a member's subscription, or None if it is not one of Kafka's consumer."""
    if protocol_type != PROTOCOL_TYPE:
        return None
    try:
        return tuple(sorted(decode_subscribed_topics(member.subscription)))
    except ProtocolError:
        return None
