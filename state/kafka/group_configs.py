"""The settings of a group by request: DescribeConfigs and IncrementalAlterConfigs of the resource GROUP.
Rows CF19 to CF26.

Source: GroupConfig.validate, GroupConfigManager.java.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import AlterGroupConfigs, DescribeGroupConfigs, ReplyTo
from kafka_why.contract.kafka.responses import (
    AlterGroupConfigsResponse,
    DescribeGroupConfigsResponse,
    GroupConfigValue,
)
from kafka_why.contract.kafka.snapshot import ConfigsView
from kafka_why.contract.messages import ErrorResponse, GroupType, SettingValue
from state.config import ConfigError, CoordinatorConfig, whole_number
from state.kafka.context import RuleId, StepContext
from state.kafka.effects import Effects, unchanged
from state.kafka.group import ConfigsOnly, DeadlineReached
from state.kafka.protocols import GROUP_CONFIG_NAMES, PROTOCOLS, SETTINGS
from state.kafka.settings import KEPT_SETTINGS, Read, values_in_force
from state.protocol import StoredKind


class ConfigsKind(StoredKind[ConfigsOnly, DeadlineReached]):
    """See `StoredKind`."""

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
    """Answer with the value of each setting that is in force, whether or not the group exists."""
    configs = _of_coordinator(context.config) if request.of_coordinator else _of_group(context)
    context.reply(reply_to, DescribeGroupConfigsResponse, context.rule("CF25"), configs=configs)


def alter_configs(context: StepContext, request: AlterGroupConfigs, reply_to: ReplyTo) -> None:
    """Set settings of the group, whether or not it exists. Nothing is set if one is refused.

    No epoch changes, because the values are read where they are used (row CF22).
    """
    try:
        configs = _altered(context, request)
    except _Refused as refused:
        context.reply(
            reply_to,
            AlterGroupConfigsResponse,
            refused.rule,
            ErrorCode.INVALID_CONFIG,
            error_message=str(refused),
        )
        return
    row = context.rule("CF22")
    if configs != context.configs and not request.validate_only:
        context.set_configs(configs)
        if context.has_group:
            shown = ", ".join(f"{name}={value}" for name, value in configs.items()) or "none"
            context.record(row, EntryType.CONFIGS_CHANGED, f"the group's own settings: {shown}")
    context.reply(reply_to, AlterGroupConfigsResponse, row)


def _of_group(context: StepContext) -> list[GroupConfigValue]:
    own = context.configs
    in_force, without_own = _values(own, context.config), _values({}, context.config)
    return [
        GroupConfigValue(name, in_force[name], name not in own, without_own[name] if name in own else None)
        for name in GROUP_CONFIG_NAMES
    ]


def _values(own: Mapping[str, SettingValue], config: CoordinatorConfig) -> dict[str, str]:
    """Return the value of each setting of a group with these of its own, as a text."""
    kept = {setting.name: own.get(setting.name, setting.default) for setting in KEPT_SETTINGS}
    return {name: str(value) for name, value in (kept | values_in_force(SETTINGS, own, config)).items()}


def _of_coordinator(config: CoordinatorConfig) -> list[GroupConfigValue]:
    defaults = CoordinatorConfig().settings()
    return [
        GroupConfigValue(name, str(value), value == defaults[name])
        for name, value in sorted(config.settings().items())
    ]


class _Refused(Exception):
    """A setting is refused. The text names it and says what is allowed."""

    def __init__(self, rule: RuleId, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def _altered(context: StepContext, request: AlterGroupConfigs) -> dict[str, SettingValue]:
    """Return the group's own settings after the request, sorted. Raises _Refused."""
    configs = dict(context.configs)
    for name, given in sorted(request.configs.items()):
        if name not in _BY_NAME and name not in _KEPT_BY_NAME:
            known = ", ".join(GROUP_CONFIG_NAMES)
            raise _Refused(context.rule("CF24"), f"Unknown group config name: {name}; known are: {known}")
        if given is None:
            configs.pop(name, None)
            continue
        row, read = _reader(context.config, name)
        try:
            configs[name] = read(name, given)
        except ConfigError as error:
            raise _Refused(context.rule(row), str(error)) from error
    _check_together(context, configs)
    return dict(sorted(configs.items()))


def _reader(config: CoordinatorConfig, name: str) -> tuple[str, Read]:
    """What reads a value of this setting, and the row that refuses one."""
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
            raise _Refused(context.rule(row), message)
