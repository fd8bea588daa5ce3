"""Kafka's protocols by the type of their groups, requests to a group id that has no group, the requests
about the settings of a group, and `step`.

A row, such as S1, is a rule of docs/rules.md. `context.cite` records that a row was applied.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    UNANSWERED,
    AlterGroupConfigs,
    AnyAnsweredRequest,
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
    GroupType,
    ReleaseGroup,
    ReleaseGroupResponse,
    SettingValue,
)
from state.config import (
    STORED_ONLY_SETTINGS,
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
from state.kafka.offsets import arm_retention, fetch_nothing, retention_pass, topic_metadata
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
    """Refuse a SyncGroup to a group id without a group."""
    refusal = validate_sync_protocol(context, request)
    if refusal is None:
        refusal = context.cite("S1"), ErrorCode.UNKNOWN_MEMBER_ID
    context.reply(reply_to, SyncGroupResponse, *refusal)


def leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    """Answer a LeaveGroup to a group id without a group: each of its members is unknown."""
    error = ErrorCode.UNKNOWN_MEMBER_ID
    verdicts = [(context.cite("L1"), error) for _ in request.members]
    members = [LeftMember(leaving.member_id, leaving.group_instance_id, error) for leaving in request.members]
    context.reply(reply_to, LeaveGroupResponse, deciding_rule(verdicts), members=members)


def _commit(
    context: StepContext,
    request: OffsetCommit | TxnOffsetCommit,
    reply_to: ReplyTo,
    *,
    member_row: str,
    no_member_row: str,
    first_version_with_error: int,
    commit: Handler,
) -> None:
    """Handle a commit to a group id without a group.

    A commit by a member, which has a generation, is refused by the row `member_row`. A commit by no member
    creates a classic group by the row `no_member_row`, and `commit` then handles it. The first version of the
    request in which clients know the error GROUP_ID_NOT_FOUND is `first_version_with_error`.
    """
    if request.generation_id >= 0:
        client_knows_error = request.api_version >= first_version_with_error
        error = ErrorCode.GROUP_ID_NOT_FOUND if client_knows_error else ErrorCode.ILLEGAL_GENERATION
        return context.reply(reply_to, request.response_type, context.cite(member_row), error)
    reason = f"first {type(request).__name__} for this group id, by no member"
    context.create_group(ClassicGroup, context.cite(no_member_row), reason)
    return commit(context, request, reply_to)


HANDLERS_WITHOUT_GROUP: Mapping[type, Handler] = {
    JoinGroup: join_no_group,
    SyncGroup: sync,
    OversizedRequest: oversized_no_group,
    Heartbeat: answer_with("H1", ErrorCode.UNKNOWN_MEMBER_ID),
    LeaveGroup: leave,
    OffsetCommit: partial(
        _commit,
        member_row="O1",
        no_member_row="O2",
        first_version_with_error=FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND,
        commit=CLASSIC.commit,
    ),
    TxnOffsetCommit: partial(
        _commit,
        member_row="TO2",
        no_member_row="TO3",
        first_version_with_error=FIRST_VERSION_WITH_ERRORS_OF_GROUPS,
        commit=CLASSIC.txn_commit,
    ),
    OffsetFetch: partial(fetch_nothing, row="Q1"),  # not an error, and creates no group
    OffsetDelete: answer_with("D1", ErrorCode.GROUP_ID_NOT_FOUND),
    DescribeGroup: answer_with("V1"),
    DeleteGroup: answer_with("K1", ErrorCode.GROUP_ID_NOT_FOUND),
}


PROTOCOLS: tuple[KafkaProtocol[Any], ...] = (CLASSIC, CONSUMER, SHARE, STREAMS)

SETTINGS = sorted(
    (setting for protocol in PROTOCOLS for setting in protocol.settings), key=lambda setting: setting.name
)
"""The settings of groups that have an effect, by name."""
GROUP_CONFIG_NAMES = sorted([s.name for s in SETTINGS] + [s.name for s in STORED_ONLY_SETTINGS])
"""All settings that a group can have, without Kafka's internal ones."""

