"""The command `kafka-why`."""

import click

from kafka_why.cli.program import CommandsAt, Program

COMMANDS: CommandsAt = {
    "groups": "kafka_why.cli.groups:groups",
    "notify": "kafka_why.cli.notify:notify",
    "page": "kafka_why.cli.page:page",
    "why": "kafka_why.cli.why:why",
}


@click.group(cls=Program, commands_at=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kafka-why")
def main() -> None:
    """Explain groups of Kafka consumers: why they rebalanced, how far they are behind, what is wrong."""
