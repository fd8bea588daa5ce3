"""Finds the cause of a rebalance: from its first entry and the entries of the same request or deadline."""

from collections.abc import Iterable, Sequence

from kafka_why.broker_log.events import NOT_STORED, OVER_SIZE
from kafka_why.contract.kafka.history import STREAMS, EntryType, HistoryEntry
from kafka_why.why.model import Cause, CauseKind
from kafka_why.wording import count, duration_text, partitions_text

_BY_TYPE = {
    EntryType.MEMBER_ADDED: CauseKind.MEMBER_JOINED,
    EntryType.MEMBER_REJOINED: CauseKind.METADATA_CHANGED,
    EntryType.MEMBER_REPLACED: CauseKind.STATIC_MEMBER_RETURNED,
    EntryType.MEMBER_REMOVED: CauseKind.MEMBER_LEFT,
    EntryType.PENDING_MEMBER_REMOVED: CauseKind.MEMBER_LEFT,
    EntryType.GROUP_CONVERTED: CauseKind.CONVERTED,
}
# Rows of docs/rules.md that are more specific than the entry's type.
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
# Rows that begin a rebalance without an entry about a member.
_WITHOUT_MEMBER_ENTRY = {"S10": CauseKind.REQUEST_TOO_LARGE}

UNKNOWN_CAUSE = Cause(kind=CauseKind.UNKNOWN, reason="the entries with the cause are not in the history")


def kind_of(type_: EntryType, rule: str) -> CauseKind | None:
    """Return the kind of cause of an entry with this type and row, or None."""
    kind = _BY_TYPE.get(type_)
    return None if kind is None else BY_RULE.get(rule, kind)


def cause_of(opening: HistoryEntry, before: Sequence[HistoryEntry]) -> Cause:
    """Return the cause of `opening`, a PreparingRebalance entry.

    `before` are the earlier entries of the same request or deadline.
    """
    member_events = [
        (kind, event) for event in before if (kind := kind_of(event.type, event.rule)) is not None
    ]
    if not member_events:
        return Cause(
            kind=(BY_RULE if opening.observed else _WITHOUT_MEMBER_ENTRY).get(
                opening.rule, CauseKind.UNKNOWN
            ),
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
    """Return the reason of the GroupConverted entry, or None."""
    return next((event.reason for event in entries if event.type is EntryType.GROUP_CONVERTED), None)


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
_EPOCH_KINDS = {
    EntryType.MEMBER_ADDED: CauseKind.MEMBER_JOINED,
    EntryType.MEMBER_REMOVED: CauseKind.MEMBER_LEFT,
    EntryType.MEMBER_REPLACED: CauseKind.STATIC_MEMBER_RETURNED,
}
_TOPICS_CHANGED_RULES = ("HB53", "DN13", "SH23", "KSH47", "KSH50", "OB27", "OB51")
# Rows whose reason also says whether the topics of a topology are right.
_TOPOLOGY_RULES = ("KSH47", "KSH50")
_EPOCH_KINDS_BY_RULE = {
    "SH22": CauseKind.PARTITIONS_INITIALIZED,
    "SI11": CauseKind.COORDINATED_ELSEWHERE,
    "SO10": CauseKind.OFFSETS_ALTERED,
    "KSH51": CauseKind.SETTINGS_CHANGED,
    "OB43": CauseKind.PARTITIONS_INITIALIZED,
    "OB52": CauseKind.SETTINGS_CHANGED,
}


def cause_of_epoch(bump: HistoryEntry, before: Sequence[HistoryEntry], news: Sequence[HistoryEntry]) -> Cause:
    """Return the cause of the new epoch in the entry `bump`.

    `before` are the earlier entries of the rebalance. Those of the same request or deadline name the cause.
    `news` are entries from before the rebalance that can be its reason.
    """
    same_trigger = [event for event in before if event.cause == bump.cause]
    member_events = [event for event in same_trigger if event.type in _EPOCH_KINDS]
    first = member_events[0] if member_events else bump
    kind = _epoch_kind(bump, member_events, same_trigger)
    return Cause(
        kind=kind,
        reason=_reason(bump, kind, [*news, *before]),
        trigger=bump.cause,
        principal=bump.principal,
        member_ids=[event.member_id for event in member_events or [bump] if event.member_id],
        group_instance_id=first.group_instance_id,
        client_id=first.client_id,
        client_host=first.client_host,
        client_reason=first.client_reason,
    )


def _reason(bump: HistoryEntry, kind: CauseKind, before: Sequence[HistoryEntry]) -> str:
    # For some kinds, earlier entries of other requests have the reason.
    sentences: list[str] = []
    if kind is CauseKind.TOPICS_CHANGED:
        sentences = [event.reason for event in before if event.type is EntryType.TOPICS_CHANGED]
        if sentences and bump.rule in _TOPOLOGY_RULES:
            sentences.append(bump.reason)
    if kind is CauseKind.PARTITIONS_INITIALIZED:
        done = [event for event in before if event.type is EntryType.SHARE_PARTITIONS_INITIALIZED]
        sentences = [_initialized_text(event) for event in done]
    return "; ".join(dict.fromkeys(sentences)) or bump.reason


def _initialized_text(event: HistoryEntry) -> str:
    """Return a text such as `2 partitions ready 20 ms after the request: orders 0-1`."""
    ready = count(sum(map(len, (event.partitions or {}).values())), "partition")
    after = "" if event.took_ms is None else f" {duration_text(event.took_ms)} after the request"
    return f"{ready} ready{after}: {partitions_text(event.partitions or {})}"


def kind_of_member(type_: EntryType, rule: str) -> CauseKind:
    """Return the kind of cause of an entry about a member."""
    return _REMOVAL_KINDS_BY_RULE.get(rule, _EPOCH_KINDS.get(type_, CauseKind.UNKNOWN))


def _epoch_kind(
    bump: HistoryEntry, member_events: Sequence[HistoryEntry], same_trigger: Sequence[HistoryEntry]
) -> CauseKind:
    if bump.rule in _TOPICS_CHANGED_RULES:
        return CauseKind.TOPICS_CHANGED
    if member_events:
        return kind_of_member(member_events[0].type, member_events[0].rule)
    if bump.rule in _EPOCH_KINDS_BY_RULE:
        return _EPOCH_KINDS_BY_RULE[bump.rule]
    if bump.member_id is not None:
        is_streams = bump.group_type == STREAMS
        return CauseKind.MEMBER_CHANGED if is_streams else CauseKind.SUBSCRIPTION_CHANGED
    is_resolved = any(event.type is EntryType.REGEX_RESOLVED for event in same_trigger)
    return CauseKind.PATTERN_RESOLVED if is_resolved else CauseKind.UNKNOWN