_PROTOCOL_OF: dict[type, KafkaProtocol[Any]] = {protocol.group_class: protocol for protocol in PROTOCOLS}


def protocol_of(group: KafkaGroup) -> KafkaProtocol[Any]:
    """Return the protocol of the group."""
    return _PROTOCOL_OF[type(group)]


def view_of(group: KafkaGroup) -> GroupSnapshot:
    """Return a copy of the group for readers of the groups topic."""
    return protocol_of(group).view(group)


def bounds_of(config: CoordinatorConfig) -> dict[str, SettingBounds]:
    """Return the coordinator's value and bounds of each group setting, by Kafka's name of the setting."""
    return {setting.name: setting.bounds(config) for setting in SETTINGS}


def handlers() -> dict[type, Mapping[type, Handler]]:
    """Return all handlers by the type of the group, which is NoneType for a group id without a group, and
    then by the type of the request.
    """
    without_own_group = {
        request: handler for protocol in PROTOCOLS for request, handler in protocol.without_own_group.items()
    }
    of_groups = {protocol.group_class: without_own_group | protocol.all_handlers() for protocol in PROTOCOLS}
    return {type(None): {**without_own_group, **HANDLERS_WITHOUT_GROUP}, **of_groups}


# The settings of a group by request: DescribeConfigs and IncrementalAlterConfigs of the resource GROUP.
# Rows CF19 to CF26.
#
# Source: GroupConfig.validate, GroupConfigManager.java.


class ConfigsKind(StoredKind[ConfigsOnly, DeadlineReached]):
    """The settings of a group id that has no group. They have no deadlines."""

    group_type = GroupType.KAFKA
    group_class = ConfigsOnly
    refusal_effects = staticmethod(unchanged)

    def due_deadlines(
        self, group: ConfigsOnly, until_ms: int, config: CoordinatorConfig
    ) -> Sequence[DeadlineReached]:
        return ()

    def view(self, group: ConfigsOnly) -> ConfigsView:
        return ConfigsView(group.group_id, group.incarnation, group.seq, group.clock_ms, group.configs)


CONFIGS_ONLY = ConfigsKind()


_SETTING_BY_NAME = {setting.name: setting for setting in (*SETTINGS, *INTERNAL_SETTINGS)}
_STORED_ONLY_BY_NAME = {setting.name: setting for setting in STORED_ONLY_SETTINGS}


def describe_configs(context: StepContext, request: DescribeGroupConfigs, reply_to: ReplyTo) -> None:
    """Answer with the value in force of each setting of the group, which need not exist. The request may ask
    for the coordinator's settings instead.
    """
    configs = _coordinator_values(context.config) if request.of_coordinator else _group_values(context)
    context.reply(reply_to, DescribeGroupConfigsResponse, context.cite("CF25"), configs=configs)


def alter_configs(context: StepContext, request: AlterGroupConfigs, reply_to: ReplyTo) -> None:
    """Set settings of the group, which need not exist. Nothing is set if one is refused.

    No epoch changes, because values are read where they are used (row CF22).
    """
    try:
        configs = _altered_configs(context, request)
    except RequestRefused as refused:
        return answer_refused(context, request, reply_to, refused)
    row = context.cite("CF22")
    if configs != context.configs and not request.validate_only:
        context.set_configs(configs)
        if context.has_group:
            values = ", ".join(f"{name}={value}" for name, value in configs.items()) or "none"
            context.record(row, EntryType.CONFIGS_CHANGED, f"the group's own settings: {values}")
    return context.reply(reply_to, AlterGroupConfigsResponse, row)


def _group_values(context: StepContext) -> list[GroupConfigValue]:
    """Return each setting's value in force for the group. A setting that the group itself has also shows the
    value that would apply without it.
    """
    own = context.configs
    in_force, without_own = _values(own, context.config), _values({}, context.config)
    return [
        GroupConfigValue(name, in_force[name], is_default=False, without_own=without_own[name])
        if name in own
        else GroupConfigValue(name, in_force[name], is_default=True)
        for name in GROUP_CONFIG_NAMES
    ]


