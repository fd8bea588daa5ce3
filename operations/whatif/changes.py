"""The settings of an experiment: the coordinator's, the group's own, and those of all clients, by Kafka's own
names.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kafka_why.contract.kafka.history import CLASSIC, CONSUMER, SHARE, STREAMS
from kafka_why.numbers import INT32_MAX, parse_whole_number, shortened
from operations.whatif.observer import KNOWN
from operations.whatif.run import WhatIfError
from state.config import KEPT_SETTINGS, ConfigError, Configs, CoordinatorConfig
from state.kafka.protocols import GROUP_CONFIG_NAMES

OF_CLIENT: Final = "client.id"
ASSIGNORS: Final = "partition.assignment.strategy"
REMOTE_ASSIGNOR: Final = "group.remote.assignor"
INSTANCE: Final = "group.instance.id"
SESSION: Final = "session.timeout.ms"
HEARTBEAT: Final = "heartbeat.interval.ms"
POLL: Final = "max.poll.interval.ms"


@dataclass(frozen=True)
class Changes:
    """The settings that an experiment changes. A setting that is None stays as it was. `name` has the
    settings as on the command line.

    `group` has the group's own settings, `of_clients` the names of the changed settings of clients. With
    `static`, each client has its own `group.instance.id` and sends no LeaveGroup when it stops.
    """

    name: str = "unchanged"
    coordinator: Mapping[str, str] | None = None
    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None
    max_poll_interval_ms: int | None = None
    static: bool = False
    assignors: tuple[str, ...] | None = None
    remote_assignor: str | None = None
    group: Mapping[str, str] = field(default_factory=dict)
    of_clients: tuple[str, ...] = ()

    def check_protocol(self, protocol: str) -> None:
        """Raise WhatIfError if a setting has no effect on groups of this protocol."""
        for name in self.of_clients:
            if protocol not in _OF_CLIENTS[name]:
                known = [other for other, protocols in _OF_CLIENTS.items() if protocol in protocols]
                more = "" if protocol == CLASSIC else f", {protocol}.* and group.{protocol}.*"
                raise WhatIfError(
                    f"clients of the {protocol} protocol do not have {name}; settings of their groups are: "
                    f"{', '.join(known)}{more}"
                )
        for name in (*self.group, *(self.coordinator or {})):
            if name in _ONLY_STORED:
                raise WhatIfError(f"{name} changes no figure, because this coordinator only stores it")
            other = _protocol_of(name)
            if other not in (None, protocol):
                raise WhatIfError(
                    f"{name} is a setting of {other} groups, but the group is one of the {protocol} protocol"
                )

    def configs(self, recorded: Configs) -> Configs:
        """Return the coordinator's configurations. Raises WhatIfError."""
        return recorded.each(self.config)

    def config(self, recorded: CoordinatorConfig) -> CoordinatorConfig:
        """Return the coordinator's configuration. Raises WhatIfError."""
        try:
            return recorded.with_settings(self.coordinator or {})
        except ConfigError as error:
            raise WhatIfError(
                f"{error}; settings of clients are: {', '.join(_OF_CLIENTS)}; "
                f"settings of groups are: {', '.join(GROUP_CONFIG_NAMES)}"
            ) from error


_TIMES: Final[Mapping[str, Callable[[Changes, int], Changes]]] = {
    SESSION: lambda changes, ms: replace(changes, session_timeout_ms=ms),
    HEARTBEAT: lambda changes, ms: replace(changes, heartbeat_interval_ms=ms),
    POLL: lambda changes, ms: replace(changes, max_poll_interval_ms=ms),
}

_OF_CLIENTS: Final[Mapping[str, Collection[str]]] = {
    SESSION: (CLASSIC,),
    HEARTBEAT: (CLASSIC,),
    POLL: (CLASSIC,),
    INSTANCE: (CLASSIC, CONSUMER, STREAMS),
    ASSIGNORS: (CLASSIC,),
    REMOTE_ASSIGNOR: (CONSUMER,),
}
"""The protocols of the clients that have each setting."""

_ONLY_STORED: Final = frozenset(setting.name for setting in KEPT_SETTINGS)
_OF_CLASSIC: Final = frozenset(
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
    changes, others = Changes(name=" ".join(settings)), dict[str, str]()
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise WhatIfError(f"{setting!r} is not NAME=VALUE")
        if name in _OF_CLIENTS:
            changes = replace(_of_clients(changes, name, value), of_clients=(*changes.of_clients, name))
        else:
            others[name] = value
    group = {name: value for name, value in others.items() if name in GROUP_CONFIG_NAMES}
    coordinator = {name: value for name, value in others.items() if name not in group}
    changes = replace(changes, coordinator=coordinator, group=group)
    changes.config(CoordinatorConfig())
    session_ms, interval_ms = changes.session_timeout_ms, changes.heartbeat_interval_ms
    if session_ms is not None and interval_ms is not None and interval_ms >= session_ms:
        raise WhatIfError(f"{HEARTBEAT} ({interval_ms}) must be below {SESSION} ({session_ms}), as in Kafka")
    return changes


def _protocol_of(name: str) -> str | None:
    """Return the protocol of the groups that have this setting, or None if several have it."""
    if name in _OF_CLASSIC:
        return CLASSIC
    prefix = name.removeprefix("group.").removeprefix("coordinator.").partition(".")[0]
    return prefix if prefix in (CONSUMER, SHARE, STREAMS, "rocketmq") else None


def _of_clients(changes: Changes, name: str, value: str) -> Changes:
    """Return the changes with one more setting of all clients."""
    if name in _TIMES:
        return _TIMES[name](changes, _milliseconds(name, value))
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
    try:
        return parse_whole_number(value, 1, INT32_MAX)
    except ValueError:
        raise WhatIfError(
            f"{name} must be a whole number from 1 to {INT32_MAX}, not {shortened(value)!r}"
        ) from None


def _assignors(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    for name in names:
        if name not in KNOWN:
            raise WhatIfError(f"unknown assignor {name!r}; known are {', '.join(KNOWN)}")
    return names
