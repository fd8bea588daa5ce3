"""One record, and what follows from it: entries of the history and changes of offsets."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct, field

from state.kafka.effects import OffsetChange
from state.kafka.group import DEAD
from state.kafka.history import EntryType, HistoryEntry
from state.kafka.observed.group import CREATION, ObservedGroup
from state.messages import RECORD_VERSION


class At(NamedTuple):
    """The place of a record: when the coordinator appended it, in ms, and its id. `incarnation` is the one of
    a group of which this is the first record.
    """

    time_ms: int
    record: str
    incarnation: str


class Observation(Struct):
    """The handling of one record. Handlers change `group`, and add entries by `record`.

    `names` are names of topics by id. `has_news`: the group's view has changed.
    """

    group: ObservedGroup
    at: At
    names: Mapping[bytes, str]
    history: list[HistoryEntry] = field(default_factory=list)
    offsets: list[OffsetChange] = field(default_factory=list)
    has_news: bool = False
    is_over: bool = False

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
        from_state, time_ms = group.state, max(group.told_ms, self.at.time_ms if at_ms is None else at_ms)
        group.told_ms = time_ms
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

    def delete(self, rule: str, reason: str) -> None:
        """The group ends. Its offsets, if it has any, stay as those of a group without members."""
        self.record(rule, EntryType.GROUP_DELETED, reason, to_state=DEAD)
        self.is_over = True

    def lose(self) -> None:
        """Leave a number of the history out, because records that must have been there are missing."""
        self.group.seq += 1


def listed(ids: Iterable[str], noun: str) -> str:
    """`member a`, `members a and b`, `members a, b and c`."""
    names = list(ids)
    if len(names) == 1:
        return f"{noun} {names[0]}"
    return f"{noun}s {', '.join(names[:-1])} and {names[-1]}"
