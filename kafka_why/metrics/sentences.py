"""The sentences by which Kafka's operators follow a rebalance, as structured log lines.

Source of the wording: GroupMetadataManager of Apache Kafka. The number of members is omitted if the entry was
shortened. The other fields of the entry are fields of the log line.
"""

import structlog

from kafka_why.contract.kafka.history import EntryType, HistoryEntry

log = structlog.get_logger()


def log_sentence(event: HistoryEntry) -> None:
    """Log the entry if Kafka logs an event of this kind."""
    text = sentence(event)
    if text is not None:
        log.info(text, **_fields(event))


def sentence(event: HistoryEntry) -> str | None:
    """Return Kafka's log sentence for the entry, None if Kafka logs none."""
    group, generation = event.group_id, event.generation
    match event.type:
        case EntryType.PREPARING_REBALANCE:
            return (
                f"Preparing to rebalance group {group} in state {event.to_state} "
                f"with old generation {generation} (reason: {event.reason})"
            )
        case EntryType.COMPLETING_REBALANCE:
            size = f" with {len(event.members)} members" if event.members is not None else ""
            return f"Stabilized group {group} generation {generation}{size}"
        case EntryType.GROUP_EPOCH_BUMPED:
            return f"[GroupId {group}] Bumped group epoch to {generation} (reason: {event.reason})"
        case EntryType.TARGET_ASSIGNMENT_COMPUTED:
            return (
                f"[GroupId {group}] Computed a new target assignment for epoch {generation} "
                f"with '{event.assignor_name}' assignor"
            )
        case EntryType.STABLE if event.group_type == "classic":
            size = f" The group has {len(event.assignments)} members." if event.assignments else ""
            return (
                f"Assignment received from leader {event.leader_id} for group {group} "
                f"for generation {generation}.{size}"
            )
    return None


def _fields(event: HistoryEntry) -> dict[str, object]:
    fields = {
        "group": event.group_id,
        "generation": event.generation,
        "reason": event.reason,
        "member": event.member_id,
        "client_reason": event.client_reason,
        "waiting_for": event.waiting_for or None,
        "leader": event.leader_id,
        "rule": event.rule,
        "cause": event.cause,
        "at_ms": event.at_ms,
    }
    return {name: value for name, value in fields.items() if value is not None}
