"""Kafka's protocols by the type of their groups, requests to a group id that has no group, the requests
about the settings of a group, and `step`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    UNANSWERED,
    AlterGroupConfigs,
    AnyAnswered,
    AnyRequest,
    DeleteGroup,
    DescribeGroup,
    DescribeGroupConfigs,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OversizedRequest,
    ReplyTo,
    SyncGroup,
    TopicMetadata,
    TransactionMarker,
    TxnOffsetCommit,
    Unanswered,
)
from kafka_why.contract.kafka.responses import (
    AlterGroupConfigsResponse,
    DescribeGroupConfigsResponse,
    GroupConfigValue,
    LeaveGroupResponse,
    LeftMember,
    SyncGroupResponse,
)
from kafka_why.contract.kafka.snapshot import ConfigsView, GroupSnapshot
from kafka_why.contract.messages import (
    ErrorCode,
    ErrorResponse,
    GroupType,
    ReleaseGroup,
    ReleaseGroupResponse,
    SettingValue,
)
from state.config import (
    KEPT_SETTINGS,
    ConfigError,
    CoordinatorConfig,
    ReadSetting,
    SettingBounds,
    values_in_force,
    whole_number,
)
from state.kafka.classic.protocol import CLASSIC
from state.kafka.classic.requests import join_no_group, oversized_no_group, validate_sync_protocol
from state.kafka.classic_group import ClassicGroup
from state.kafka.commits import (
    FIRST_VERSION_WITH_ERRORS_OF_GROUPS,
    extend_ended_retention,
    transaction_marker,
)
from state.kafka.consumer.protocol import CONSUMER
from state.kafka.context import Effects, KafkaGroup, RuleId, StepContext, deciding_rule, unchanged
from state.kafka.group import ConfigsOnly, DeadlineReached, TimerKind
from state.kafka.modern import RequestRefused, answer_refused
from state.kafka.offsets import answer_fetch, arm_retention, retention_pass, topic_metadata
from state.kafka.protocol import Before, KafkaProtocol, answer_with, refuse_oversized
from state.kafka.share.protocol import SHARE
from state.kafka.streams.protocol import STREAMS
from state.kafka.streams.settings import INTERNAL_SETTINGS
from state.protocol import Failed, Handler, Outage, Quarantine, Received, StoredKind, cause_of

# A group id that has no group. Rows J4, J5, J9, S1, H1, L1, O1, O2, TO2, TO3, Q1, D1, V1, K1.
#
# The classic protocol's requests are answered here, and those that all protocols share. Other protocols' own
# requests are in their `without_own_group`.


FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 9  # of OffsetCommit (KIP-848)


def sync(context: StepContext, request: SyncGroup, reply_to: ReplyTo) -> None:
    refusal = validate_sync_protocol(context, request)
    refusal = refusal or (context.rule("S1"), ErrorCode.UNKNOWN_MEMBER_ID)
    context.reply(reply_to, SyncGroupResponse, *refusal)


def leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    error = ErrorCode.UNKNOWN_MEMBER_ID
    verdicts = [(context.rule("L1"), error) for _ in request.members]
    members = [LeftMember(leaving.member_id, leaving.group_instance_id, error) for leaving in request.members]
    context.reply(reply_to, LeaveGroupResponse, deciding_rule(verdicts), members=members)


def _commit(
    context: StepContext,
    request: OffsetCommit | TxnOffsetCommit,
    reply_to: ReplyTo,
    *,
    rows: tuple[str, str],
    knows_error_from: int,
    commit: Handler,
) -> None:
    """Handle a commit to a group id without a group.

    `rows` are those of a commit by a member and without one. Versions below `knows_error_from` do not know
    the error of a missing group.
    """
    of_member, of_no_member = rows
    if request.generation_id >= 0:
        knows_error = request.api_version >= knows_error_from
        error = ErrorCode.GROUP_ID_NOT_FOUND if knows_error else ErrorCode.ILLEGAL_GENERATION
        return context.reply(reply_to, request.answer, context.rule(of_member), error)
    reason = f"first {type(request).__name__} for this group id, by no member"
    context.create_group(ClassicGroup, context.rule(of_no_member), reason)
    return commit(context, request, reply_to)


def fetch_offsets(context: StepContext, request: OffsetFetch, reply_to: ReplyTo) -> None:
    """Answer a fetch from a group id without a group. This is not an error and creates no group."""
    answer_fetch(context, request, reply_to, {}, {}, context.rule("Q1"))


HANDLERS_WITHOUT_GROUP: Mapping[type, Handler] = {
    JoinGroup: join_no_group,
    SyncGroup: sync,
    OversizedRequest: oversized_no_group,
    Heartbeat: answer_with("H1", ErrorCode.UNKNOWN_MEMBER_ID),
    LeaveGroup: leave,
    OffsetCommit: partial(
        _commit,
        rows=("O1", "O2"),
        knows_error_from=FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND,
        commit=CLASSIC.commit,
    ),
    TxnOffsetCommit: partial(
        _commit,
        rows=("TO2", "TO3"),
        knows_error_from=FIRST_VERSION_WITH_ERRORS_OF_GROUPS,
        commit=CLASSIC.txn_commit,
    ),
    OffsetFetch: fetch_offsets,
    OffsetDelete: answer_with("D1", ErrorCode.GROUP_ID_NOT_FOUND),
    DescribeGroup: answer_with("V1"),
    DeleteGroup: answer_with("K1", ErrorCode.GROUP_ID_NOT_FOUND),
}


PROTOCOLS: tuple[KafkaProtocol[Any], ...] = (CLASSIC, CONSUMER, SHARE, STREAMS)

SETTINGS = sorted(
    (setting for protocol in PROTOCOLS for setting in protocol.settings), key=lambda setting: setting.name
)
"""The settings of groups that have an effect, by name."""
GROUP_CONFIG_NAMES = sorted([s.name for s in SETTINGS] + [s.name for s in KEPT_SETTINGS])
"""All settings that a group can have, without Kafka's internal ones."""

