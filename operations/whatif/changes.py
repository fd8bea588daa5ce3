"""The settings of an experiment: the coordinator's, and those of all clients, by Kafka's own names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kafka_why.numbers import INT32_MAX, parse_whole_number, shortened
from operations.whatif.observer import KNOWN
from operations.whatif.run import WhatIfError
from state.config import ConfigError, Configs, CoordinatorConfig

OF_CLIENT: Final = "client.id"
ASSIGNORS: Final = "partition.assignment.strategy"
INSTANCE: Final = "group.instance.id"
SESSION: Final = "session.timeout.ms"
HEARTBEAT: Final = "heartbeat.interval.ms"
POLL: Final = "max.poll.interval.ms"


@dataclass(frozen=True)
class Changes:
    """The settings that an experiment changes. A setting that is None stays as it was. `name` has the
    settings as on the command line.

    With `static`, each client has its own `group.instance.id` and sends no LeaveGroup when it stops.
    """

    name: str = "unchanged"
    coordinator: Mapping[str, str] | None = None
    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None
    max_poll_interval_ms: int | None = None
    static: bool = False
    assignors: tuple[str, ...] | None = None

    def configs(self, recorded: Configs) -> Configs:
        """Return the coordinator's configurations. Raises WhatIfError."""
        return recorded.each(self.config)

    def config(self, recorded: CoordinatorConfig) -> CoordinatorConfig:
        """Return the coordinator's configuration. Raises WhatIfError."""
        try:
            return recorded.with_settings(self.coordinator or {})
        except ConfigError as error:
            of_clients = ", ".join((*_TIMES, INSTANCE, ASSIGNORS))
            raise WhatIfError(f"{error}; settings of clients are: {of_clients}") from error


_TIMES: Final[Mapping[str, Callable[[Changes, int], Changes]]] = {
    SESSION: lambda changes, ms: replace(changes, session_timeout_ms=ms),
    HEARTBEAT: lambda changes, ms: replace(changes, heartbeat_interval_ms=ms),
    POLL: lambda changes, ms: replace(changes, max_poll_interval_ms=ms),
}

UNCHANGED: Final = Changes()


def parse_changes(settings: Sequence[str]) -> Changes:
    """Return the experiment with these NAME=VALUE settings. Raises WhatIfError."""
    changes, coordinator = Changes(name=" ".join(settings)), {}
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise WhatIfError(f"{setting!r} is not NAME=VALUE")
        if name in _TIMES:
            changes = _TIMES[name](changes, _milliseconds(name, value))
        elif name == ASSIGNORS:
            changes = replace(changes, assignors=_assignors(value))
        elif name == INSTANCE:
            if value != OF_CLIENT:
                raise WhatIfError(
                    f"{INSTANCE} can only be {OF_CLIENT}, which gives each client its own instance id, "
                    f"not {value!r}"
                )
            changes = replace(changes, static=True)
        else:
            coordinator[name] = value
    changes = replace(changes, coordinator=coordinator)
    changes.config(CoordinatorConfig())
    session_ms, interval_ms = changes.session_timeout_ms, changes.heartbeat_interval_ms
    if session_ms is not None and interval_ms is not None and interval_ms >= session_ms:
        raise WhatIfError(f"{HEARTBEAT} ({interval_ms}) must be below {SESSION} ({session_ms}), as in Kafka")
    return changes


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
