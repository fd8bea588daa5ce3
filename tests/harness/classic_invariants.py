"""The invariants of a classic group between two steps."""

from msgspec import structs

from assignors.kafka.server_side import COORDINATOR_ASSIGNORS, PREFIX
from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.protocols.subscriptions import TopicPartition, decode_assignment
from kafka_why.sticky.assignor import CooperativeStickyAssignor
from state.kafka.classic_group import ClassicGroup, SupportedProtocols

# A cooperative assignor omits partitions that their owner has to revoke first.
_EACH_ONCE = COORDINATOR_ASSIGNORS.keys() - {PREFIX + CooperativeStickyAssignor.name}


def invariants_of(group: ClassicGroup) -> list[tuple[str, bool]]:
    """Return each invariant, and True if it holds."""
    members = group.members
    state = group.state
    preparing = state is GroupState.PREPARING_REBALANCE
    completing = state is GroupState.COMPLETING_REBALANCE
    is_formed = completing or state is GroupState.STABLE
    static = {m.group_instance_id: i for i, m in members.items() if m.group_instance_id is not None}
    awaiting = any(m.pending_sync for m in members.values())
    quarantined = group.quarantined is not None
    subscribed = group.subscribed_topics or []
    return [
        ("the leader is a member", group.leader_id in members if members else group.leader_id is None),
        ("Empty means no members", (state is GroupState.EMPTY) <= (not members)),
        ("a formed generation has members", bool(members) or not is_formed),
        ("a formed generation has a protocol all members offer", not is_formed or _shares_protocol(group)),
        ("static ids map to members", group.static_members == static),
        ("a pending id is no member", not members.keys() & group.pending_members.keys()),
        (
            "joins are parked in PreparingRebalance alone",
            preparing or not any(m.parked_join for m in members.values()),
        ),
        (
            "syncs are parked in CompletingRebalance alone",
            completing or not any(m.parked_sync for m in members.values()),
        ),
        (
            "the join timer runs in PreparingRebalance alone, and always there",
            preparing == (group.join_phase is not None),
        ),
        (
            "the sync timer runs while a member has not synced",
            (is_formed and awaiting) == (group.sync_deadline_ms is not None),
        ),
        (
            "only a member that waits for us has no session",
            quarantined
            or all(m.heartbeat_deadline_ms is not None or m.has_parked_request() for m in members.values()),
        ),
        ("a new member has its join parked", all(m.parked_join for m in members.values() if m.is_new)),
        ("subscribed topics are sorted", subscribed == sorted(subscribed)),
        (
            "an Empty group without offsets ends",
            state is not GroupState.EMPTY
            or not group.is_without_offsets()
            or group.retention_deadline_ms is not None,
        ),
        (
            "while members rebalance nothing expires",
            not (preparing or completing) or group.retention_deadline_ms is None,
        ),
        (
            "what the coordinator assigned is each known partition once",
            state is not GroupState.STABLE or group.protocol_name not in _EACH_ONCE or _is_each_once(group),
        ),
        ("the counts are those of the members", _counts(group) == _counts(structs.replace(group))),
    ]


def _counts(group: ClassicGroup) -> tuple[int, int, SupportedProtocols]:
    """Return the derived counts. A new copy of the group derives them anew."""
    return group.awaiting_join_response, group.pending_syncs, group.supported_protocols


def _is_each_once(group: ClassicGroup) -> bool:
    counts = group.partitions_per_topic
    known = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]
    assigned = [p for m in group.members.values() for p in decode_assignment(m.assignment).partitions]
    return sorted(assigned) == sorted(known)


def _shares_protocol(group: ClassicGroup) -> bool:
    return all(any(p.name == group.protocol_name for p in m.protocols) for m in group.members.values())
