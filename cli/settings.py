"""NAME=VALUE options: settings of the coordinator, and of the embedded broker."""

from collections.abc import Callable, Sequence

import click

from embedded.broker_settings import check_broker_settings
from kafka_why.connections.client_config import ClientConfig
from state.config import CoordinatorConfig


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Return the coordinator's settings by Kafka's names. Raises BadParameter if one is invalid."""
    return checked_pairs(settings, "-c", CoordinatorConfig().with_settings)


def parse_broker_settings(settings: Sequence[str], client_config: ClientConfig | None) -> dict[str, str]:
    """Return the embedded broker's settings. Raises UsageError if one is refused.

    With `client_config` there is no embedded broker, so any setting is then refused.
    """
    option = "--broker-config"
    if settings and client_config is not None:
        raise click.UsageError(
            f"{option} configures the embedded broker, but --bootstrap-servers or --client-config names "
            "another broker"
        )
    return checked_pairs(settings, option, check_broker_settings)


def checked_pairs(
    settings: Sequence[str], option: str, check: Callable[[dict[str, str]], object]
) -> dict[str, str]:
    """Return NAME=VALUE options by their names. Raises BadParameter if `check` raises a ValueError."""
    pairs = name_value_pairs(settings, option)
    try:
        check(pairs)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    return pairs


def name_value_pairs(settings: Sequence[str], option: str) -> dict[str, str]:
    """Return the settings by their names. Raises BadParameter if one is not NAME=VALUE."""
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint=option)
        parsed[name.strip()] = value.strip()
    return parsed
