"""The definitions of lag and of harmful lags, for the page, the metrics, the alerts and `groups`.

docs/lag.md explains them. This module has no clock and no IO.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE, ProtocolError

Partition: TypeAlias = tuple[str, int]
"""A topic and the number of one of its partitions."""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets of a partition's log."""

    earliest: int  # first offset that is still in the log
    latest: int  # offset of the next record


_SETTLED_STATES = (GroupState.STABLE.value, GroupState.EMPTY.value)
"""A group of the consumer protocol has these states under the same names."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The members that hold a group's partitions, from the group's view, its last record on the groups topic.

    A group is settled while its state is Stable or Empty.
    """

    # Time at which the group entered its state; None if it is not settled, or its view lacks the assignment.
    settled_ms: int | None = None
    holders: Mapping[Partition, str] = field(default_factory=dict)  # the member id of each holder
    topics: frozenset[str] | None = None  # known topics of the members' subscriptions; None without members

    def is_subscribed(self, topic: str) -> bool:
        """Return True if a member subscribes to the topic, or if the group has no members."""
        return self.topics is None or topic in self.topics


UNKNOWN = Ownership()
"""The ownership of a group that is not settled, or whose assignments are missing or unreadable."""


def ownership(view: GroupSnapshot) -> Ownership:
    """Return the holders of a Kafka group's partitions, or UNKNOWN if the view does not show them."""
    if view.state not in _SETTLED_STATES or (view.truncated and view.state != GroupState.EMPTY):
        return UNKNOWN
    try:
        holders = {partition: m.member_id for m in view.members for partition in held(m, view.protocol_type)}
    except ProtocolError:
        return UNKNOWN
    return Ownership(view.state_timestamp_ms, holders, _subscribed_topics(view) if view.members else None)


def held(member: MemberSnapshot, protocol_type: str | None) -> tuple[Partition, ...]:
    """Return the partitions that a member may use, or () if the group is not of Kafka's consumers.

    Raises ProtocolError if the assignment cannot be decoded.
    """
    return member.held() if member.consumer is not None or protocol_type == PROTOCOL_TYPE else ()


def _subscribed_topics(view: GroupSnapshot) -> frozenset[str]:
    if view.consumer:
        return frozenset(view.consumer.topics)
    return frozenset(view.subscribed_topics or ())


STUCK_MS = 120_000
"""A partition counts as stuck or as without an owner if a record has waited for longer than this."""
WINDOW_MS = 600_000
"""The window in which a lag has to rise so that the group counts as falling behind."""
STEPS = 10
"""The number of steps of the window. Each step has its minimum and maximum lag."""
COMPARED_STEPS = 3
"""The number of steps at the beginning, and at the end, of the window that are compared."""
BEHIND_MS = 60_000
"""A partition with less lag in time is never reported as behind."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a committed offset. A value is None if it is unknown."""

    offset: int
    committed_ms: int  # of the last commit
    stands_since_ms: int  # time of the last commit that changed the offset
    records: int | None = None  # lag in records
    ms: int | None = None  # lag in time
    # Time at which the log was first seen with a record that arrived after the offset's last change, and
    # after the group settled.
    grew_ms: int | None = None
    rises: bool = False  # True if the lag in records rises over the window


def next_offset(committed: int, bounds: LogBounds) -> int:
    """Return the offset of a consumer's next record."""
    # Retention may have deleted the record at the committed offset.
    return max(committed, bounds.earliest)


def lag_records(committed: int, bounds: LogBounds) -> int:
    """Return the number of offsets in the log from the committed offset to the end."""
    # A committed offset beyond the end is of a topic that was deleted and created again.
    return max(bounds.latest - next_offset(committed, bounds), 0)


def lag_ms(next_record_ms: int, newest_ms: int) -> int:
    """Return the time between the record at the committed offset and the newest record, at least 0.

    Both times are arrival times, or both are timestamps.
    """
    return max(newest_ms - next_record_ms, 0)


def rises(lows: Sequence[int], highs: Sequence[int]) -> bool:
    """Return True if the lag rises over the window.

    `lows` and `highs` are the minimum and maximum lag of each step. All lags at the end of the window must
    exceed all lags at its beginning, so fluctuations between two commits are no rise.
    """
    return len(lows) >= STEPS and min(lows[-COMPARED_STEPS:]) > max(highs[:COMPARED_STEPS])


def is_stuck(lag: PartitionLag, owner: str | None, now_ms: int) -> bool:
    """Return True if records arrive in a partition of `owner`, but its committed offset does not change.

    One of these records must have waited for STUCK_MS. Without new records, the consumer may have nothing to
    do. A partition without an owner is not stuck.
    """
    return bool(owner and lag.records) and lag.grew_ms is not None and now_ms - lag.grew_ms > STUCK_MS


def is_falling_behind(lag: PartitionLag, now_ms: int) -> bool:
    """Return True if the lag rises over the window and exceeds BEHIND_MS, although the group commits."""
    is_behind = lag.rises and (lag.ms is None or lag.ms > BEHIND_MS)
    return is_behind and now_ms - lag.stands_since_ms < WINDOW_MS


def has_no_owner(lag: PartitionLag, topic: str, partition: int, ownership: Ownership, now_ms: int) -> bool:
    """Return True if records wait in a partition that no member holds, although the group should consume it.

    The group must have been settled for STUCK_MS without a commit. A consumer that commits without joining
    counts as the owner.
    """
    if not lag.records or ownership.settled_ms is None or (topic, partition) in ownership.holders:
        return False
    return ownership.is_subscribed(topic) and now_ms - max(ownership.settled_ms, lag.committed_ms) > STUCK_MS


@dataclass(frozen=True, slots=True)
class HarmfulLags:
    """The partitions of one group with harmful lags."""

    stuck: dict[Partition, PartitionLag] = field(default_factory=dict)
    falling_behind: dict[Partition, PartitionLag] = field(default_factory=dict)
    without_owner: dict[Partition, PartitionLag] = field(default_factory=dict)


def harmful_lags(lags: Mapping[Partition, PartitionLag], ownership: Ownership, now_ms: int) -> HarmfulLags:
    """Return the partitions with harmful lags.

    A partition that has several kinds counts as the first of them: stuck, without an owner, falling behind.
    """
    harmful = HarmfulLags()
    for partition, lag in lags.items():
        if is_stuck(lag, ownership.holders.get(partition), now_ms):
            harmful.stuck[partition] = lag
        elif has_no_owner(lag, *partition, ownership, now_ms):
            harmful.without_owner[partition] = lag
        elif is_falling_behind(lag, now_ms):
            harmful.falling_behind[partition] = lag
    return harmful
