"""Views of groups with epochs, as they are on the groups topic."""

from msgspec import structs

from kafka_why.contract.kafka.snapshot import ConsumerGroupSnapshot, GroupSnapshot
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.protocols import view_of

_NOTHING = ConsumerGroupSnapshot(
    assignment_epoch=1,
    assignor_name="",
    topics={},
    resolved_regexes={},
    unknown_topics=[],
    unresolved_regexes=[],
)


def view_with(group_id: str, **fields: object) -> GroupSnapshot:
    """Return the view of a group without members, with these fields of its `ConsumerGroupSnapshot`."""
    group = ConsumerGroup(group_id=group_id, incarnation="i")
    return structs.replace(view_of(group), consumer=structs.replace(_NOTHING, **fields))
