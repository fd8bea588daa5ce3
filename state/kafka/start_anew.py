"""A new life of an Empty group under another protocol."""

from kafka_why.contract.kafka.history import EntryType
from state.kafka.any_group import KafkaGroup
from state.kafka.context import RuleId, StepContext
from state.kafka.group import Group

# What a new group does not take over from the Empty group in whose place it comes.
_OF_ONE_LIFE = {
    "incarnation",
    "seq",
    "state_timestamp_ms",
    "last_rebalance_at_ms",
    "last_rebalance_reason",
}


def start_anew(context: StepContext, rule: RuleId, group_type: type[KafkaGroup], reason: str) -> None:
    """Begin a new life of an Empty group under the protocol of `group_type`. Epochs begin anew, and offsets
    stay.
    """
    old = context.group
    kept = {name: getattr(old, name) for name in Group.__struct_fields__ if name not in _OF_ONE_LIFE}
    context.become(group_type(incarnation=context.cause, state_timestamp_ms=context.now_ms, **kept))
    context.record(rule, EntryType.GROUP_CREATED, reason)
