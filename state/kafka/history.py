"""History entries: what happened to a group, when, and why. They go to the events topic.

`(group_id, incarnation, seq)` is an entry's name: `seq` counts from 1 without gaps while the group lives, so
a reader drops the duplicates of an at-least-once sink and can prove that nothing is missing.
"""

from enum import StrEnum

from msgspec import Struct


class EntryType(StrEnum):
    """The kinds of entries. The four names of states are the group's transitions into them."""

    GROUP_CREATED = "GroupCreated"
    MEMBER_ID_ASSIGNED = "MemberIdAssigned"
    MEMBER_ADDED = "MemberAdded"
    MEMBER_REJOINED = "MemberRejoined"
    MEMBER_REPLACED = "MemberReplaced"
    MEMBER_REMOVED = "MemberRemoved"
    PENDING_MEMBER_REMOVED = "PendingMemberRemoved"
    JOIN_REFUSED = "JoinRefused"
    REQUEST_SUPERSEDED = "RequestSuperseded"
    INITIAL_DELAY_EXTENDED = "InitialDelayExtended"
    REBALANCE_EXTENDED = "RebalanceExtended"
    LEADER_ELECTED = "LeaderElected"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    EMPTY = "Empty"
    OFFSETS_EXPIRED = "OffsetsExpired"
    OFFSETS_DELETED = "OffsetsDeleted"
    GROUP_DELETED = "GroupDeleted"
    APPLIED_LATE = "AppliedLate"
    QUARANTINED = "Quarantined"
    RELEASED = "Released"
    TAKEN_OVER = "TakenOver"


class HistoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry. `generation` is the one after the change; `cause` is the request id or the deadline that led
    to it. `topics` are those a generation subscribes to; who subscribes to what is in `subscriptions` where
    members differ. `last_rebalance_at_ms` is when the latest rebalance before this entry began: the one under
    way, or else the last one, and None before the first; so a reader finds what the members held without
    reading everything. `replaced_member_id` is the id that a static member had before it came back.
    """

    version: int  # no default, so that it is always written
    type: EntryType
    group_id: str
    incarnation: str
    seq: int
    at_ms: int
    from_state: str
    to_state: str
    generation: int
    reason: str
    rule: str
    cause: str
    member_id: str | None = None
    group_instance_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    client_reason: str | None = None
    leader_id: str | None = None
    protocol_name: str | None = None
    members: list[str] | None = None
    waiting_for: list[str] | None = None
    deadline_ms: int | None = None
    topics: list[str] | None = None
    subscriptions: dict[str, list[str]] | None = None
    assignments: dict[str, bytes] | None = None
    partitions: dict[str, list[int]] | None = None
    superseded: str | None = None
    late_by_ms: int | None = None
    last_rebalance_at_ms: int | None = None
    replaced_member_id: str | None = None
