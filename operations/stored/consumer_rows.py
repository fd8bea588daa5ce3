"""The fields of rows that groups of the consumer protocol have, and their members."""

from collections.abc import Iterator
from typing import Any

from kafka_why.contract.kafka.snapshot import named
from state.kafka.consumer_group import ConsumerGroup


def of_consumer_group(group: ConsumerGroup) -> dict[str, Any]:
    """Return the fields of the group's row."""
    return {
        "group_type": "consumer",
        "protocol_name": group.target_assignor or None,
        "assignment_epoch": group.assignment_epoch,
        "subscribed_topics": sorted(group.subscribed()),
    }


def consumer_members(group: ConsumerGroup) -> Iterator[dict[str, Any]]:
    """Yield the fields of each member's row."""
    names = group.names_by_id()
    for member in group.members.values():
        assignment, classic = named(member.assigned, names), member.classic
        yield {
            "group_id": group.group_id,
            "member_id": member.member_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "group_instance_id": member.instance_id,
            "protocols": None if classic is None else [protocol.name for protocol in classic.protocols],
            "partitions": sum(map(len, assignment.values())),
            "assignment": assignment,
            "session_timeout_ms": None if classic is None else classic.session_timeout_ms,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "deadline_ms": member.session_deadline_ms,
            "member_epoch": member.member_epoch,
            "member_state": member.state.value,
            "revoking": named(member.pending_revocation, names),
            "target": named(group.target.get(member.member_id, {}), names),
            "subscribed_topics": member.subscribed_topic_names,
            "subscribed_pattern": member.subscribed_topic_regex or None,
            "is_classic": classic is not None,
        }