_OF_GROUP: dict[type, KafkaProtocol[Any]] = {protocol.group_class: protocol for protocol in PROTOCOLS}


def protocol_of(group: KafkaGroup) -> KafkaProtocol[Any]:
    """Return the protocol of the group."""
    return _OF_GROUP[type(group)]


def view_of(group: KafkaGroup) -> GroupSnapshot:
    """Return a copy of the group for readers."""
    return protocol_of(group).view(group)


def bounds_of(config: CoordinatorConfig) -> dict[str, SettingBounds]:
    """Return the coordinator's value and bounds of each group setting, by Kafka's name of the setting."""
    return {setting.name: setting.bounds(config) for setting in SETTINGS}


def handlers() -> dict[type, Mapping[type, Handler]]:
    """Return all handlers by the type of the group (the type of None without a group), and then by the
    type of the request.
    """
    without_own_group = {
        request: h for protocol in PROTOCOLS for request, h in protocol.without_own_group.items()
    }
    tables = {protocol.group_class: without_own_group | protocol.all_handlers() for protocol in PROTOCOLS}
    return {type(None): {**without_own_group, **HANDLERS_WITHOUT_GROUP}, **tables}


# The settings of a group by request: DescribeConfigs and IncrementalAlterConfigs of the resource GROUP.
# Rows CF19 to CF26.
#
# Source: GroupConfig.validate, GroupConfigManager.java.


class ConfigsKind(StoredKind[ConfigsOnly, DeadlineReached]):
    group_type = GroupType.KAFKA
    group_class = ConfigsOnly

    def next_deadline_ms(self, group: ConfigsOnly, config: CoordinatorConfig) -> None:
        return None

    def due_deadlines(
        self, group: ConfigsOnly, until_ms: int, config: CoordinatorConfig
    ) -> Sequence[DeadlineReached]:
        return ()

    def is_armed(self, group: ConfigsOnly, deadline: DeadlineReached, config: CoordinatorConfig) -> bool:
        return False

    def view(self, group: ConfigsOnly) -> ConfigsView:
        return ConfigsView(group.group_id, group.incarnation, group.seq, group.clock_ms, group.configs)

    def refused(self, group: ConfigsOnly, answers: Sequence[tuple[int, ErrorResponse]]) -> Effects:
        return unchanged(group, answers)


CONFIGS_ONLY = ConfigsKind()


_BY_NAME = {setting.name: setting for setting in (*SETTINGS, *INTERNAL_SETTINGS)}
_KEPT_BY_NAME = {setting.name: setting for setting in KEPT_SETTINGS}


def describe_configs(context: StepContext, request: DescribeGroupConfigs, reply_to: ReplyTo) -> None:
    """Answer with each setting's value in force. The group need not exist."""
    configs = _of_coordinator(context.config) if request.of_coordinator else _of_group(context)
    context.reply(reply_to, DescribeGroupConfigsResponse, context.rule("CF25"), configs=configs)


def alter_configs(context: StepContext, request: AlterGroupConfigs, reply_to: ReplyTo) -> None:
    """Set settings of the group, which need not exist. Nothing is set if one is refused.

    No epoch changes, because values are read where they are used (row CF22).
    """
    try:
        configs = _altered(context, request)
    except RequestRefused as refused:
        return answer_refused(context, request, reply_to, refused)
    row = context.rule("CF22")
    if configs != context.configs and not request.validate_only:
        context.set_configs(configs)
        if context.has_group:
            shown = ", ".join(f"{name}={value}" for name, value in configs.items()) or "none"
            context.record(row, EntryType.CONFIGS_CHANGED, f"the group's own settings: {shown}")
    return context.reply(reply_to, AlterGroupConfigsResponse, row)


