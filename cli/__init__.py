"""The command `group-coordinator`, with the subcommands of `kafka-why`. It imports a subcommand's module only
when the subcommand is called.

Importing Spark takes a second and 140 MB, and most subcommands do not need it.
"""

from typing import Any

import click

from kafka_why import cli as explainer
from kafka_why.cli.program import CommandsAt, Program

COMMANDS: CommandsAt = {
    **explainer.COMMANDS,
    "adopt": "cli.adopt:adopt",
    "assign": "cli.assign:assign",
    "demo": "cli.demo.command:demo",
    "gateway": "cli.gateway:gateway",
    "gateway-user": "cli.gateway:gateway_user",
    "groups": "cli.groups:groups",
    "observe": "cli.observe:observe",
    "record": "cli.replay:record",
    "replay": "cli.replay:replay",
    "rocketmq-gateway": "cli.gateway:rocketmq_gateway",
    "run": "cli.run:run",
    "state": "cli.state:state",
    "whatif": "cli.whatif:whatif",
}


class _Program(Program):
    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Check that Python finds this project's packages, before the first subcommand is imported."""
        from cli.own_packages import check_own_packages

        check_own_packages()
        return super().make_context(info_name, args, parent, **extra)


@click.group(cls=_Program, commands_at=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spark-group-coordinator")
def main() -> None:
    """Kafka's group coordinator as one Spark Structured Streaming query."""
