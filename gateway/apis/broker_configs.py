"""The group coordinator's settings among those of brokers: DescribeConfigs (key 32), AlterConfigs (33) and
IncrementalAlterConfigs (44) for the resource type BROKER.

Groups have this coordinator's settings, not those of a broker's own coordinator. No request changes them. The
settings of share groups belong to the brokers, except those that this coordinator reads itself.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from gateway.apis.api import Screened
from gateway.apis.context import RequestContext
from gateway.apis.group_configs import belongs_to_coordinator
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.wire import codec, offload
from gateway.wire.codec import Fields
from kafka_why.contract.kafka.requests import DescribeGroupConfigs
from kafka_why.contract.kafka.responses import GroupConfigValue
from kafka_why.contract.messages import ErrorCode
from state.config import CoordinatorConfig

_BROKER = 4  # ConfigResource.Type.BROKER
_STATIC_BROKER_CONFIG, _DEFAULT_CONFIG = 4, 5  # DescribeConfigsResponse.ConfigSource
_PREFIXES = "group.", "offsets.", "offset.metadata."
_DEFAULTS = {name: str(value) for name, value in CoordinatorConfig().settings().items()}
_SHARE_PREFIX = "group.share."
# The coordinator has the same settings for all groups, so the request may be about any group.
_ANY_GROUP = "settings"


def _belongs_to_coordinator(context: RequestContext, name: str) -> bool:
    """Return True if this broker setting is one of the group coordinator, here the project's own."""
    if name.startswith(_SHARE_PREFIX):
        return belongs_to_coordinator(context.services.share_groups.coordinators, name)
    return name.startswith(_PREFIXES)


async def screen_descriptions(context: RequestContext, message: bytes) -> Screened | None:
    """Put this coordinator's values into a broker's response to DescribeConfigs. Raises ProtocolError.

    Settings of the broker's own coordinator that this coordinator does not report are left out.
    """
    request = await offload.decode_passed(context.header, message)
    if all(resource.resource_type != _BROKER for resource in request.resources):
        return None
    query = DescribeGroupConfigs(**context.coordinator_header(_ANY_GROUP), of_coordinator=True)
    async with context.fan_out.acquired(context):
        answer = await context.send(query, ANSWER_TIMEOUT_MS)
    settings = {config.name: config for config in answer.configs}

    async def replace_values(response: Any) -> None:
        for resource in response.results:
            if resource.resource_type == _BROKER:
                _replace_values(context, resource, settings)

    return Screened(message, refused={}, change=replace_values)


def _replace_values(context: RequestContext, resource: Any, settings: Mapping[str, GroupConfigValue]) -> None:
    """Replace a broker's values of the coordinator's settings by those in `settings`, which are ours."""
    is_ours = partial(_belongs_to_coordinator, context)
    resource.configs = [c for c in resource.configs if not is_ours(c.name) or c.name in settings]
    for config in resource.configs:
        if not is_ours(config.name):
            continue
        setting = settings[config.name]
        config.value, config.read_only = setting.value, True
        config.config_source = _DEFAULT_CONFIG if setting.is_default else _STATIC_BROKER_CONFIG
        if config.synonyms:  # empty if the client has not requested them
            config.synonyms = []
            codec.extend(config, "synonyms", _synonyms(setting))


def _synonyms(config: GroupConfigValue) -> list[Fields]:
    """Return the value in force if it is not the default, and then the default."""
    default = {"name": config.name, "value": _DEFAULTS[config.name], "source": _DEFAULT_CONFIG}
    if config.is_default:
        return [default]
    return [{"name": config.name, "value": config.value, "source": _STATIC_BROKER_CONFIG}, default]


async def screen_alterations(context: RequestContext, message: bytes) -> Screened | None:
    """Refuse the resources of an AlterConfigs or IncrementalAlterConfigs that change a setting of the
    coordinator. Raises ProtocolError.
    """
    request = await offload.decode_passed(context.header, message)
    settings = [
        (resource, _first_setting_of_coordinator(context, resource)) for resource in request.resources
    ]
    refused = [
        {
            "resource_type": _BROKER,
            "resource_name": resource.resource_name,
            "error_code": ErrorCode.INVALID_CONFIG,
            "error_message": f"{name} is a setting of the group coordinator, given where that starts.",
        }
        for resource, name in settings
        if name is not None
    ]
    if not refused:
        return None
    request.resources = [resource for resource, name in settings if name is None]
    remaining = await offload.with_body(context.header, message, request) if request.resources else None
    return Screened(remaining, refused={"responses": refused})


def _first_setting_of_coordinator(context: RequestContext, resource: Any) -> str | None:
    """Return the first setting of the coordinator that the resource changes, or None if there is none."""
    if resource.resource_type != _BROKER:
        return None
    names = (config.name for config in resource.configs)
    return next((name for name in names if _belongs_to_coordinator(context, name)), None)