def _values(own: Mapping[str, SettingValue], config: CoordinatorConfig) -> dict[str, str]:
    """Return the text of each setting of a group. `own` are the settings that the group itself has."""
    stored_only = {s.name: own.get(s.name, s.default_of(config)) for s in STORED_ONLY_SETTINGS}
    in_force = values_in_force(SETTINGS, own, config)
    return {name: str(value) for name, value in (stored_only | in_force).items()}


def _coordinator_values(config: CoordinatorConfig) -> list[GroupConfigValue]:
    """Return the value of each of the coordinator's settings."""
    defaults = CoordinatorConfig().settings()
    return [
        GroupConfigValue(name, str(value), is_default=value == defaults[name])
        for name, value in sorted(config.settings().items())
    ]


def _altered_configs(context: StepContext, request: AlterGroupConfigs) -> dict[str, SettingValue]:
    """Return the group's own settings after the request, sorted. A value of None removes a setting. Raise
    RequestRefused if the request names an unknown setting or has an invalid value.
    """
    configs = dict(context.configs)
    for name, requested_value in sorted(request.configs.items()):
        if name not in _SETTING_BY_NAME and name not in _STORED_ONLY_BY_NAME:
            raise RequestRefused(
                context.cite("CF24"),
                ErrorCode.INVALID_CONFIG,
                f"Unknown group config name: {name}; known are: {', '.join(GROUP_CONFIG_NAMES)}",
            )
        if requested_value is None:
            configs.pop(name, None)
            continue
        row, parse = _row_and_parser(context.config, name)
        try:
            configs[name] = parse(name, requested_value)
        except ConfigError as error:
            raise RequestRefused(context.cite(row), ErrorCode.INVALID_CONFIG, str(error)) from error
    _check_for_conflict(context, configs)
    return dict(sorted(configs.items()))


def _row_and_parser(config: CoordinatorConfig, name: str) -> tuple[str, ReadSetting]:
    """Return the row that refuses an invalid value of this setting, and the function that parses a value."""
    if name in _STORED_ONLY_BY_NAME:
        return "CF26", _STORED_ONLY_BY_NAME[name].read
    setting = _SETTING_BY_NAME[name]
    bounds = setting.bounds(config)
    return setting.row, partial(whole_number, at_least=bounds.at_least, at_most=bounds.at_most)


def _check_for_conflict(context: StepContext, configs: Mapping[str, SettingValue]) -> None:
    """Raise RequestRefused if a group's own settings `configs` contradict each other."""
    for protocol in PROTOCOLS:
        values = values_in_force(protocol.settings, configs, context.config)
        if (conflict := protocol.conflict_of(values)) is not None:
            row, message = conflict
            raise RequestRefused(context.cite(row), ErrorCode.INVALID_CONFIG, message)


# The entry of Kafka's side: `step` applies one event to one group.


KafkaEvent = (
    Received[AnyRequest]
    | Failed[AnyRequest]
    | DeadlineReached
    | Outage
    | Quarantine[DeadlineReached | Outage]
)

# The texts of the errors by which `refuse` answers any request.
_ERROR_MESSAGES = {
    ErrorCode.INVALID_GROUP_ID: "The group id is invalid.",
    ErrorCode.UNKNOWN_SERVER_ERROR: "The coordinator failed at this request, and nothing has changed.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The group is quarantined after a failure of the coordinator.",
}


RENEWALS = {
    (protocol.group_class, request): renewal
    for protocol in PROTOCOLS
    for request, renewal in protocol.renewals.items()
}
"""The faster functions of all protocols, by the type of the group and of the request."""


