"""The command `group-coordinator`: one module a subcommand, imported by its name when it is called.

`run` needs Spark, which takes a second and 140 MB; a worker does without. The gateway stands
above this package, so nothing here imports it but by name.
"""

from importlib import import_module

import click

COMMANDS = {
    "assign": "cli.assign",
    "demo": "cli.demo.command",
    "gateway": "cli.gateway",
    "groups": "cli.groups",
    "rocketmq-consumer": "cli.rocketmq_consumer",
    "run": "cli.run",
    "why": "cli.why",
    "worker": "cli.consume",
}


class _Commands(click.Group):
    """The subcommands, each the function of its own name in its module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spark-group-coordinator")
def main() -> None:
    """Kafka's group coordinator as one Spark Structured Streaming query."""
