"""The cause of a rebalance, from the entry that opened it and those of the same request or deadline."""

from collections.abc import Iterable, Sequence

from kafka_why.broker_log.events import NOT_STORED, OVER_SIZE
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.why.model import Cause, CauseKind

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
# Rows that begin a rebalance without another entry.
_ALONE = {"S10": CauseKind.REQUEST_TOO_LARGE}

LOST = Cause(kind=CauseKind.UNKNOWN, reason="the entries with the cause are not in the history")


def kind_of(type_: EntryType, rule: str) -> CauseKind | None:
    """Return the kind of cause that such an entry names, None if it names none."""
    kind = _BY_TYPE.get(type_)
    return None if kind is None else BY_RULE.get(rule, kind)


def cause_of(opening: HistoryEntry, before: Sequence[HistoryEntry]) -> Cause:
    """Return the cause of `opening` (PreparingRebalance). `before`: the entries before it with its cause."""
    about = [(kind, event) for event in before if (kind := kind_of(event.type, event.rule)) is not None]
    if not about:
        return Cause(
            kind=(BY_RULE if opening.observed else _ALONE).get(opening.rule, CauseKind.UNKNOWN),
            reason=opening.reason,
            trigger=opening.cause,
            principal=opening.principal,
            member_ids=[opening.member_id] if opening.member_id else [],
            client_reason=opening.client_reason,
        )
    kind, first = about[0]
    return Cause(
        kind=kind,
        reason=opening.reason,
        trigger=opening.cause,
        principal=opening.principal,
        member_ids=[event.member_id for _, event in about if event.member_id],
        group_instance_id=first.group_instance_id,
        client_id=first.client_id,
        client_host=first.client_host,
        client_reason=opening.client_reason or first.client_reason,
    )


def conversion(entries: Iterable[HistoryEntry]) -> str | None:
    """Return how the group changed its protocol in these entries, None if it did not."""
    return next((event.reason for event in entries if event.type is EntryType.GROUP_CONVERTED), None)
