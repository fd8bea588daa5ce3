"""Records of the topics as a page reads them: a large group with its history, and many small groups."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from assignors.kafka.range import RangeAssignor
from bench.page_history import GROUP_ID, TOPICS, RestartedGroup
from kafka_why.contract.codec import CommittedOffset, encode, offset_key
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.sticky.api import Assignor
from kafka_why.sticky.assignor import StickyAssignor
from state.kafka.protocols import view_of

MEMBERS, PARTITIONS, RESTARTS = 500, 5_000, 100
PAUSE_MS = 15_000
"""The time between two rebalances. With it, all rebalances are within an hour."""
GROUPS = 2_000
SMALL_MEMBERS, SMALL_PARTITIONS = 10, 100
ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {assignor.name: assignor for assignor in (StickyAssignor(), RangeAssignor())}
)


class Record(NamedTuple):
    """A record of a topic, with the time at which it was written."""

    topic: str
    key: bytes
    value: bytes
    at_ms: int


def large_group(assignor: str, restarts: int, begin_ms: int) -> RestartedGroup:
    """Return a group whose clients are restarted one after the other. Each restart is two rebalances."""
    group = RestartedGroup(ASSIGNORS[assignor], MEMBERS, PARTITIONS, begin_ms)
    for _ in range(restarts):
        group.restart(PAUSE_MS)
    return group


def view_record(group: RestartedGroup, layout: TopicLayout, at_ms: int) -> Record:
    """Return the record of a group on the groups topic."""
    return Record(layout.groups_topic, GROUP_ID.encode(), encode(view_of(group.group)), at_ms)


def entries_of(history: Iterable[HistoryEntry], layout: TopicLayout) -> Iterator[Record]:
    """Yield the records of history entries on the events topic."""
    for entry in history:
        yield Record(layout.events_topic, entry.group_id.encode(), encode(entry), entry.at_ms)


def offsets_of_large_group(layout: TopicLayout, at_ms: int) -> Iterator[Record]:
    """Yield a record with a committed offset for each partition of the large group."""
    for topic in range(TOPICS):
        for partition in range(PARTITIONS // TOPICS):
            committed = CommittedOffset(
                group_id=GROUP_ID,
                incarnation="i",
                topic=f"topic-{topic:02}",
                partition=partition,
                offset=5,
                leader_epoch=0,
                metadata="",
                committed_at_ms=at_ms,
                expire_at_ms=None,
                request="r",
            )
            key = offset_key(GROUP_ID, committed.topic, partition)
            yield Record(layout.offsets_topic, key, encode(committed), at_ms)


def small_group(restarts: int, begin_ms: int) -> RestartedGroup:
    """Return a group of SMALL_MEMBERS members, after `restarts` restarts of clients."""
    group = RestartedGroup(ASSIGNORS[StickyAssignor.name], SMALL_MEMBERS, SMALL_PARTITIONS, begin_ms)
    for _ in range(restarts):
        group.restart(PAUSE_MS)
    return group


def renamed(group: RestartedGroup, group_id: str, layout: TopicLayout, first: int = 0) -> Iterator[Record]:
    """Yield the view and the history of a group, from entry `first` on, with another group id."""
    view = replace(view_of(group.group), group_id=group_id)
    yield Record(layout.groups_topic, group_id.encode(), encode(view), group.history[-1].at_ms)
    yield from entries_of((replace(entry, group_id=group_id) for entry in group.history[first:]), layout)


def many_groups(group: RestartedGroup, layout: TopicLayout) -> Iterator[Record]:
    """Yield the records of GROUPS groups with the history of this one."""
    for number in range(GROUPS):
        yield from renamed(group, small_group_name(number), layout)


def small_group_name(number: int) -> str:
    return f"group-{number:04}"
