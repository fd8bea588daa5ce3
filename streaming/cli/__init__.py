"""The command `group-coordinator`: one module a subcommand."""

import click

from streaming.cli.demo import demo
from streaming.cli.run import run
from streaming.cli.worker import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spark-group-coordinator")
def main() -> None:
    """Kafka's group coordinator as one Spark Structured Streaming query."""


main.add_command(demo)
main.add_command(run)
main.add_command(worker)
