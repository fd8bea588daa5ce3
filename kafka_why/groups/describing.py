"""Sources of descriptions of groups, and the groups topic as one of them."""

from collections.abc import Mapping
from typing import Any, Protocol

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.kafka.states import DEAD
from kafka_why.contract.layout import TopicLayout
from kafka_why.groups.committed import GroupOffsets, committed_offsets
from kafka_why.groups.list_groups import list_groups

KnownTypes = Mapping[str, str | None]
"""The type of each group as its history names it, by group id, None if it is not known."""

Answers = dict[str, GroupSnapshot | ErrorCode]
"""Groups by id, or why they cannot be described."""


class Describing(Protocol):
    """A source of descriptions of groups."""

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Return the groups, or why they cannot be described, and their offsets if wanted."""
        ...


class TopicsGroups(Describing):
    """Describes groups from the topics of an observer or a coordinator, as far as these are written."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, timeout_ms: int) -> None:
        self._topics = client_config, layout, timeout_ms

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Describe the groups. Raises KafkaError. The result omits groups that are not Kafka's."""
        client_config, layout, timeout_ms = self._topics
        views = {view.group_id: view for view in list_groups(*self._topics)}
        kafkas: Answers = {}
        for group_id in groups:
            view = views.get(group_id) or dead(group_id)
            if isinstance(view, GroupSnapshot):
                kafkas[group_id] = view
        if not with_offsets:
            return kafkas, {}
        return kafkas, committed_offsets(client_config, layout, kafkas, timeout_ms)


def dead(group_id: str) -> GroupSnapshot:
    """Return a group that does not exist, as Kafka describes it."""
    return snapshot_without_times(group_id, DEAD, protocol_type=None, members=[])


def snapshot_without_times(group_id: str, state: str, **fields: Any) -> GroupSnapshot:
    """Return a group with these fields. Times, and what else no answer about a group has, are empty."""
    empty: dict[str, Any] = {
        **dict.fromkeys(("incarnation", "last_rebalance_reason"), ""),
        **dict.fromkeys(("seq", "at_ms", "state_timestamp_ms", "generation"), 0),
        **dict.fromkeys(("protocol_name", "leader_id", "last_rebalance_at_ms", "quarantined")),
        "pending_members": [],
    }
    return GroupSnapshot(**empty | {"group_id": group_id, "state": state, **fields})
