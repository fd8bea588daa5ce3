"""Finds settings of a share group that differ between the brokers and the group's coordinator. Row SP27.

Both store the three settings that the coordinator reads, and a change through the gateway reaches both. They
differ after a change that was sent to a broker directly, or if a gateway ended in the middle of a change.
"""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.messages import SettingValue

# In the order of `state.kafka.share.heartbeat`, which the coordinator reads.
_NAMES = ("share.assignment.interval.ms", "share.heartbeat.interval.ms", "share.session.timeout.ms")
_OWN = "DYNAMIC_GROUP_CONFIG"
_TO_DO = "set or delete it through the gateway"

UNKNOWN = (
    "the brokers do not show the group's settings, which may differ: the principal needs DESCRIBE_CONFIGS on "
    "the group"
)


def settings_notes(client_config: ClientConfig, group_id: str, view: GroupSnapshot | None) -> list[str]:
    """Return a note for each setting that differs between the group's `view` and the brokers, or UNKNOWN if
    the brokers do not show the settings. Raises KafkaError.
    """
    brokers = _of_brokers(client_config, group_id)
    own = {} if view is None or not view.configs else view.configs
    return [UNKNOWN] if brokers is None else differing(own, brokers)


def differing(own: Mapping[str, SettingValue], brokers: Mapping[str, str]) -> list[str]:
    """Return a note for each difference between a group's own settings at the coordinator and at the
    brokers.
    """
    sentences = []
    for name in _NAMES:
        here = None if (value := own.get(name)) is None else str(value)
        there = brokers.get(name)
        if here == there:
            continue
        if here is None:
            sentences.append(f"{name}={there} is set only at the brokers and has no effect: {_TO_DO}")
        else:
            at_brokers = "not set" if there is None else there
            sentences.append(f"{name}={here} is in force, and is {at_brokers} at the brokers: {_TO_DO}")
    return sentences


def _of_brokers(client_config: ClientConfig, group_id: str) -> dict[str, str] | None:
    """Return the group's own settings at the brokers, or None if they do not show them."""
    resource = ConfigResource(ConfigResourceType.GROUP, group_id, dict.fromkeys(_NAMES))
    with closing(kafka_clients.admin(client_config)) as admin:
        answer: dict[str, Any] = admin.describe_configs([resource], config_filter="all")
    found = answer["group"][group_id]
    if not found:
        return None
    return {name: config["value"] for name, config in found.items() if config["config_source"] == _OWN}
