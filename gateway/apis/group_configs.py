"""The settings of groups: DescribeConfigs (key 32), AlterConfigs (33), IncrementalAlterConfigs (44) and
ListConfigResources (74) for the resource type GROUP.

Groups belong to the coordinator, and so do their settings (rows CF19 to CF26). A request's other resources
pass to the broker, whose response is joined with the coordinator's. Errors and their texts are those of
ConfigHelper, ConfigAdminManager and ControllerConfigurationValidator of Kafka.

The settings of share groups (rows SN1 to SN24) have two parts. Partition leaders read most of them, so these
always belong to the brokers. If this coordinator has the share groups, the settings that it reads itself
belong to it. Changes of these pass to the brokers, too, which check them by their own bounds. So the settings
remain if the brokers' coordinators take over the groups.
"""

import copy
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.apis.api import Change, Screen, Screened, chain
from gateway.apis.batch import map_items
from gateway.apis.context import RequestContext
from gateway.apis.group_setting_docs import DOCUMENTATION
from gateway.apis.slices import batches
from gateway.apis.topics import Codes
from gateway.authorization.acls import Operation, ResourceType
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.upstream.share_groups import Coordinators
from gateway.wire import codec, offload
from gateway.wire.codec import Fields, GatewayError
from kafka_why.contract.kafka.requests import AlterGroupConfigs, DescribeGroupConfigs
from kafka_why.contract.kafka.responses import GroupConfigValue
from kafka_why.contract.messages import ErrorCode
from state.config import KEPT_SETTINGS, CoordinatorConfig
from state.kafka.protocols import GROUP_CONFIG_NAMES, bounds_of
from state.kafka.share.heartbeat import SETTINGS

