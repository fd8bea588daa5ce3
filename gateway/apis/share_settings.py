"""Whose the settings of share groups are (rows SN1 to SN24), by who coordinates the groups.

The leaders of partitions read most of them, so they are the brokers' in every mode. Where this coordinator
has share groups, it has those that it reads itself. They reach the brokers, too, which check them by their
own bounds, so that they stay if the groups are given to the brokers' coordinators.
"""

import copy
from dataclasses import dataclass
from typing import Any

from gateway.upstream.share_groups import Coordinators
from state.config import CoordinatorConfig
from state.kafka.share.heartbeat import SETTINGS

_PREFIXES = "share.", "errors.deadletterqueue."
_OF_BROKERS_PREFIX = "group.share."
_READ_BY_COORDINATOR = frozenset(setting.name for setting in SETTINGS.settings)  # row SN14
_COORDINATORS = frozenset(
    name for name in CoordinatorConfig().settings() if name.startswith(_OF_BROKERS_PREFIX)
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What of a resource GROUP is for the coordinator, and what is for the brokers. With `brokers_first` the
    coordinator only checks its part before the brokers have taken theirs.
    """

    own: Any | None
    brokers: Any | None = None
    brokers_first: bool = False


def brokers_show(coordinators: Coordinators, name: str) -> bool:
    """Whether the value of this setting of a group is the brokers'."""
    is_ours = coordinators is Coordinators.OURS and name in _READ_BY_COORDINATOR
    return coordinators is not Coordinators.OFF and name.startswith(_PREFIXES) and not is_ours


def is_coordinators(coordinators: Coordinators, name: str) -> bool:
    """Whether this setting of a broker, which begins with `group.share.`, is the coordinator's (rows SN1 to
    SN5).
    """
    return coordinators is Coordinators.OURS and name in _COORDINATORS


def split_changes(coordinators: Coordinators, resource: Any, *, is_whole: bool) -> Parts:
    """Split changes of a group's settings. `is_whole`: what is not named is taken away."""
    brokers = copy.copy(resource)
    brokers.configs = [config for config in resource.configs if config.name.startswith(_PREFIXES)]
    is_ours = coordinators is Coordinators.OURS
    has_both = is_ours and is_whole
    if coordinators is Coordinators.OFF or not (brokers.configs or has_both):
        return Parts(resource)
    resource.configs = [c for c in resource.configs if not brokers_show(coordinators, c.name)]
    return Parts(resource if resource.configs or has_both else None, brokers, brokers_first=is_ours)


def split_keys(coordinators: Coordinators, resource: Any) -> Parts:
    """Split what is asked of a group's settings, all of them if none is named."""
    brokers = copy.copy(resource)
    if resource.configuration_keys:
        keys = [key for key in resource.configuration_keys if brokers_show(coordinators, key)]
        brokers.configuration_keys = keys
    has_brokers = coordinators is not Coordinators.OFF and (
        brokers.configuration_keys or not resource.configuration_keys
    )
    return Parts(resource, brokers if has_brokers else None)
