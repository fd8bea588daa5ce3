"""The settings of groups: DescribeConfigs (key 32), AlterConfigs (33), IncrementalAlterConfigs (44) and
ListConfigResources (74) for the resource type GROUP.

Groups belong to the coordinator, and so do their settings (rows CF19 to CF26). A request's other resources
pass to the broker, whose response is joined with the coordinator's. Errors and their texts are those of
ConfigHelper, ConfigAdminManager and ControllerConfigurationValidator of Kafka.

The settings of share groups have two parts. Partition leaders read most of them, so these
always belong to the brokers. If this coordinator is in charge of the share groups, the settings that it reads
itself belong to it. Changes of these pass to the brokers, too, which check them by their own bounds. So the
settings remain if the brokers' coordinators take over the groups.
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
from state.config import STORED_ONLY_SETTINGS, CoordinatorConfig
from state.kafka.protocols import GROUP_CONFIG_NAMES, bounds_of
from state.kafka.share.heartbeat import SETTINGS

_SHARE_PREFIXES = "share.", "errors.deadletterqueue."
_BROKERS_SHARE_PREFIX = "group.share."
_READ_BY_COORDINATOR = frozenset(setting.name for setting in SETTINGS.settings)  # if it is in charge (SN14)
_COORDINATOR_SETTINGS = frozenset(
    name for name in CoordinatorConfig().settings() if name.startswith(_BROKERS_SHARE_PREFIX)
)


@dataclass(frozen=True, slots=True)
class ResourceParts:
    """The parts of a resource GROUP: the coordinator's, and the brokers'.

    With `brokers_first` the coordinator only checks its part until the brokers have accepted theirs.
    """

    coordinator: Any | None  # None if the resource has no settings of the coordinator
    brokers: Any | None = None  # None if it has no settings of the brokers
    brokers_first: bool = False


def belongs_to_brokers(coordinators: Coordinators, name: str) -> bool:
    """Return True if this group setting belongs to the brokers."""
    is_ours = coordinators is Coordinators.OURS and name in _READ_BY_COORDINATOR
    return coordinators is not Coordinators.OFF and name.startswith(_SHARE_PREFIXES) and not is_ours


def belongs_to_coordinator(coordinators: Coordinators, name: str) -> bool:
    """Return True if this broker setting, which starts with `group.share.`, belongs to the coordinator."""
    return coordinators is Coordinators.OURS and name in _COORDINATOR_SETTINGS


def split_changes(coordinators: Coordinators, resource: Any, *, replaces_all: bool) -> ResourceParts:
    """Split changes of a group's settings.

    With `replaces_all` the changes remove all settings that they do not name. So both the coordinator and the
    brokers get a part, even an empty one, if this coordinator is in charge of share groups.
    """
    brokers_part = copy.copy(resource)
    brokers_part.configs = [config for config in resource.configs if config.name.startswith(_SHARE_PREFIXES)]
    is_ours = coordinators is Coordinators.OURS
    needs_both = is_ours and replaces_all
    if coordinators is Coordinators.OFF or not (brokers_part.configs or needs_both):
        return ResourceParts(resource)
    # A setting that the coordinator reads itself is in both parts (see the module's docstring).
    resource.configs = [c for c in resource.configs if not belongs_to_brokers(coordinators, c.name)]
    return ResourceParts(
        resource if resource.configs or needs_both else None, brokers_part, brokers_first=is_ours
    )


def split_keys(coordinators: Coordinators, resource: Any) -> ResourceParts:
    """Split the requested settings of a group. If no setting is named, all are requested.

    The coordinator's part is the whole resource: `_add_own_settings` leaves out the brokers' settings.
    """
    brokers_part = copy.copy(resource)
    if resource.configuration_keys:
        brokers_part.configuration_keys = [
            key for key in resource.configuration_keys if belongs_to_brokers(coordinators, key)
        ]
    has_brokers = coordinators is not Coordinators.OFF and (
        brokers_part.configuration_keys or not resource.configuration_keys
    )
    return ResourceParts(resource, brokers_part if has_brokers else None)


_GROUP = 32  # ConfigResource.Type.GROUP
_STORED_ONLY_TYPES: Mapping[str, int] = {
    setting.name: setting.config_type for setting in STORED_ONLY_SETTINGS
}
# DescribeConfigsResponse.ConfigSource
_STATIC_BROKER_CONFIG, _DEFAULT_CONFIG, _GROUP_CONFIG = 4, 5, 8
_KAFKAS_DEFAULTS = {name: str(bounds.value) for name, bounds in bounds_of(CoordinatorConfig()).items()} | {
    setting.name: setting.default for setting in STORED_ONLY_SETTINGS
}
_INT = 3  # DescribeConfigsResponse.ConfigType
# The broker settings that have the defaults of group settings. Those of other group settings have the name of
# the group setting with the prefix "group.".
_BROKER_SETTING_NAMES = {
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
    """The coordinator's part of a request about a group is refused."""

    def __init__(self, error_code: Codes, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


@dataclass(frozen=True, slots=True)
class _GroupsRequest:
    """A request about settings of groups."""

    request: Any
    repeated: frozenset[str]  # groups that it names more than once
    only_validated: frozenset[str] = frozenset()  # groups whose changes are only validated for now


Split = Callable[[Coordinators, Any], ResourceParts]


async def _screen(
    response_field: str, answer: Answer, split: Split, context: RequestContext, message: bytes
) -> Screened | None:
    """Answer a request about groups, or return None if it names no group.

    1. The coordinator answers its parts. It only validates changes that the brokers have to accept first.
    2. The brokers get their parts of the groups without an error, and the resources that are not groups.
    3. The coordinator stores the validated changes that the brokers have accepted (`_store`).
    4. A group with parts of both gets the brokers' entry, completed by the coordinator's answer.
    """
    request = await offload.decode_passed(context.header, message)
    groups = [resource for resource in request.resources if resource.resource_type == _GROUP]
    if not groups:
        return None
    counts = Counter(resource.resource_name for resource in groups)
    parsed = _GroupsRequest(request, frozenset(name for name, count in counts.items() if count > 1))
    coordinators = context.services.share_groups.coordinators
    parts = {
        group.resource_name: (
            ResourceParts(group) if group.resource_name in parsed.repeated else split(coordinators, group)
        )
        for group in groups
    }
    # A group that the request names twice is answered twice.
    own_parts = [part for group in groups if (part := parts[group.resource_name].coordinator) is not None]
    to_validate = [part for part in own_parts if parts[part.resource_name].brokers_first]
    validated_groups = frozenset(part.resource_name for part in to_validate)
    async with context.fan_out.acquired(context):
        answer_group = partial(_result, answer, context, replace(parsed, only_validated=validated_groups))
        results = await map_items(context, answer_group, own_parts, _too_many_groups)

    failed = {result["resource_name"] for result in results if result["error_code"]}
    at_brokers = {name: part.brokers for name, part in parts.items() if part.brokers and name not in failed}
    other_resources = [resource for resource in request.resources if resource.resource_type != _GROUP]
    request.resources = [*other_resources, *at_brokers.values()]
    remaining = await offload.with_body(context.header, message, request) if request.resources else None

    final_results = [result for result in results if result["resource_name"] not in at_brokers]
    results_to_add = {r["resource_name"]: r for r in results if r["resource_name"] in at_brokers}
    change: Change = partial(_add_own_settings, response_field, coordinators, results_to_add)
    if to_validate and not request.validate_only:
        change = chain([partial(_store, answer, context, parsed, to_validate), change])
    return Screened(remaining, {response_field: final_results}, change)


async def _add_own_settings(
    response_field: str, coordinators: Coordinators, answers: Mapping[str, Fields], response: Any
) -> None:
    """Add the settings in the coordinator's answers, by group, to a broker's response."""
    for resource in getattr(response, response_field):
        answer = answers.get(resource.resource_name) if resource.resource_type == _GROUP else None
        # Responses to changes have no settings.
        if answer is not None and "configs" in answer and not resource.error_code:
            resource.configs = [c for c in resource.configs if belongs_to_brokers(coordinators, c.name)]
            own = [c for c in answer["configs"] if not belongs_to_brokers(coordinators, c["name"])]
            codec.extend(resource, "configs", own)


async def _store(
    answer: Answer, context: RequestContext, parsed: "_GroupsRequest", validated: Sequence[Any], response: Any
) -> None:
    """Let the coordinator store its parts of the changes that the brokers have accepted, or add its error."""
    entries = {entry.resource_name: entry for entry in response.responses if entry.resource_type == _GROUP}
    accepted = [
        part
        for part in validated
        if part.resource_name in entries and not entries[part.resource_name].error_code
    ]
    store = partial(_result, answer, context, parsed)
    async with context.fan_out.acquired(context):
        results = await map_items(context, store, accepted, _too_many_groups)
    for result in results:
        if result["error_code"]:
            entry = entries[result["resource_name"]]
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


def _check_group(context: RequestContext, operation: Operation, group_id: str, empty_id_message: str) -> None:
    """Raise _Refused if the client lacks the operation on the group, or if the group's id is empty."""
    if not context.may(operation, ResourceType.GROUP, group_id):
        raise _Refused(GatewayError.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
    if not group_id:
        raise _Refused(ErrorCode.INVALID_REQUEST, empty_id_message)


async def _describe(context: RequestContext, parsed: _GroupsRequest, resource: Any) -> Fields:
    group_id = resource.resource_name
    _check_group(context, Operation.DESCRIBE_CONFIGS, group_id, "Group name must not be empty")
    answer = await context.send(
        DescribeGroupConfigs(**context.coordinator_header(group_id)), ANSWER_TIMEOUT_MS
    )
    names = resource.configuration_keys
    requested = [config for config in answer.configs if not names or config.name in names]
    return {
        "error_code": answer.error_code,
        "configs": [_config_fields(parsed.request, config) for config in requested],
    }


def _config_fields(request: Any, config: GroupConfigValue) -> Fields:
    synonyms = _synonyms(config)
    has_effect = config.name not in _STORED_ONLY_TYPES or not config.name.startswith(_SHARE_PREFIXES)
    documentation = DOCUMENTATION[config.name] + ("" if has_effect else f" {_NO_EFFECT}")
    return {
        "name": config.name,
        "value": config.value,
        "read_only": False,
        "config_source": synonyms[0]["source"],
        "is_sensitive": False,
        "synonyms": synonyms if request.include_synonyms else [],
        "config_type": _STORED_ONLY_TYPES.get(config.name, _INT),
        "documentation": documentation if request.include_documentation else None,
    }


def _synonyms(config: GroupConfigValue) -> list[Fields]:
    """Return the values of a setting with their sources, first the value in force."""
    # A group without its own value has that of this setting of brokers.
    broker_setting = _BROKER_SETTING_NAMES.get(config.name, f"group.{config.name}")
    default = _KAFKAS_DEFAULTS[config.name]
    # To clients the coordinator's own settings look like those of a broker's file.
    coordinator_value = config.value if config.is_default else config.without_own
    synonyms: list[Fields] = []
    if not config.is_default:
        synonyms.append({"name": config.name, "value": config.value, "source": _GROUP_CONFIG})
    if coordinator_value not in (None, default):
        static = {"name": broker_setting, "value": coordinator_value, "source": _STATIC_BROKER_CONFIG}
        synonyms.append(static)
    synonyms.append({"name": broker_setting, "value": default, "source": _DEFAULT_CONFIG})
    return synonyms


async def _alter(context: RequestContext, parsed: _GroupsRequest, resource: Any) -> Fields:
    """Replace all settings of the group (AlterConfigs). A value of None removes a setting."""
    _check_changes(context, parsed, resource)
    configs = {config.name: config.value for config in resource.configs}
    return await _send_changes(context, parsed, resource, dict.fromkeys(GROUP_CONFIG_NAMES) | configs)


async def _alter_incrementally(context: RequestContext, parsed: _GroupsRequest, resource: Any) -> Fields:
    """Set or remove single settings of the group (IncrementalAlterConfigs)."""
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
    """Raise _Refused if the client may not make these changes, or if they are malformed."""
    group_id = resource.resource_name
    _check_group(context, Operation.ALTER_CONFIGS, group_id, "Default group resources are not allowed.")
    if group_id in parsed.repeated:
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
            validate_only=parsed.request.validate_only or resource.resource_name in parsed.only_validated,
        ),
        ANSWER_TIMEOUT_MS,
    )
    return {"error_code": answer.error_code, "error_message": answer.error_message}