_SHARE_PREFIXES = "share.", "errors.deadletterqueue."
_BROKERS_SHARE_PREFIX = "group.share."
_READ_BY_COORDINATOR = frozenset(setting.name for setting in SETTINGS.settings)  # row SN14
_COORDINATORS = frozenset(
    name for name in CoordinatorConfig().settings() if name.startswith(_BROKERS_SHARE_PREFIX)
)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a resource GROUP: the coordinator's own part, and the brokers'.

    With `brokers_first` the coordinator only checks its part until the brokers have accepted theirs.
    """

    own: Any | None
    brokers: Any | None = None
    brokers_first: bool = False


def belongs_to_brokers(coordinators: Coordinators, name: str) -> bool:
    """Return True if this group setting belongs to the brokers."""
    is_ours = coordinators is Coordinators.OURS and name in _READ_BY_COORDINATOR
    return coordinators is not Coordinators.OFF and name.startswith(_SHARE_PREFIXES) and not is_ours


def belongs_to_coordinator(coordinators: Coordinators, name: str) -> bool:
    """Return True if this broker setting, which starts with `group.share.`, belongs to the coordinator (rows
    SN1 to SN5).
    """
    return coordinators is Coordinators.OURS and name in _COORDINATORS


def split_changes(coordinators: Coordinators, resource: Any, *, is_whole: bool) -> Parts:
    """Split changes of a group's settings. With `is_whole` the changes remove all settings that they do not
    name.
    """
    brokers = copy.copy(resource)
    brokers.configs = [config for config in resource.configs if config.name.startswith(_SHARE_PREFIXES)]
    is_ours = coordinators is Coordinators.OURS
    has_both = is_ours and is_whole
    if coordinators is Coordinators.OFF or not (brokers.configs or has_both):
        return Parts(resource)
    resource.configs = [c for c in resource.configs if not belongs_to_brokers(coordinators, c.name)]
    return Parts(resource if resource.configs or has_both else None, brokers, brokers_first=is_ours)


def split_keys(coordinators: Coordinators, resource: Any) -> Parts:
    """Split the requested settings of a group. If no setting is named, all are requested."""
    brokers = copy.copy(resource)
    if resource.configuration_keys:
        keys = [key for key in resource.configuration_keys if belongs_to_brokers(coordinators, key)]
        brokers.configuration_keys = keys
    has_brokers = coordinators is not Coordinators.OFF and (
        brokers.configuration_keys or not resource.configuration_keys
    )
    return Parts(resource, brokers if has_brokers else None)


_GROUP = 32  # ConfigResource.Type.GROUP
_KEPT_TYPES: Mapping[str, int] = {setting.name: setting.config_type for setting in KEPT_SETTINGS}
# DescribeConfigsResponse.ConfigSource
_STATIC_BROKER_CONFIG, _DEFAULT_CONFIG, _GROUP_CONFIG = 4, 5, 8
_KAFKAS_DEFAULTS = {name: str(bounds.value) for name, bounds in bounds_of(CoordinatorConfig()).items()} | {
    setting.name: setting.default for setting in KEPT_SETTINGS
}
_INT = 3  # DescribeConfigsResponse.ConfigType
# The broker settings that are defaults of group settings, unless the broker setting is "group." and the name
# of the group setting.
_BROKERS_NAMES = {
    "streams.assignor.name": "group.streams.assignors",
    **{
        name: name
        for name in (
            "errors.deadletterqueue.copy.record.enable",
            "errors.deadletterqueue.topic.name",
            "share.auto.offset.reset",
            "share.isolation.level",
            "share.renew.acknowledge.enable",
        )
    },
}
_NO_EFFECT = "It is kept, and has no effect: this coordinator has no share groups."
_ONLY_BROKERS = "The brokers have these settings, the coordinator does not"
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)  # AlterConfigOp.OpType
_LIST_OPERATIONS = {_APPEND: "APPEND", _SUBTRACT: "SUBTRACT"}
_FIRST_LIST_WITH_TYPES = 1

Answer = Callable[[RequestContext, "_GroupsRequest", Any], Awaitable[Fields]]


class _Refused(Exception):
    def __init__(self, error_code: Codes, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass(frozen=True, slots=True)
class _GroupsRequest:
    request: Any
    doubled: frozenset[str]  # groups that it names more than once
    checked: frozenset[str] = frozenset()  # their changes are only checked, because the brokers come first


Split = Callable[[Coordinators, Any], Parts]


async def _screen(
    response_field: str, answer: Answer, split: Split, context: RequestContext, message: bytes
) -> Screened | None:
    """Let the coordinator answer for the groups of a request. Return None if the request names none."""
    request = await offload.decode_passed(context.header, message)
    groups = [resource for resource in request.resources if resource.resource_type == _GROUP]
    if not groups:
        return None
    names = Counter(resource.resource_name for resource in groups)
    parsed = _GroupsRequest(request, frozenset(name for name, number in names.items() if number > 1))
    coordinators = context.services.share_groups.coordinators
    parts = {
        group.resource_name: Parts(group)
        if group.resource_name in parsed.doubled
        else split(coordinators, group)
        for group in groups
    }
    own = [part for group in groups if (part := parts[group.resource_name].own) is not None]
    checked = [group for group in own if parts[group.resource_name].brokers_first]
    names_checked = frozenset(group.resource_name for group in checked)
    async with context.fan_out.acquired(context):
        first = partial(_result, answer, context, replace(parsed, checked=names_checked))
        answers = await map_items(context, first, own, _too_many_groups)
    failed = {one["resource_name"] for one in answers if one["error_code"]}
    brokers = {name: part.brokers for name, part in parts.items() if part.brokers and name not in failed}
    others = [resource for resource in request.resources if resource.resource_type != _GROUP]
    request.resources = [*others, *brokers.values()]
    remaining = await offload.with_body(context.header, message, request) if request.resources else None
    joined = {one["resource_name"]: one for one in answers if one["resource_name"] in brokers}
    alone = [one for one in answers if one["resource_name"] not in brokers]
    change: Change = partial(_add_own_settings, response_field, coordinators, joined)
    if checked and not request.validate_only:
        change = chain([partial(_store, answer, context, parsed, checked), change])
    return Screened(remaining, {response_field: alone}, change)


async def _add_own_settings(
    response_field: str, coordinators: Coordinators, own: Mapping[str, Fields], response: Any
) -> None:
    for resource in getattr(response, response_field):
        answer = own.get(resource.resource_name) if resource.resource_type == _GROUP else None
        # Responses to changes have no settings.
        if answer is not None and "configs" in answer and not resource.error_code:
            resource.configs = [c for c in resource.configs if belongs_to_brokers(coordinators, c.name)]
            others = [c for c in answer["configs"] if not belongs_to_brokers(coordinators, c["name"])]
            codec.extend(resource, "configs", others)


async def _store(
    answer: Answer, context: RequestContext, parsed: "_GroupsRequest", checked: Sequence[Any], response: Any
) -> None:
    """Let the coordinator store its part of the changes that the brokers have accepted."""
    answered = {one.resource_name: one for one in response.responses if one.resource_type == _GROUP}
    accepted = [
        own for own in checked if own.resource_name in answered and not answered[own.resource_name].error_code
    ]
    store = partial(_result, answer, context, parsed)
    async with context.fan_out.acquired(context):
        results = await map_items(context, store, accepted, _too_many_groups)
    for result in results:
        if result["error_code"]:
            entry = answered[result["resource_name"]]
            entry.error_code = result["error_code"]
            entry.error_message = f"{_ONLY_BROKERS}: {result['error_message']}"


async def _result(answer: Answer, context: RequestContext, parsed: _GroupsRequest, resource: Any) -> Fields:
    try:
        return {**_key(resource), **await answer(context, parsed, resource)}
    except _Refused as refused:
        return {**_key(resource), "error_code": refused.error_code, "error_message": str(refused)}


def _key(resource: Any) -> Fields:
    return {"resource_type": resource.resource_type, "resource_name": resource.resource_name}


def _too_many_groups(resource: Any) -> Fields:
    message = "The request names too many groups."
    return {**_key(resource), "error_code": ErrorCode.INVALID_REQUEST, "error_message": message}


def _check_group(context: RequestContext, operation: Operation, group_id: str, unnamed: str) -> None:
    if not context.may(operation, ResourceType.GROUP, group_id):
        raise _Refused(GatewayError.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
    if not group_id:
        raise _Refused(ErrorCode.INVALID_REQUEST, unnamed)


async def _describe(context: RequestContext, parsed: _GroupsRequest, resource: Any) -> Fields:
    group_id = resource.resource_name
    _check_group(context, Operation.DESCRIBE_CONFIGS, group_id, "Group name must not be empty")
    answer = await context.send(
        DescribeGroupConfigs(**context.coordinator_header(group_id)), ANSWER_TIMEOUT_MS
    )
    wanted = resource.configuration_keys
    shown = [config for config in answer.configs if not wanted or config.name in wanted]
    return {
        "error_code": answer.error_code,
        "configs": [_config_fields(parsed.request, config) for config in shown],
    }


def _config_fields(request: Any, config: GroupConfigValue) -> Fields:
    synonyms = _synonyms(config)
    has_effect = config.name not in _KEPT_TYPES or not config.name.startswith(_SHARE_PREFIXES)
    documentation = DOCUMENTATION[config.name] + ("" if has_effect else f" {_NO_EFFECT}")
    return {
        "name": config.name,
        "value": config.value,
        "read_only": False,
        "config_source": synonyms[0]["source"],
        "is_sensitive": False,
        "synonyms": synonyms if request.include_synonyms else [],
        "config_type": _KEPT_TYPES.get(config.name, _INT),
        "documentation": documentation if request.include_documentation else None,
    }


def _synonyms(config: GroupConfigValue) -> list[Fields]:
    """Return the values of a setting with their sources, first the value in force."""
    broker, default = _BROKERS_NAMES.get(config.name, f"group.{config.name}"), _KAFKAS_DEFAULTS[config.name]
    # To clients the coordinator's own settings look like those of a broker's file.
    of_coordinator = config.value if config.is_default else config.without_own
    synonyms: list[Fields] = [{"name": broker, "value": default, "source": _DEFAULT_CONFIG}]
    if of_coordinator not in (None, default):
        synonyms.insert(0, {"name": broker, "value": of_coordinator, "source": _STATIC_BROKER_CONFIG})
    if not config.is_default:
        synonyms.insert(0, {"name": config.name, "value": config.value, "source": _GROUP_CONFIG})
    return synonyms


async def _alter(context: RequestContext, parsed: _GroupsRequest, resource: Any) -> Fields:
    """Replace all settings of the group (AlterConfigs)."""
    _check_changes(context, parsed, resource)
    configs = {config.name: config.value for config in resource.configs}
    return await _send_changes(context, parsed, resource, dict.fromkeys(GROUP_CONFIG_NAMES) | configs)


async def _alter_incrementally(context: RequestContext, parsed: _GroupsRequest, resource: Any) -> Fields:
    _check_changes(context, parsed, resource)
    for config in resource.configs:
        if config.config_operation in _LIST_OPERATIONS:
            name = _LIST_OPERATIONS[config.config_operation]
            message = f"Can't {name} to key {config.name} because its type is not LIST."
            raise _Refused(ErrorCode.INVALID_CONFIG, message)
        if config.config_operation not in (_SET, _DELETE):
            message = f"Unknown operation type {config.config_operation}"
            raise _Refused(ErrorCode.INVALID_REQUEST, message)
    configs = {c.name: None if c.config_operation == _DELETE else c.value for c in resource.configs}
    return await _send_changes(context, parsed, resource, configs)


def _check_changes(context: RequestContext, parsed: _GroupsRequest, resource: Any) -> None:
    group_id = resource.resource_name
    _check_group(context, Operation.ALTER_CONFIGS, group_id, "Default group resources are not allowed.")
    if group_id in parsed.doubled:
        raise _Refused(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    names = Counter(config.name for config in resource.configs)
    if any(number > 1 for number in names.values()):
        raise _Refused(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    without_value = [
        config.name
        for config in resource.configs
        if config.value is None and getattr(config, "config_operation", _SET) != _DELETE
    ]
    if without_value:
        names_text = ",".join(without_value)
        raise _Refused(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {names_text}")


async def _send_changes(
    context: RequestContext, parsed: _GroupsRequest, resource: Any, configs: Mapping[str, str | None]
) -> Fields:
    answer = await context.send(
        AlterGroupConfigs(
            **context.coordinator_header(resource.resource_name),
            configs=dict(configs),
            validate_only=parsed.request.validate_only or resource.resource_name in parsed.checked,
        ),
        ANSWER_TIMEOUT_MS,
    )
    return {"error_code": answer.error_code, "error_message": answer.error_message}


screen_descriptions: Screen = partial(_screen, "results", _describe, split_keys)
screen_alterations: Screen = partial(_screen, "responses", _alter, partial(split_changes, is_whole=True))
screen_incremental_alterations: Screen = partial(
    _screen, "responses", _alter_incrementally, partial(split_changes, is_whole=False)
)


async def screen_list(context: RequestContext, message: bytes) -> Screened | None:
    """Add the groups that have settings to the response to a ListConfigResources. If share groups are off,
    they replace the broker's groups.
    """
    request = await offload.decode_passed(context.header, message)
    if context.version < _FIRST_LIST_WITH_TYPES or (
        request.resource_types and _GROUP not in request.resource_types
    ):
        return None
    configured = await context.services.groups.configured()

    async def answer(response: Any) -> Fields:
        throttled = {"throttle_time_ms": response.throttle_time_ms}
        if response.error_code:
            return {**throttled, "error_code": response.error_code}
        if configured is None:
            return {**throttled, "error_code": GatewayError.COORDINATOR_LOAD_IN_PROGRESS}
        encoder, slices = codec.entries_encoder(context.header, "config_resources"), context.slices()
        are_off = context.services.share_groups.are_off  # in this case a broker has no groups for clients
        named = [(one.resource_name, one.resource_type) for one in response.config_resources]
        brokers = [(name, kind) for name, kind in named if not are_off or kind != _GROUP]
        found = {name for name, kind in brokers if kind == _GROUP}
        for some in batches(brokers):
            encoder.add({"resource_name": name, "resource_type": kind} for name, kind in some)
            await slices.pause()
        for ids in batches(configured):
            encoder.add({"resource_name": id_, "resource_type": _GROUP} for id_ in ids if id_ not in found)
            await slices.pause()
        return {**throttled, "error_code": ErrorCode.NONE, "config_resources": encoder.encoded()}

    return Screened(message, {}, answer=answer)
