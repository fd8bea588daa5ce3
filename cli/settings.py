"""NAME=VALUE options: settings of the coordinator, and of the embedded broker."""

from collections.abc import Sequence

import click

from embedded.broker_settings import BrokerSettingRefused, check_broker_settings
from kafka_why.connections.client_config import ClientConfig
from state.config import ConfigError, CoordinatorConfig


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Return the coordinator's settings by Kafka's names. Raises BadParameter if one is invalid."""
    parsed = name_value_pairs(settings, "-c")
    try:
        CoordinatorConfig().with_settings(parsed)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="-c") from error
    return parsed


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
    parsed = name_value_pairs(settings, option)
    try:
        check_broker_settings(parsed)
    except BrokerSettingRefused as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    return parsed


def name_value_pairs(settings: Sequence[str], option: str) -> dict[str, str]:
    """Return the settings by their names. Raises BadParameter if one is not NAME=VALUE."""
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint=option)
        parsed[name.strip()] = value.strip()
    return parsed
