"""The settings of an experiment, by Kafka's own names: settings of the coordinator, of the group, and of all
its clients.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kafka_why.contract.kafka.history import CLASSIC, CONSUMER, SHARE, STREAMS
from kafka_why.numbers import INT32_MAX, parse_whole_number, shortened
from operations.whatif.observer import KNOWN
from operations.whatif.run import WhatIfError
from state.config import STORED_ONLY_SETTINGS, ConfigError, CoordinatorConfig
from state.kafka.protocols import GROUP_CONFIG_NAMES

OF_CLIENT: Final = "client.id"  # the only value of INSTANCE in an experiment
ASSIGNORS: Final = "partition.assignment.strategy"
REMOTE_ASSIGNOR: Final = "group.remote.assignor"
INSTANCE: Final = "group.instance.id"
SESSION: Final = "session.timeout.ms"
HEARTBEAT: Final = "heartbeat.interval.ms"
POLL: Final = "max.poll.interval.ms"


@dataclass(frozen=True)
class Changes:
    """The settings that an experiment changes. A setting that is None stays as it was."""

    name: str = "unchanged"  # the settings as on the command line
    coordinator: Mapping[str, str] | None = None  # the coordinator's settings
    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None
    max_poll_interval_ms: int | None = None
    static: bool = False  # each client has its own `group.instance.id` and sends no LeaveGroup when it stops
    assignors: tuple[str, ...] | None = None
    remote_assignor: str | None = None
    group: Mapping[str, str] = field(default_factory=dict)  # the group's own settings
    of_clients: tuple[str, ...] = ()  # names of the changed settings of clients

    def check_protocol(self, protocol: str) -> None:
        """Raise WhatIfError if a setting has no effect on groups of this protocol."""
        for name in self.of_clients:
            if protocol not in _CLIENT_SETTINGS[name]:
                available = [other for other, protocols in _CLIENT_SETTINGS.items() if protocol in protocols]
                of_groups = "" if protocol == CLASSIC else f", {protocol}.* and group.{protocol}.*"
                raise WhatIfError(
                    f"clients of the {protocol} protocol do not have {name}; settings of their groups are: "
                    f"{', '.join(available)}{of_groups}"
                )
        for name in (*self.group, *(self.coordinator or {})):
            if name in _ONLY_STORED:
                raise WhatIfError(f"{name} changes no figure, because this coordinator only stores it")
            protocol_of_setting = _protocol_of(name)
            if protocol_of_setting not in (None, protocol):
                raise WhatIfError(
                    f"{name} is a setting of {protocol_of_setting} groups, but the group is one of the "
                    f"{protocol} protocol"
                )

    def config(self, recorded: CoordinatorConfig) -> CoordinatorConfig:
        """Return a recorded configuration with the coordinator's changed settings. Raises WhatIfError."""
        try:
            return recorded.with_settings(self.coordinator or {})
        except ConfigError as error:
            raise WhatIfError(
                f"{error}; settings of clients are: {', '.join(_CLIENT_SETTINGS)}; "
                f"settings of groups are: {', '.join(GROUP_CONFIG_NAMES)}"
            ) from error


# By setting, the function that returns the changes with this setting in ms.
_SET_TIME: Final[Mapping[str, Callable[[Changes, int], Changes]]] = {
    SESSION: lambda changes, ms: replace(changes, session_timeout_ms=ms),
    HEARTBEAT: lambda changes, ms: replace(changes, heartbeat_interval_ms=ms),
    POLL: lambda changes, ms: replace(changes, max_poll_interval_ms=ms),
}

_CLIENT_SETTINGS: Final[Mapping[str, Collection[str]]] = {
    SESSION: (CLASSIC,),
    HEARTBEAT: (CLASSIC,),
    POLL: (CLASSIC,),
    INSTANCE: (CLASSIC, CONSUMER, STREAMS),
    ASSIGNORS: (CLASSIC,),
    REMOTE_ASSIGNOR: (CONSUMER,),
}
"""The protocols of the clients that have each setting."""

_ONLY_STORED: Final = frozenset(setting.name for setting in STORED_ONLY_SETTINGS)
# The coordinator's settings that have an effect on classic groups only.
_CLASSIC_ONLY: Final = frozenset(
    {
        "group.initial.rebalance.delay.ms",
        "group.max.session.timeout.ms",
        "group.max.size",
        "group.min.session.timeout.ms",
    }
)

UNCHANGED: Final = Changes()


def parse_changes(settings: Sequence[str]) -> Changes:
    """Return the experiment with these NAME=VALUE settings. Raises WhatIfError."""
    changes = Changes(name=" ".join(settings))
    not_of_clients: dict[str, str] = {}  # settings of the group or the coordinator
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise WhatIfError(f"{setting!r} is not NAME=VALUE")
        if name in _CLIENT_SETTINGS:
            changes = replace(_with_setting(changes, name, value), of_clients=(*changes.of_clients, name))
        else:
            not_of_clients[name] = value
    group = {name: value for name, value in not_of_clients.items() if name in GROUP_CONFIG_NAMES}
    coordinator = {name: value for name, value in not_of_clients.items() if name not in group}
    changes = replace(changes, coordinator=coordinator, group=group)
    changes.config(CoordinatorConfig())  # raises for an unknown or invalid setting
    session_ms, interval_ms = changes.session_timeout_ms, changes.heartbeat_interval_ms
    if session_ms is not None and interval_ms is not None and interval_ms >= session_ms:
        raise WhatIfError(f"{HEARTBEAT} ({interval_ms}) must be below {SESSION} ({session_ms}), as in Kafka")
    return changes


def _protocol_of(name: str) -> str | None:
    """Return the protocol of the groups that have this setting, or None if several have it."""
    if name in _CLASSIC_ONLY:
        return CLASSIC
    prefix = name.removeprefix("group.").removeprefix("coordinator.").partition(".")[0]
    return prefix if prefix in (CONSUMER, SHARE, STREAMS, "rocketmq") else None


def _with_setting(changes: Changes, name: str, value: str) -> Changes:
    """Return the changes with one more setting of all clients."""
    if name in _SET_TIME:
        return _SET_TIME[name](changes, _milliseconds(name, value))
    if name == ASSIGNORS:
        return replace(changes, assignors=_assignors(value))
    if name == REMOTE_ASSIGNOR:
        return replace(changes, remote_assignor=value)
    if value != OF_CLIENT:
        raise WhatIfError(
            f"{INSTANCE} can only be {OF_CLIENT}, which gives each client its own instance id, not {value!r}"
        )
    return replace(changes, static=True)


def _milliseconds(name: str, value: str) -> int:
    """Return the time that a setting has as text. Raises WhatIfError."""
    try:
        return parse_whole_number(value, 1, INT32_MAX)
    except ValueError:
        raise WhatIfError(
            f"{name} must be a whole number from 1 to {INT32_MAX}, not {shortened(value)!r}"
        ) from None


def _assignors(value: str) -> tuple[str, ...]:
    """Return the names of these assignors, which are separated by commas. Raises WhatIfError."""
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if name not in KNOWN:
            raise WhatIfError(f"unknown assignor {name!r}; known are {', '.join(KNOWN)}")
    return names
