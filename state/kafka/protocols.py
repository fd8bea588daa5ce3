"""Kafka's protocols, by the type of their groups."""

from collections.abc import Mapping
from typing import Any

from kafka_why.contract.kafka.snapshot import GroupSnapshot
from state.config import CoordinatorConfig
from state.kafka.any_group import KafkaGroup
from state.kafka.classic.protocol import CLASSIC
from state.kafka.consumer.protocol import CONSUMER
from state.kafka.group_settings import SettingBounds
from state.kafka.kept_settings import KEPT_SETTINGS
from state.kafka.no_group import HANDLERS_WITHOUT_GROUP
from state.kafka.protocol import KafkaProtocol
from state.kafka.share.protocol import SHARE
from state.protocol import Handler

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
    """Return what the coordinator has for each setting of a group, by Kafka's name of the group's setting."""
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
