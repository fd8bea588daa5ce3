"""The fields of rows that share groups have, and their members."""

from collections.abc import Iterator
from typing import Any

from assignors.kafka import simple
from state.kafka.share_group import ShareGroup
from state.kafka.snapshot import named


def of_share_group(group: ShareGroup) -> dict[str, Any]:
    """Return the fields of the group's row."""
    return {
        "group_type": group.type_name,
        "protocol_name": simple.NAME,
        "assignment_epoch": group.assignment_epoch,
        "subscribed_topics": sorted(group.subscribed()),
    }


def share_members(group: ShareGroup) -> Iterator[dict[str, Any]]:
    """Yield the fields of each member's row."""
    names = group.names_by_id()
    for member in group.members.values():
        assignment = named(member.assigned, names)
        yield {
            "group_id": group.group_id,
            "member_id": member.member_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "partitions": sum(map(len, assignment.values())),
            "assignment": assignment,
            "deadline_ms": member.session_deadline_ms,
            "member_epoch": member.member_epoch,
            "target": named(group.target.get(member.member_id, {}), names),
            "subscribed_topics": member.subscribed_topic_names,
        }