screen_descriptions: Screen = partial(_screen, "results", _describe, split_keys)
screen_alterations: Screen = partial(_screen, "responses", _alter, partial(split_changes, replaces_all=True))
screen_incremental_alterations: Screen = partial(
    _screen, "responses", _alter_incrementally, partial(split_changes, replaces_all=False)
)


async def screen_list(context: RequestContext, message: bytes) -> Screened | None:
    """Add the coordinator's groups that have settings to the response to a ListConfigResources. If share
    groups are off, the broker's own groups are removed.
    """
    request = await offload.decode_passed(context.header, message)
    includes_groups = not request.resource_types or _GROUP in request.resource_types
    if context.version < _FIRST_LIST_WITH_TYPES or not includes_groups:
        return None
    configured = await context.services.groups.configured_group_ids()

    async def answer(response: Any) -> Fields:
        throttled = {"throttle_time_ms": response.throttle_time_ms}
        if response.error_code:
            return {**throttled, "error_code": response.error_code}
        if configured is None:
            return {**throttled, "error_code": GatewayError.COORDINATOR_LOAD_IN_PROGRESS}
        encoder, slices = codec.entries_encoder(context.header, "config_resources"), context.slices()
        are_off = context.services.share_groups.are_off  # in this case a broker has no groups for clients
        resources = [(one.resource_name, one.resource_type) for one in response.config_resources]
        shown = [(name, kind) for name, kind in resources if not are_off or kind != _GROUP]
        groups_at_broker = {name for name, kind in shown if kind == _GROUP}
        for batch in batches(shown):
            encoder.add({"resource_name": name, "resource_type": kind} for name, kind in batch)
            await slices.pause()
        for ids in batches(configured):
            own_ids = (id_ for id_ in ids if id_ not in groups_at_broker)
            encoder.add({"resource_name": id_, "resource_type": _GROUP} for id_ in own_ids)
            await slices.pause()
        return {**throttled, "error_code": ErrorCode.NONE, "config_resources": encoder.encoded()}

    return Screened(message, refused={}, answer=answer)