def _of_group(context: StepContext) -> list[GroupConfigValue]:
    own = context.configs
    in_force, without_own = _values(own, context.config), _values({}, context.config)
    return [
        GroupConfigValue(name, in_force[name], name not in own, without_own[name] if name in own else None)
        for name in GROUP_CONFIG_NAMES
    ]


def _values(own: Mapping[str, SettingValue], config: CoordinatorConfig) -> dict[str, str]:
    """Return the text of each setting of a group. `own` are the settings that the group itself has."""
    kept = {setting.name: own.get(setting.name, setting.default_of(config)) for setting in KEPT_SETTINGS}
    return {name: str(value) for name, value in (kept | values_in_force(SETTINGS, own, config)).items()}


def _of_coordinator(config: CoordinatorConfig) -> list[GroupConfigValue]:
    defaults = CoordinatorConfig().settings()
    return [
        GroupConfigValue(name, str(value), value == defaults[name])
        for name, value in sorted(config.settings().items())
    ]


def _altered(context: StepContext, request: AlterGroupConfigs) -> dict[str, SettingValue]:
    """Return the group's own settings after the request, sorted."""
    configs = dict(context.configs)
    for name, given in sorted(request.configs.items()):
        if name not in _BY_NAME and name not in _KEPT_BY_NAME:
            known = ", ".join(GROUP_CONFIG_NAMES)
            raise RequestRefused(
                context.rule("CF24"),
                ErrorCode.INVALID_CONFIG,
                f"Unknown group config name: {name}; known are: {known}",
            )
        if given is None:
            configs.pop(name, None)
            continue
        row, read = _reader(context.config, name)
        try:
            configs[name] = read(name, given)
        except ConfigError as error:
            raise RequestRefused(context.rule(row), ErrorCode.INVALID_CONFIG, str(error)) from error
    _check_together(context, configs)
    return dict(sorted(configs.items()))


def _reader(config: CoordinatorConfig, name: str) -> tuple[str, ReadSetting]:
    """Return the row that refuses an invalid value of this setting, and the function that parses a value."""
    if name in _KEPT_BY_NAME:
        return "CF26", _KEPT_BY_NAME[name].read
    setting = _BY_NAME[name]
    bounds = setting.bounds(config)
    return setting.row, partial(whole_number, at_least=bounds.at_least, at_most=bounds.at_most)


def _check_together(context: StepContext, configs: Mapping[str, SettingValue]) -> None:
    for protocol in PROTOCOLS:
        conflict = protocol.conflict_of(values_in_force(protocol.settings, configs, context.config))
        if conflict is not None:
            row, message = conflict
            raise RequestRefused(context.rule(row), ErrorCode.INVALID_CONFIG, message)


# The entry of Kafka's side: `step` applies one event to one group.


KafkaEvent = (
    Received[AnyRequest]
    | Failed[AnyRequest]
    | DeadlineReached
    | Outage
    | Quarantine[DeadlineReached | Outage]
)

# Error texts that do not depend on the request.
_REFUSALS = {
    ErrorCode.INVALID_GROUP_ID: "The group id is invalid.",
    ErrorCode.UNKNOWN_SERVER_ERROR: "The coordinator failed at this request, and nothing has changed.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The group is quarantined after a failure of the coordinator.",
}


RENEWALS = {
    (protocol.group_class, request): renewal
    for protocol in PROTOCOLS
    for request, renewal in protocol.renewals.items()
}
"""By the type of the group and of the request."""


def step(
    stored: KafkaGroup | ConfigsOnly | None,
    group_id: str,
    event: KafkaEvent,
    now_ms: int,
    config: CoordinatorConfig,
) -> Effects:
    """Apply one event to a group at a time, and return the effects.

    `stored` is the group, or the settings of a group that does not exist, or None. It is changed in place,
    and the effects hold the new one. `now_ms` is never before the group's clock. No client request raises:
    errors are answers. The caller fires deadlines in time order (`state.timeline`).
    """
    group, kept = (None, stored) if isinstance(stored, ConfigsOnly) else (stored, None)
    context = StepContext(group, group_id, cause_of(event), now_ms, config, kept=kept)
    before: Before = ("Empty", False)
    if group is not None:
        assert now_ms >= group.clock_ms, "a group's clock never runs backwards"
        protocol = _OF_GROUP[type(group)]
        before = protocol.before(group)
        context.noted_state = before[0]
        if group.quarantined is not None:
            protocol.shift_deadlines(context, group, now_ms - group.clock_ms)
        group.clock_ms = now_ms
    if kept is not None:
        kept.clock_ms = now_ms
    match event:
        case Received():
            _received(context, event)
        case DeadlineReached():
            _deadline_reached(context, event)
        case Outage() if context.has_group:
            _take_over(context, event)
        case Failed():
            refuse(context, event, context.rule("F1"), ErrorCode.UNKNOWN_SERVER_ERROR)
        case Quarantine() if context.has_group:
            _quarantine(context, event)
    group = context.group_or_none
    if group is not None:
        _OF_GROUP[type(group)].settle(context, group, before)
        arm_retention(context, group)
    return context.effects()


