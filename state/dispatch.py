"""One step function for groups of every protocol, Kafka's and RocketMQ's.

The request that creates a group decides the group's type. The type does not change until the group ends. A
request of another type is refused and leaves the group unchanged.
"""

from collections.abc import Callable, Sequence
from typing import Any, get_args

from kafka_why.contract.codec import UNANSWERED, AnyRequest
from kafka_why.contract.history_reader import StoredView
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


_STEPS: dict[GroupType, Callable[..., AnyEffects]] = {
    GroupType.KAFKA: kafka.step,
    GroupType.ROCKETMQ: _step_of_rocketmq,
}
_STORED: tuple[StoredKind[Any, Any], ...] = (*KAFKA_PROTOCOLS, CONFIGS_ONLY, ROCKETMQ)
_KINDS = {kind.group_class: kind for kind in _STORED}
_STEP_OF = {kind.group_class: _STEPS[kind.group_type] for kind in _STORED}
# An operator's ReleaseGroup fits every type.
_TYPE_OF_REQUEST: dict[type, GroupType] = {
    **dict.fromkeys(get_args(KafkaRequest), GroupType.KAFKA),
    **dict.fromkeys(get_args(RocketMqRequest), GroupType.ROCKETMQ),
}
del _TYPE_OF_REQUEST[ReleaseGroup]
_REFUSALS = {request: refusal for kind in _STORED for request, refusal in kind.refusals.items()}


def step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Apply one event to a group of any protocol (`state.kafka.protocols.step`,
    `state.rocketmq.protocol.step`), in less time if it is a renewal (`KafkaProtocol.renewals`).
    """
    if isinstance(event, Received) and not event.late_by_ms:
        renewal = kafka.RENEWALS.get((type(group), type(event.request)))
        effects = None if renewal is None else renewal(group, event.request, event.request_id, now_ms, config)
        if effects is not None:
            return effects
    return general_step(group, group_id, event, now_ms, config)


def general_step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Apply one event to a group by its protocol's own step."""
    requested = None
    if isinstance(event, (Received, Failed)):
        requested = _TYPE_OF_REQUEST.get(type(event.request))
        if group is not None and requested not in (None, _KINDS[type(group)].group_type):
            return _refuse(group, requested, event, config)
    take_step = _STEPS[requested or GroupType.KAFKA] if group is None else _STEP_OF[type(group)]
    return take_step(group, group_id, event, now_ms, config)


def next_deadline_ms(group: AnyGroup, config: CoordinatorConfig) -> int | None:
    """Return the time of the group's earliest deadline in ms, None if no deadline is armed."""
    return _KINDS[type(group)].next_deadline_ms(group, config)


def due_deadlines(group: AnyGroup, until_ms: int, config: CoordinatorConfig) -> Sequence[AnyDeadline]:
    """Return the group's deadlines up to `until_ms` in the order in which they fire."""
    return _KINDS[type(group)].due_deadlines(group, until_ms, config)


def is_armed(group: AnyGroup, deadline: AnyDeadline, config: CoordinatorConfig) -> bool:
    """Return True if a due deadline is still armed after other deadlines fired."""
    return _KINDS[type(group)].is_armed(group, deadline, config)


def group_type_of(group: AnyGroup) -> GroupType:
    """Return the type of the group."""
    return _KINDS[type(group)].group_type


def view_of(group: AnyGroup) -> StoredView:
    """Return the groups-topic record of a stored group."""
    view: StoredView = _KINDS[type(group)].view(group)
    return view


def _refuse(
    group: AnyGroup,
    requested: GroupType,
    event: Received[AnyRequest] | Failed[AnyRequest],
    config: CoordinatorConfig,
) -> AnyEffects:
    """Answer a request of another type with its own protocol's error, by default INCONSISTENT_GROUP_PROTOCOL.
    The group and its clock do not change.
    """
    request, kind = event.request, _KINDS[type(group)]
    answers = []
    if not isinstance(request, UNANSWERED):
        rule, error = "X3", ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        message = f"group {group.group_id!r} is a {kind.group_type} group; this is a {requested} request"
        if (refusal := _REFUSALS.get(type(request))) is not None:
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
    effects: AnyEffects = kind.refused(group, answers)
    return effects
