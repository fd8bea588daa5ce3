"""The settings of a group by request: DescribeConfigs and IncrementalAlterConfigs of the resource GROUP.
Rows CF19 to CF25.

Source: GroupConfig.validate, GroupConfigManager.java.
"""

from state.config import ConfigError, CoordinatorConfig, whole_number
from state.errors import ErrorCode
from state.kafka.context import RuleId, StepContext
from state.kafka.group_settings import (
    ASSIGNMENT_INTERVAL,
    GROUP_CONFIG_NAMES,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    bounds_of,
    values_in_force,
)
from state.kafka.history import EntryType
from state.kafka.requests import AlterGroupConfigs, DescribeGroupConfigs, ReplyTo
from state.kafka.responses import AlterGroupConfigsResponse, DescribeGroupConfigsResponse, GroupConfigValue

_ROWS = {SESSION_TIMEOUT: "CF19", HEARTBEAT_INTERVAL: "CF20", ASSIGNMENT_INTERVAL: "CF21"}


def describe_configs(context: StepContext, _: DescribeGroupConfigs, reply_to: ReplyTo) -> None:
    """Answer with the value of each setting that is in force, whether or not the group exists."""
    values = values_in_force(context.configs, context.config)
    configs = [GroupConfigValue(n, str(values[n]), n not in context.configs) for n in GROUP_CONFIG_NAMES]
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


class _Refused(Exception):
    """A setting is refused. The text names it and says what is allowed."""

    def __init__(self, rule: RuleId, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def _altered(context: StepContext, request: AlterGroupConfigs) -> dict[str, int]:
    """Return the group's own settings after the request, sorted. Raises _Refused."""
    configs = dict(context.configs)
    bounds = bounds_of(context.config)
    for name, given in sorted(request.configs.items()):
        if name not in bounds:
            known = ", ".join(GROUP_CONFIG_NAMES)
            raise _Refused(context.rule("CF24"), f"Unknown group config name: {name}; known are: {known}")
        if given is None:
            configs.pop(name, None)
            continue
        try:
            configs[name] = whole_number(name, given, bounds[name].at_least, bounds[name].at_most)
        except ConfigError as error:
            raise _Refused(context.rule(_ROWS[name]), str(error)) from error
    _check_together(context, configs, context.config)
    return dict(sorted(configs.items()))


def _check_together(context: StepContext, configs: dict[str, int], config: CoordinatorConfig) -> None:
    values = values_in_force(configs, config)
    if values[SESSION_TIMEOUT] <= values[HEARTBEAT_INTERVAL]:
        raise _Refused(
            context.rule("CF19"),
            f"{SESSION_TIMEOUT} ({values[SESSION_TIMEOUT]}) must be above "
            f"{HEARTBEAT_INTERVAL} ({values[HEARTBEAT_INTERVAL]})",
        )
