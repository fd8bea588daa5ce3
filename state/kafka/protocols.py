"""Kafka's protocols by the type of their groups, requests to a group id that has no group, and the requests
about the settings of a group.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    AlterGroupConfigs,
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
    TxnOffsetCommit,
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
from kafka_why.contract.messages import ErrorCode, ErrorResponse, GroupType, SettingValue
from state.config import ConfigError, CoordinatorConfig, whole_number
from state.kafka.classic.protocol import CLASSIC
from state.kafka.classic.requests import join_no_group, oversized_no_group, validate_sync_protocol
from state.kafka.classic_group import ClassicGroup
from state.kafka.commits import FIRST_VERSION_WITH_ERRORS_OF_GROUPS
from state.kafka.consumer.protocol import CONSUMER
from state.kafka.context import Effects, KafkaGroup, StepContext, deciding_rule, unchanged
from state.kafka.group import ConfigsOnly, DeadlineReached
from state.kafka.modern import RequestRefused, answer_refused
from state.kafka.offsets import answer_fetch
from state.kafka.protocol import KafkaProtocol, answer_with
from state.kafka.settings import KEPT_SETTINGS, ReadSetting, SettingBounds, values_in_force
from state.kafka.share.protocol import SHARE
from state.protocol import Handler, StoredKind

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
    """Handle a commit to a group id without a group. A commit by no member creates a group without members,
    which is a classic one. `rows` are those of a commit by a member and without one. Requests of a version
    below `knows_error_from` do not know the error of a missing group.
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


PROTOCOLS: tuple[KafkaProtocol[Any], ...] = (CLASSIC, CONSUMER, SHARE)

SETTINGS = sorted(
    (setting for protocol in PROTOCOLS for setting in protocol.settings), key=lambda setting: setting.name
)
"""The settings of groups that have an effect, by name."""
GROUP_CONFIG_NAMES = sorted([s.name for s in SETTINGS] + [s.name for s in KEPT_SETTINGS])
"""All settings that a group can have."""

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


_BY_NAME = {setting.name: setting for setting in SETTINGS}
_KEPT_BY_NAME = {setting.name: setting for setting in KEPT_SETTINGS}


def describe_configs(context: StepContext, request: DescribeGroupConfigs, reply_to: ReplyTo) -> None:
    """Answer with each setting's value in force. The group need not exist."""
    configs = _of_coordinator(context.config) if request.of_coordinator else _of_group(context)
    context.reply(reply_to, DescribeGroupConfigsResponse, context.rule("CF25"), configs=configs)


def alter_configs(context: StepContext, request: AlterGroupConfigs, reply_to: ReplyTo) -> None:
    """Set settings of the group, which need not exist. Nothing is set if one is refused. No epoch changes,
    because values are read where they are used (row CF22).
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
    """Return the text of each setting of a group whose own settings are these."""
    kept = {setting.name: own.get(setting.name, setting.default) for setting in KEPT_SETTINGS}
    return {name: str(value) for name, value in (kept | values_in_force(SETTINGS, own, config)).items()}


def _of_coordinator(config: CoordinatorConfig) -> list[GroupConfigValue]:
    defaults = CoordinatorConfig().settings()
    return [
        GroupConfigValue(name, str(value), value == defaults[name])
        for name, value in sorted(config.settings().items())
    ]


def _altered(context: StepContext, request: AlterGroupConfigs) -> dict[str, SettingValue]:
    """Return the group's own settings after the request, sorted. Raises RequestRefused."""
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
    """Return the function that parses a value of this setting, and the row that refuses an invalid one."""
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
