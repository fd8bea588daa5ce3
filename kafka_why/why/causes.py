"""Finds the cause of a rebalance from the entry that began it, and from the earlier entries of the same
request or deadline (the trigger).

Each entry names its rule, the row of docs/rules*.md by which the coordinator acted (for observed groups, a
row of docs/observe.md).
"""

from collections.abc import Iterable, Sequence

from kafka_why.broker_log.events import NOT_STORED, OVER_SIZE
from kafka_why.contract.kafka.history import STREAMS, EntryType, HistoryEntry
from kafka_why.why.model import Cause, CauseKind
from kafka_why.why.reconciling import partition_count
from kafka_why.wording import count, duration_text, partitions_text

# The types of entries that are the cause of a classic group's rebalance.
_BY_TYPE = {
    EntryType.MEMBER_ADDED: CauseKind.MEMBER_JOINED,
    EntryType.MEMBER_REJOINED: CauseKind.METADATA_CHANGED,
    EntryType.MEMBER_REPLACED: CauseKind.STATIC_MEMBER_RETURNED,
    EntryType.MEMBER_REMOVED: CauseKind.MEMBER_LEFT,
    EntryType.PENDING_MEMBER_REMOVED: CauseKind.MEMBER_LEFT,
    EntryType.GROUP_CONVERTED: CauseKind.CONVERTED,
}
# Rules that are more specific than the entry's type, or that begin a rebalance in an observed group.
BY_RULE = {
    "E9": CauseKind.LEADER_REJOINED,
    "T5": CauseKind.SESSION_TIMEOUT,
    "Y2": CauseKind.SYNC_TIMEOUT,
    # Of docs/observe.md.
    "OB3": CauseKind.MEMBER_GONE,
    "OB7": CauseKind.MEMBERS_CHANGED,
    "OB8": CauseKind.JOINED_AGAIN,
    "OB30": CauseKind.JOINED_AGAIN,
    # Of docs/why.md.
    NOT_STORED: CauseKind.NOT_STORED,
    OVER_SIZE: CauseKind.OVER_SIZE,
}
# Rules that begin a rebalance without an entry about a member, except in observed groups.
_WITHOUT_MEMBER_ENTRY = {"S10": CauseKind.REQUEST_TOO_LARGE}

UNKNOWN_CAUSE = Cause(kind=CauseKind.UNKNOWN, reason="the entries with the cause are not in the history")


def kind_of(type_: EntryType, rule: str) -> CauseKind | None:
    """Return the kind of cause of an entry of a classic group, or None if it causes no rebalance."""
    kind = _BY_TYPE.get(type_)
    return None if kind is None else BY_RULE.get(rule, kind)


def cause_of(opening: HistoryEntry, before: Sequence[HistoryEntry]) -> Cause:
    """Return the cause of the rebalance that `opening`, a PreparingRebalance entry, began.

    `before` are the earlier entries of the same request or deadline.
    """
    member_events = [
        (kind, event) for event in before if (kind := kind_of(event.type, event.rule)) is not None
    ]
    if not member_events:
        kind_by_rule = BY_RULE if opening.observed else _WITHOUT_MEMBER_ENTRY
        return Cause(
            kind=kind_by_rule.get(opening.rule, CauseKind.UNKNOWN),
            reason=opening.reason,
            trigger=opening.cause,
            principal=opening.principal,
            member_ids=[opening.member_id] if opening.member_id else [],
            client_reason=opening.client_reason,
        )
    kind, first = member_events[0]
    return Cause(
        kind=kind,
        reason=opening.reason,
        trigger=opening.cause,
        principal=opening.principal,
        member_ids=[event.member_id for _, event in member_events if event.member_id],
        group_instance_id=first.group_instance_id,
        client_id=first.client_id,
        client_host=first.client_host,
        client_reason=opening.client_reason or first.client_reason,
    )


def conversion(entries: Iterable[HistoryEntry]) -> str | None:
    """Return the reason of the GroupConverted entry, or None if the group was not converted."""
    return next((event.reason for event in entries if event.type is EntryType.GROUP_CONVERTED), None)


