"""The group that a ConsumerGroupHeartbeat is for. Rows HB15 to HB19.

Source: GroupMetadataManager.getOrMaybeCreateConsumerGroup.
"""

from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer.refusal import Refused
from state.kafka.consumer.request_checks import check_request
from state.kafka.consumer.upgrade import upgrade
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import RuleId, StepContext
from state.kafka.group import Group
from state.kafka.history import EntryType
from state.kafka.requests import ConsumerGroupHeartbeat

# What a new group does not take over from the Empty group in whose place it comes.
_OF_ONE_LIFE = {
    "incarnation",
    "seq",
    "state_timestamp_ms",
    "last_rebalance_at_ms",
    "last_rebalance_reason",
}


def check_group(context: StepContext, *, leaving: bool = False) -> None:
    """Raise Refused unless the group is a group of the consumer protocol. `leaving`: a member leaves it."""
    if not context.has_group:
        rule = context.rule("HB36" if leaving else "HB15")
        raise Refused(rule, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {context.group_id} does not exist.")
    if isinstance(context.group, ClassicGroup):
        other = "HB17" if context.group.is_empty else "HB18"
        raise _of_another_type(context.rule("HB36" if leaving else other), context.group_id)
    context.rule("HB16")


def get_or_create_group(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """Make the group of the request, which joins, a group of the consumer protocol. Raise Refused if that
    cannot be.
    """
    if not context.has_group:
        context.create_group(
            context.rule("HB15"), "first ConsumerGroupHeartbeat for this group id", ConsumerGroup
        )
    elif isinstance(context.group, ClassicGroup):
        if context.group.is_empty:
            reason = "the Empty classic group becomes a consumer group; its offsets stay"
            start_anew(context, context.rule("HB17"), ConsumerGroup, reason)
        else:
            context.rule("HB18")
            upgrade(context, request)


def start_anew(
    context: StepContext, rule: RuleId, group_type: type[ClassicGroup] | type[ConsumerGroup], reason: str
) -> None:
    """Begin a new life of an Empty group under the other protocol. Epochs begin anew, and offsets stay."""
    old = context.group
    kept = {name: getattr(old, name) for name in Group.__struct_fields__ if name not in _OF_ONE_LIFE}
    context.become(group_type(incarnation=context.cause, state_timestamp_ms=context.now_ms, **kept))
    context.record(rule, EntryType.GROUP_CREATED, reason)


def refusal_by_other_type(
    group_id: str, request: ConsumerGroupHeartbeat, request_id: str, config: CoordinatorConfig
) -> Refused:
    """Why the request is refused by a group that is none of Kafka's (row HB19), if it is not refused by
    itself.
    """
    context = StepContext(None, group_id, request_id, 0, config)
    try:
        check_request(context, request)
    except Refused as refused:
        return refused
    return _of_another_type(context.rule("HB19"), group_id)


def _of_another_type(rule: RuleId, group_id: str) -> Refused:
    return Refused(rule, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
