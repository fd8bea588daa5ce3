"""One step function for groups of every protocol, Kafka's and RocketMQ's. A step applies one event to one
group.

The request that creates a group decides the group's type: Kafka or RocketMQ. The type does not change until
the group ends. A request of another type is refused and leaves the group unchanged.
"""

from collections.abc import Callable
from typing import Any, get_args

from kafka_why.contract.codec import UNANSWERED, AnyRequest
from kafka_why.contract.kafka.requests import AnyRequest as KafkaRequest
from kafka_why.contract.messages import ErrorCode, ErrorResponse, GroupType, ReleaseGroup
from kafka_why.contract.rocketmq.requests import AnyRequest as RocketMqRequest
from state.config import CoordinatorConfig
from state.kafka import protocols as kafka
from state.kafka.context import Effects, KafkaGroup
from state.kafka.group import ConfigsOnly, DeadlineReached
from state.kafka.protocols import CONFIGS_ONLY
from state.kafka.protocols import PROTOCOLS as KAFKA_PROTOCOLS
from state.protocol import Failed, Outage, Quarantine, Received, StoredKind
from state.rocketmq import context as rocketmq_context
from state.rocketmq import protocol as rocketmq
from state.rocketmq.group import RocketMqGroup, ScanDue
from state.rocketmq.protocol import ROCKETMQ

AnyGroup = KafkaGroup | ConfigsOnly | RocketMqGroup
"""The stored state of a group id: a group, or the settings of a Kafka group that does not exist. Such
settings reserve the id for Kafka's protocols.
"""
AnyDeadline = DeadlineReached | ScanDue
AnyEvent = Received[AnyRequest] | Failed[AnyRequest] | AnyDeadline | Outage | Quarantine[AnyDeadline | Outage]
AnyEffects = Effects | rocketmq_context.Effects


def _step_of_rocketmq(
    group: RocketMqGroup | None,
    group_id: str,
    event: rocketmq.RocketMqEvent,
    now_ms: int,
    config: CoordinatorConfig,
) -> rocketmq_context.Effects:
    return rocketmq.step(group, group_id, event, now_ms, config.rocketmq)


_STEP_OF_GROUP_TYPE: dict[GroupType, Callable[..., AnyEffects]] = {
    GroupType.KAFKA: kafka.step,
    GroupType.ROCKETMQ: _step_of_rocketmq,
}
_STORED_KINDS: tuple[StoredKind[Any, Any], ...] = (*KAFKA_PROTOCOLS, CONFIGS_ONLY, ROCKETMQ)
_KIND_OF_CLASS: dict[type, StoredKind[Any, Any]] = {kind.group_class: kind for kind in _STORED_KINDS}
_STEP_OF_CLASS = {kind.group_class: _STEP_OF_GROUP_TYPE[kind.group_type] for kind in _STORED_KINDS}
# ReleaseGroup, by which an operator ends a quarantine, is valid for groups of both types, so it has no entry.
_GROUP_TYPE_OF_REQUEST: dict[type, GroupType] = {
    **dict.fromkeys(get_args(KafkaRequest), GroupType.KAFKA),
    **dict.fromkeys(get_args(RocketMqRequest), GroupType.ROCKETMQ),
}
del _GROUP_TYPE_OF_REQUEST[ReleaseGroup]
# By request type: the function that decides how a group of the other type refuses the request. Row X3
# refuses all other requests.
_OWN_REFUSALS = {request: refusal for kind in _STORED_KINDS for request, refusal in kind.refusals.items()}


def step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Apply one event to a group of any protocol, and return the effects. `group` is None if the group id has
    no stored state.
    """
    effects = take_shortcut(group, event, now_ms, config)
    return general_step(group, group_id, event, now_ms, config) if effects is None else effects


def take_shortcut(
    group: AnyGroup | None, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> Effects | None:
    """Apply a frequent request, such as a heartbeat, by a faster function (`KafkaProtocol.renewals`). The
    outcome is that of `general_step`.

    Return None if the event needs `general_step`. If this function returns None or raises an exception, the
    group is unchanged.
    """
    # A request with `late_by_ms` needs `general_step`, which records the delay in the history.
    if isinstance(event, Received) and not event.late_by_ms:
        renewal = kafka.RENEWALS.get((type(group), type(event.request)))
        if renewal is not None:
            return renewal(group, event.request, event.request_id, now_ms, config)
    return None


def general_step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Apply one event to a group by its protocol's own step, without a shortcut."""
    group_type = None
    if isinstance(event, (Received, Failed)):
        group_type = _GROUP_TYPE_OF_REQUEST.get(type(event.request))  # None for ReleaseGroup
        if group is not None and group_type not in (None, kind_of(group).group_type):
            return _refuse(group, group_type, event, config)
    if group is None:
        # Kafka's step handles an event that belongs to neither type, such as a ReleaseGroup.
        protocol_step = _STEP_OF_GROUP_TYPE[group_type or GroupType.KAFKA]
    else:
        protocol_step = _STEP_OF_CLASS[type(group)]
    return protocol_step(group, group_id, event, now_ms, config)


def kind_of(group: AnyGroup) -> StoredKind[Any, AnyDeadline]:
    """Return the `StoredKind` of this group, which has the queries on it, such as its next deadline."""
    return _KIND_OF_CLASS[type(group)]


def _refuse(
    group: AnyGroup,
    requested_type: GroupType,
    event: Received[AnyRequest] | Failed[AnyRequest],
    config: CoordinatorConfig,
) -> AnyEffects:
    """Refuse a Kafka request to a RocketMQ group, or a RocketMQ request to a Kafka group.

    The error is INCONSISTENT_GROUP_PROTOCOL unless `_OWN_REFUSALS` has another error for the request. The
    group and its clock do not change.
    """
    request, kind = event.request, kind_of(group)
    answers = []
    if not isinstance(request, UNANSWERED):
        rule, error = "X3", ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        message = f"group {group.group_id!r} is a {kind.group_type} group; this is a {requested_type} request"
        if (refusal := _OWN_REFUSALS.get(type(request))) is not None:
            rule, error, message = refusal(group.group_id, request, event.request_id, config)
        response = ErrorResponse(
            group_id=group.group_id,
            correlation_id=request.correlation_id,
            request=event.request_id,
            error_code=error,
            error_message=message,
            rule=rule,
        )
        answers = [(request.reply_partition, response)]
    effects: AnyEffects = kind.refusal_effects(group, answers)
    return effects
