"""The handling of one record, and its results: entries of the history and changes of offsets."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct, field

from kafka_why.contract.kafka.history import CONSUMER, DEAD, STREAMS, EntryType, HistoryEntry
from kafka_why.contract.kafka.offsets import OffsetChange
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.contract.kafka.wording import listed as shortened
from kafka_why.contract.messages import RECORD_VERSION
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE
from kafka_why.observed.group import CREATION, Epochs, ObservedGroup


class At(NamedTuple):
    """The append time of a record in ms, and its id. `incarnation` is the incarnation of a group that begins
    with this record.
    """

    time_ms: int
    record: str
    incarnation: str


class Observation(Struct):
    """The handling of one record. Handlers change `group`, and add entries with `record`.

    `names` are topic names by id. `has_news`: the group's view has changed. `is_over`: the group has ended.
    `removed_ms` is when a classic group without earlier records was removed: a group with epochs that begins
    at that time is not new but converted.
    """

    group: ObservedGroup
    at: At
    names: Mapping[bytes, str]
    history: list[HistoryEntry] = field(default_factory=list)
    offsets: list[OffsetChange] = field(default_factory=list)
    has_news: bool = False
    is_over: bool = False
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
        """Add an entry, and bring the group to `to_state`. `rule` is a row of docs/observe.md."""
        group = self.group
        is_creation = type_ is EntryType.GROUP_CREATED
        assert not is_creation or group.seq == CREATION, "a creation is the first entry"
        group.seq += not is_creation
        from_state, time_ms = (
            group.state,
            max(group.last_entry_ms, self.at.time_ms if at_ms is None else at_ms),
        )
        group.last_entry_ms = time_ms
        if to_state is not None and to_state != from_state:
            group.state, group.state_timestamp_ms = to_state, time_ms
        self.has_news = True
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
        """Return the group's epochs. A group without epochs, or of another kind, becomes a group of this
        kind.
        """
        group = self.group
        if group.epochs is None or group.epochs.kind != kind:
            if group.classic is not None or group.epochs is not None:  # the record that ended that is missing
                self.lose()
                group.generation = 0
            elif self.at.time_ms == self.removed_ms and group.seq == CREATION:
                self.lose()
            group.epochs, group.classic, group.sightings = Epochs(kind), None, []
            group.protocol_type = PROTOCOL_TYPE if kind == CONSUMER else kind
        return group.epochs

    def record_if_seen(
        self, rule: str, type_: EntryType, reason: str, *, to_state: str | None = None, **details: Any
    ) -> None:
        """Add an entry of a group with epochs if a change of the group was already seen. Otherwise only
        update the group's state.
        """
        group = self.group
        assert group.epochs is not None
        if not group.epochs.is_found:
            self.record(rule, type_, reason, to_state=to_state, **details)
        elif to_state is not None or type_ is EntryType.MEMBER_RECONCILED:
            group.state, group.state_timestamp_ms = group.epochs_state(), self.at.time_ms

    def delete(self, rule: str, reason: str) -> None:
        """End the group. If it has offsets, these remain in a group without members."""
        self.record(rule, EntryType.GROUP_DELETED, reason, to_state=DEAD)
        self.is_over = True

    def lose(self) -> None:
        """Skip a sequence number of the history, because records are missing."""
        self.group.seq += 1


def listed_partitions(seen: Observation, partitions: Partitions) -> str:
    """Return `orders-0, orders-1`, or a streams group's tasks by Kafka's names, `active 0_3`."""
    joint = "_" if seen.group.type_name == STREAMS else "-"
    shown = seen.group.shown(partitions, seen.names)
    texts = [f"{name}{joint}{number}" for name, numbers in shown.items() for number in numbers]
    return shortened(texts, "task" if seen.group.type_name == STREAMS else "partition")


def listed(ids: Iterable[str], noun: str) -> str:
    """Return a list as text: `member a`, `members a and b`, `members a, b and c`."""
    names = list(ids)
    if len(names) == 1:
        return f"{noun} {names[0]}"
    return f"{noun}s {', '.join(names[:-1])} and {names[-1]}"
