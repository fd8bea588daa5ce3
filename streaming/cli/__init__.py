"""The command `group-coordinator`: one module a subcommand."""

import click

from streaming.cli.run import run


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spark-group-coordinator")
def main() -> None:
    """Kafka's group coordinator as one Spark Structured Streaming query."""


main.add_command(run)