# Groups with epochs. For members, rules that are more specific than the entry's type.
_REMOVAL_KINDS_BY_RULE = {
    "TM1": CauseKind.SESSION_TIMEOUT,
    "TM2": CauseKind.SESSION_TIMEOUT,
    "TM3": CauseKind.REBALANCE_TIMEOUT,
    "TM4": CauseKind.JOIN_TIMEOUT,
    "TM5": CauseKind.SYNC_TIMEOUT,
    "SH33": CauseKind.SESSION_TIMEOUT,
    "KSM1": CauseKind.SESSION_TIMEOUT,
    "KSM2": CauseKind.REBALANCE_TIMEOUT,
    "OB22": CauseKind.MEMBER_GONE,
}
_MEMBER_KINDS_BY_TYPE = {
    EntryType.MEMBER_ADDED: CauseKind.MEMBER_JOINED,
    EntryType.MEMBER_REMOVED: CauseKind.MEMBER_LEFT,
    EntryType.MEMBER_REPLACED: CauseKind.STATIC_MEMBER_RETURNED,
}
_TOPICS_CHANGED_RULES = ("HB53", "DN13", "SH23", "KSH47", "KSH50", "OB27", "OB51")
# Rules of a GroupEpochBumped entry whose reason also states the faults of the topology's topics.
_TOPOLOGY_RULES = ("KSH47", "KSH50")
_EPOCH_KINDS_BY_RULE = {
    "SH22": CauseKind.PARTITIONS_INITIALIZED,
    "SI11": CauseKind.COORDINATED_ELSEWHERE,
    "SO10": CauseKind.OFFSETS_ALTERED,
    "KSH51": CauseKind.SETTINGS_CHANGED,
    "OB43": CauseKind.PARTITIONS_INITIALIZED,
    "OB52": CauseKind.SETTINGS_CHANGED,
}


def cause_of_epoch(
    bump: HistoryEntry, before: Sequence[HistoryEntry], topic_changes: Sequence[HistoryEntry]
) -> Cause:
    """Return the cause of a new group epoch. `bump` is its GroupEpochBumped entry.

    `before` are the earlier entries of the rebalance. Those of the same request or deadline as `bump` show
    the cause. `topic_changes` are entries about topics from before the rebalance, which can be its reason.
    """
    same_trigger = [event for event in before if event.cause == bump.cause]
    member_events = [event for event in same_trigger if event.type in _MEMBER_KINDS_BY_TYPE]
    first = member_events[0] if member_events else bump
    kind = _epoch_kind(bump, member_events, same_trigger)
    return Cause(
        kind=kind,
        reason=_reason(bump, kind, [*topic_changes, *before]),
        trigger=bump.cause,
        principal=bump.principal,
        member_ids=[event.member_id for event in member_events or [bump] if event.member_id],
        group_instance_id=first.group_instance_id,
        client_id=first.client_id,
        client_host=first.client_host,
        client_reason=first.client_reason,
    )


def _reason(bump: HistoryEntry, kind: CauseKind, before: Sequence[HistoryEntry]) -> str:
    """Return the reason of the new epoch. For some kinds, earlier entries of other requests have it."""
    sentences: list[str] = []
    if kind is CauseKind.TOPICS_CHANGED:
        sentences = [event.reason for event in before if event.type is EntryType.TOPICS_CHANGED]
        if sentences and bump.rule in _TOPOLOGY_RULES:
            sentences.append(bump.reason)
    if kind is CauseKind.PARTITIONS_INITIALIZED:
        initialized = [event for event in before if event.type is EntryType.SHARE_PARTITIONS_INITIALIZED]
        sentences = [_initialized_text(event) for event in initialized]
    return "; ".join(dict.fromkeys(sentences)) or bump.reason


def _initialized_text(event: HistoryEntry) -> str:
    """Return a text such as `2 partitions ready 20 ms after the request: orders 0-1`."""
    ready = count(partition_count(event.partitions), "partition")
    after = "" if event.took_ms is None else f" {duration_text(event.took_ms)} after the request"
    return f"{ready} ready{after}: {partitions_text(event.partitions or {})}"


def kind_of_member(type_: EntryType, rule: str) -> CauseKind:
    """Return the kind of cause of an entry about a member of a group with epochs."""
    return _REMOVAL_KINDS_BY_RULE.get(rule, _MEMBER_KINDS_BY_TYPE.get(type_, CauseKind.UNKNOWN))


def _epoch_kind(
    bump: HistoryEntry, member_events: Sequence[HistoryEntry], same_trigger: Sequence[HistoryEntry]
) -> CauseKind:
    if bump.rule in _TOPICS_CHANGED_RULES:
        return CauseKind.TOPICS_CHANGED
    if member_events:
        return kind_of_member(member_events[0].type, member_events[0].rule)
    if bump.rule in _EPOCH_KINDS_BY_RULE:
        return _EPOCH_KINDS_BY_RULE[bump.rule]
    if bump.member_id is not None:  # a member that had joined earlier
        return CauseKind.MEMBER_CHANGED if bump.group_type == STREAMS else CauseKind.SUBSCRIPTION_CHANGED
    is_resolved = any(event.type is EntryType.REGEX_RESOLVED for event in same_trigger)
    return CauseKind.PATTERN_RESOLVED if is_resolved else CauseKind.UNKNOWN