def _received(context: StepContext, event: Received[AnyRequest]) -> None:
    request = event.request
    kind = type(request)
    if not isinstance(request, UNANSWERED):
        context.principal = request.principal
    if not request.group_id and kind not in _CHECK_GROUP_ID:
        return refuse(context, event, context.rule("P1"), ErrorCode.INVALID_GROUP_ID)
    group = context.group_or_none
    if group is not None:
        if event.late_by_ms:
            _note_late(context, event.late_by_ms)
        if group.quarantined is not None and kind is not ReleaseGroup:
            return refuse(context, event, context.rule("F2"), ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if isinstance(request, UNANSWERED):
        return _handle_unanswered(context, request)
    return HANDLERS[type(group)][kind](context, request, _reply_to(request, event.request_id))


def _reply_to(request: AnyAnswered, request_id: str) -> ReplyTo:
    return ReplyTo(request.reply_partition, request.correlation_id, request_id)


def _note_late(context: StepContext, late_by_ms: int) -> None:
    context.record(
        context.rule("F3"),
        EntryType.APPLIED_LATE,
        "a request follows a fired deadline in the log; it is applied at the group's clock",
        late_by_ms=late_by_ms,
    )


def _handle_unanswered(context: StepContext, request: Unanswered) -> None:
    """Handle a report of the coordinator's own service, which gets no answer."""
    if not context.has_group:
        return
    if isinstance(request, TopicMetadata):
        topic_metadata(context, request)
    handler = protocol_of(context.group).unanswered_handlers.get(type(request))
    if handler is not None:
        handler(context, context.group, request)


def _deadline_reached(context: StepContext, deadline: DeadlineReached) -> None:
    """Handle a due deadline. The deadline is disarmed unless the handling arms it again."""
    context.group.last_fired_ms = max(context.group.last_fired_ms, deadline.deadline_ms)
    if deadline.kind is TimerKind.RETENTION:
        retention_pass(context)
    else:
        protocol_of(context.group).deadline_reached(context, context.group, deadline)


def _take_over(context: StepContext, outage: Outage) -> None:
    extend_ended_retention(context, outage.length_ms)
    if context.group.quarantined is None:
        protocol_of(context.group).take_over(context, context.group, outage)


def refuse(
    context: StepContext, event: Received[AnyRequest] | Failed[AnyRequest], rule: RuleId, error: ErrorCode
) -> None:
    """Answer any request with only an error. As in Kafka, the answer to a JoinGroup repeats the member id."""
    request = event.request
    if isinstance(request, UNANSWERED):
        return
    fields = {"member_id": request.member_id} if isinstance(request, JoinGroup) else {}
    response = request.answer
    if "error_message" in response.__struct_fields__:
        fields["error_message"] = _REFUSALS[error]
    context.reply(_reply_to(request, event.request_id), response, rule, error, **fields)


def _quarantine(context: StepContext, event: Quarantine[DeadlineReached | Outage]) -> None:
    row = context.rule("F2")
    context.group.quarantined = event.error
    context.record(row, EntryType.QUARANTINED, f"{event.deadline} raised {event.error}")
    protocol_of(context.group).answer_parked(context, context.group, row)


def release(context: StepContext, _: ReleaseGroup, to: ReplyTo) -> None:
    """Release the group. Its deadlines are still ahead, because `step` moved them with the group's clock."""
    row = context.rule("F4")
    if context.has_group and context.group.quarantined is not None:
        context.group.quarantined = None
        deadline_ms = protocol_of(context.group).release(context, context.group)
        context.deadline(0)  # a retention pass may have become due
        context.record(
            row,
            EntryType.RELEASED,
            "released by an operator: sessions begin anew, rounds go on",
            deadline_ms=deadline_ms,
        )
    context.reply(to, ReleaseGroupResponse, row)


# For every group id, with or without a group.
_OF_ALL: dict[type, Handler] = {
    TransactionMarker: transaction_marker,
    ReleaseGroup: release,
    OversizedRequest: refuse_oversized,
    DescribeGroupConfigs: describe_configs,
    AlterGroupConfigs: alter_configs,
}
HANDLERS = {group_type: {**_OF_ALL, **table} for group_type, table in handlers().items()}
"""By the type of the group (NoneType without one), and by the type of the request."""
_CHECK_GROUP_ID = {request for protocol in PROTOCOLS for request in protocol.checks_group_id}
