"""The cause of a new group epoch, from the entries before it."""

from collections.abc import Sequence

from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.why.clock import duration_text
from kafka_why.why.epoch_text import partitions_text
from kafka_why.why.model import Cause, CauseKind
from kafka_why.why.wording import count

_REMOVED_BY_RULE = {
    "TM1": CauseKind.SESSION_TIMEOUT,
    "TM2": CauseKind.SESSION_TIMEOUT,
    "TM3": CauseKind.REBALANCE_TIMEOUT,
    "TM4": CauseKind.JOIN_TIMEOUT,
    "TM5": CauseKind.SYNC_TIMEOUT,
    "SH33": CauseKind.SESSION_TIMEOUT,
    "OB22": CauseKind.MEMBER_GONE,
}
_BY_TYPE = {
    EntryType.MEMBER_ADDED: CauseKind.MEMBER_JOINED,
    EntryType.MEMBER_REMOVED: CauseKind.MEMBER_LEFT,
    EntryType.MEMBER_REPLACED: CauseKind.STATIC_MEMBER_RETURNED,
}
_TOPICS_CHANGED_RULES = ("HB53", "DN13", "SH23", "OB27", "OB51")
_BY_RULE = {
    "SH22": CauseKind.PARTITIONS_INITIALIZED,
    "SI11": CauseKind.COORDINATED_ELSEWHERE,
    "SO10": CauseKind.OFFSETS_ALTERED,
    "OB43": CauseKind.PARTITIONS_INITIALIZED,
    "OB52": CauseKind.SETTINGS_CHANGED,
}
_STREAMS = "streams"


def cause_of_epoch(bump: HistoryEntry, before: Sequence[HistoryEntry], news: Sequence[HistoryEntry]) -> Cause:
    """Return the cause of a new epoch, from the entries of the same request or deadline before it. `before`
    are those of its rebalance, and `news` earlier ones that can be a reason.
    """
    led = [event for event in before if event.cause == bump.cause]
    about = [event for event in led if event.type in _BY_TYPE]
    first = about[0] if about else bump
    kind = _kind(bump, about, led)
    return Cause(
        kind=kind,
        reason=_reason(bump, kind, [*news, *before]),
        trigger=bump.cause,
        principal=bump.principal,
        member_ids=[event.member_id for event in about or [bump] if event.member_id],
        group_instance_id=first.group_instance_id,
        client_id=first.client_id,
        client_host=first.client_host,
        client_reason=first.client_reason,
    )


def _reason(bump: HistoryEntry, kind: CauseKind, before: Sequence[HistoryEntry]) -> str:
    """Return the reason of a new epoch. Some kinds have it in entries before it, of other requests."""
    sentences: list[str] = []
    if kind is CauseKind.TOPICS_CHANGED:
        sentences = [event.reason for event in before if event.type is EntryType.TOPICS_CHANGED]
    if kind is CauseKind.PARTITIONS_INITIALIZED:
        done = [event for event in before if event.type is EntryType.SHARE_PARTITIONS_INITIALIZED]
        sentences = [_ready(event) for event in done]
    return "; ".join(dict.fromkeys(sentences)) or bump.reason


def _ready(event: HistoryEntry) -> str:
    """`2 partitions ready 20 ms after the asking: orders 0-1`."""
    ready = count(sum(map(len, (event.partitions or {}).values())), "partition")
    after = "" if event.took_ms is None else f" {duration_text(event.took_ms)} after the asking"
    return f"{ready} ready{after}: {partitions_text(event.partitions or {})}"


def kind_of_member(type_: EntryType, rule: str) -> CauseKind:
    """Return the kind of cause that such an entry about a member names."""
    return _REMOVED_BY_RULE.get(rule, _BY_TYPE.get(type_, CauseKind.UNKNOWN))


def _kind(bump: HistoryEntry, about: Sequence[HistoryEntry], led: Sequence[HistoryEntry]) -> CauseKind:
    if bump.rule in _TOPICS_CHANGED_RULES:
        return CauseKind.TOPICS_CHANGED
    if about:
        return kind_of_member(about[0].type, about[0].rule)
    if bump.rule in _BY_RULE:
        return _BY_RULE[bump.rule]
    if bump.member_id is not None:
        is_streams = bump.group_type == _STREAMS
        return CauseKind.MEMBER_CHANGED if is_streams else CauseKind.SUBSCRIPTION_CHANGED
    is_resolved = any(event.type is EntryType.REGEX_RESOLVED for event in led)
    return CauseKind.PATTERN_RESOLVED if is_resolved else CauseKind.UNKNOWN
