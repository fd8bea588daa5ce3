"""One step function for groups of both protocols, Kafka's and RocketMQ's.

The request that creates a group decides the group's protocol. The protocol does not change until the group
ends. A request of the other protocol is refused and leaves the group unchanged.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import cast, get_args

from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.inputs import Failed, Outage, Quarantine, Received
from state.kafka import step as kafka
from state.kafka import timers
from state.kafka.any_group import KafkaGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.configs_only import ConfigsOnly
from state.kafka.consumer.group_of import refusal_by_other_type
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.effects import Effects, Reply
from state.kafka.requests import AnyRequest as KafkaRequest
from state.kafka.requests import ConsumerGroupDescribe, ConsumerGroupHeartbeat, Unanswered
from state.kafka.timers import DeadlineReached
from state.messages import ErrorResponse, ReleaseGroup
from state.rocketmq import effects as rocketmq_effects
from state.rocketmq import step as rocketmq
from state.rocketmq.group import Group as RocketMqGroup
from state.rocketmq.requests import AnyRequest as RocketMqRequest
from state.rocketmq.requests import ConnectionClosed
from state.rocketmq.timers import ScanDue, next_scan

AnyGroup = KafkaGroup | ConfigsOnly | RocketMqGroup
"""What is stored of a group id: a group, or the settings of a Kafka group that does not exist. The settings
keep the id for Kafka's protocols."""
AnyRequest = KafkaRequest | RocketMqRequest
AnyDeadline = DeadlineReached | ScanDue
AnyEvent = Received[AnyRequest] | Failed[AnyRequest] | AnyDeadline | Outage | Quarantine[AnyDeadline | Outage]
AnyEffects = Effects | rocketmq_effects.Effects


class GroupType(StrEnum):
    """The protocol of a group."""

    KAFKA = "Kafka"
    ROCKETMQ = "RocketMQ"


_TYPE_OF_GROUP = {
    ClassicGroup: GroupType.KAFKA,
    ConsumerGroup: GroupType.KAFKA,
    ConfigsOnly: GroupType.KAFKA,
    RocketMqGroup: GroupType.ROCKETMQ,
}

# An operator's ReleaseGroup fits both protocols.
_TYPE_OF_REQUEST: dict[type, GroupType] = {
    **dict.fromkeys(get_args(KafkaRequest), GroupType.KAFKA),
    **dict.fromkeys(get_args(RocketMqRequest), GroupType.ROCKETMQ),
}
del _TYPE_OF_REQUEST[ReleaseGroup]


def step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Apply one event to a group of either protocol: see `state.kafka.step.step` and
    `state.rocketmq.step.step`.
    """
    requested = _requested_type(event)
    if requested is not None and group is not None and requested is not group_type_of(group):
        assert isinstance(event, (Received, Failed))
        return _refuse(group, requested, event, config)
    if isinstance(group, ClassicGroup | ConsumerGroup | ConfigsOnly) or (
        group is None and requested is not GroupType.ROCKETMQ
    ):
        return kafka.step(group, group_id, cast(kafka.Event, event), now_ms, config)
    return rocketmq.step(group, group_id, cast(rocketmq.Event, event), now_ms, config.rocketmq)


def next_deadline_ms(group: AnyGroup, config: CoordinatorConfig) -> int | None:
    """Return the time of the group's earliest deadline in ms, None if no deadline is armed."""
    if isinstance(group, RocketMqGroup):
        scan = next_scan(group, config.rocketmq)
        return None if scan is None else scan.deadline_ms
    if isinstance(group, ConfigsOnly):
        return None
    return timers.next_deadline_ms(group)


def due_deadlines(group: AnyGroup, until_ms: int, config: CoordinatorConfig) -> Sequence[AnyDeadline]:
    """Return the group's deadlines up to `until_ms` in the order in which they fire."""
    if isinstance(group, RocketMqGroup):
        scan = next_scan(group, config.rocketmq)
        return [] if scan is None or scan.deadline_ms > until_ms else [scan]
    if isinstance(group, ConfigsOnly):
        return []
    return timers.due_deadlines(group, until_ms)


def is_armed(group: AnyGroup, deadline: AnyDeadline, config: CoordinatorConfig) -> bool:
    """Whether a deadline that was due is still armed, after other deadlines fired."""
    if isinstance(group, RocketMqGroup):
        return next_scan(group, config.rocketmq) == deadline
    assert isinstance(deadline, DeadlineReached)
    if isinstance(group, ConfigsOnly):
        return False
    return timers.is_armed(group, deadline)


def group_type_of(group: AnyGroup) -> GroupType:
    """Return the protocol of the group."""
    return _TYPE_OF_GROUP[type(group)]


def _requested_type(event: AnyEvent) -> GroupType | None:
    """Return the protocol of the event's request. None if the event is not a request, or is an operator's
    request that fits both protocols.
    """
    return _TYPE_OF_REQUEST.get(type(event.request)) if isinstance(event, (Received, Failed)) else None


def _refuse(
    group: AnyGroup,
    requested: GroupType,
    event: Received[AnyRequest] | Failed[AnyRequest],
    config: CoordinatorConfig,
) -> AnyEffects:
    """Answer with INCONSISTENT_GROUP_PROTOCOL, to a ConsumerGroupHeartbeat and a ConsumerGroupDescribe with
    GROUP_ID_NOT_FOUND. The group, including its clock, is unchanged.
    """
    request = event.request
    answers = []
    if not isinstance(request, ConnectionClosed | Unanswered):
        rule, error = "X3", ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        message = f"group {group.group_id!r} is a {group_type_of(group)} group; this is a {requested} request"
        if isinstance(request, ConsumerGroupHeartbeat):
            refused = refusal_by_other_type(group.group_id, request, event.request_id, config)
            rule, error, message = refused.rule, refused.error, refused.message
        elif isinstance(request, ConsumerGroupDescribe):
            rule, error = "AD2", ErrorCode.GROUP_ID_NOT_FOUND
            message = f"Group {group.group_id} is not a consumer group."
        response = ErrorResponse(
            group_id=group.group_id,
            correlation_id=request.correlation_id,
            request=event.request_id,
            error_code=error,
            error_message=message,
            rule=rule,
        )
        answers = [(request.reply_partition, response)]
    if isinstance(group, RocketMqGroup):
        return rocketmq_effects.Effects(group, [rocketmq_effects.Reply(*answer) for answer in answers])
    return Effects(group, [Reply(*answer) for answer in answers], [], [], [], None)