def step(
    stored: KafkaGroup | ConfigsOnly | None,
    group_id: str,
    event: KafkaEvent,
    now_ms: int,
    config: CoordinatorConfig,
) -> Effects:
    """Apply one event to a group at the time `now_ms`, which is never before the group's clock. Return the
    effects.

    `stored` is the group, or the settings of a group that does not exist, or None. It is changed in place,
    and the effects hold the object to store after the step. No client request raises: errors are answers.
    The caller fires deadlines in time order (`state.timeline`).
    """
    configs_only = stored if isinstance(stored, ConfigsOnly) else None
    group = None if isinstance(stored, ConfigsOnly) else stored
    context = StepContext(group, group_id, cause_of(event), now_ms, config, configs_only=configs_only)
    before: Before = ("Empty", False)
    if group is not None:
        assert now_ms >= group.clock_ms, "a group's clock never runs backwards"
        protocol = _PROTOCOL_OF[type(group)]
        before = protocol.before(group)
        context.next_from_state, _ = before
        # A quarantined group fires no deadlines, so its deadlines move along with its clock.
        if group.quarantined is not None:
            protocol.shift_deadlines(context, group, now_ms - group.clock_ms)
    if stored is not None:
        stored.clock_ms = now_ms
    match event:
        case Received():
            _handle_request(context, event)
        case DeadlineReached():
            _deadline_reached(context, event)
        case Outage() if context.has_group:
            _take_over(context, event)
        case Failed():
            refuse(context, event, context.cite("F1"), ErrorCode.UNKNOWN_SERVER_ERROR)
        case Quarantine() if context.has_group:
            _quarantine(context, event)
    group = context.group_or_none
    if group is not None:
        _PROTOCOL_OF[type(group)].record_outcome(context, group, before)
        arm_retention(context, group)
    return context.effects()


def _handle_request(context: StepContext, event: Received[AnyRequest]) -> None:
    """Pass the request to its handler. Refuse it if its group id is empty or its group is quarantined."""
    request = event.request
    request_type = type(request)
    if not isinstance(request, UNANSWERED):
        context.principal = request.principal
    if not request.group_id and request_type not in _ACCEPT_EMPTY_GROUP_ID:
        return refuse(context, event, context.cite("P1"), ErrorCode.INVALID_GROUP_ID)
    group = context.group_or_none
    if group is not None:
        if event.late_by_ms:
            reason = "a request follows a fired deadline in the log; it is applied at the group's clock"
            context.record(context.cite("F3"), EntryType.APPLIED_LATE, reason, late_by_ms=event.late_by_ms)
        if group.quarantined is not None and request_type is not ReleaseGroup:
            return refuse(context, event, context.cite("F2"), ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if isinstance(request, UNANSWERED):
        return _handle_unanswered(context, request)
    return HANDLERS[type(group)][request_type](context, request, _reply_to(request, event.request_id))


def _reply_to(request: AnyAnsweredRequest, request_id: str) -> ReplyTo:
    return ReplyTo(request.reply_partition, request.correlation_id, request_id)


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
    """Handle the end of an outage. The deadlines of a quarantined group do not change: they are stopped
    anyway.
    """
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
    response = request.response_type
    if "error_message" in response.__struct_fields__:
        fields["error_message"] = _ERROR_MESSAGES[error]
    context.reply(_reply_to(request, event.request_id), response, rule, error, **fields)


def _quarantine(context: StepContext, event: Quarantine[DeadlineReached | Outage]) -> None:
    """Row F2: stop the deadlines of the group, because the handling of one raised an exception."""
    row = context.cite("F2")
    context.group.quarantined = event.error
    context.record(row, EntryType.QUARANTINED, f"{event.deadline} raised {event.error}")
    protocol_of(context.group).answer_parked(context, context.group, row)


def release(context: StepContext, _: ReleaseGroup, to: ReplyTo) -> None:
    """End the group's quarantine. No deadline is overdue, because `step` moves them with the group's clock
    during a quarantine.
    """
    row = context.cite("F4")
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
_HANDLERS_OF_ALL_GROUPS: dict[type, Handler] = {
    TransactionMarker: transaction_marker,
    ReleaseGroup: release,
    OversizedRequest: refuse_oversized,
    DescribeGroupConfigs: describe_configs,
    AlterGroupConfigs: alter_configs,
}
HANDLERS = {
    group_class: {**_HANDLERS_OF_ALL_GROUPS, **own_handlers}
    for group_class, own_handlers in handlers().items()
}
"""All handlers by the type of the group (NoneType without a group), and then by the type of the request."""
_ACCEPT_EMPTY_GROUP_ID = {request for protocol in PROTOCOLS for request in protocol.checks_group_id}
"""Requests whose handlers check the group id themselves."""
