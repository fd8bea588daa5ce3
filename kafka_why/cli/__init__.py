"""The command `kafka-why`."""

import click

from kafka_why.cli.program import Loaders, Program


def _groups() -> click.Command:
    from kafka_why.cli.groups import groups

    return groups


def _notify() -> click.Command:
    from kafka_why.cli.notify import notify

    return notify


def _page() -> click.Command:
    from kafka_why.cli.page import page

    return page


def _why() -> click.Command:
    from kafka_why.cli.why import why

    return why


LOADERS: Loaders = {"groups": _groups, "notify": _notify, "page": _page, "why": _why}


@click.group(cls=Program, loaders=LOADERS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kafka-why")
def main() -> None:
    """Explain groups of Kafka consumers: why they rebalanced, how far they are behind, what is wrong."""
