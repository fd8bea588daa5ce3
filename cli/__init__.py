"""The command `group-coordinator`: a subcommand's module is imported when the subcommand is called.

Spark takes a second and 140 MB to import, and most subcommands do without.
"""

from collections.abc import Callable

import click


def _assign() -> click.Command:
    from cli.assign import assign

    return assign


def _demo() -> click.Command:
    from cli.demo.command import demo

    return demo


def _gateway() -> click.Command:
    from cli.gateway import gateway

    return gateway


def _groups() -> click.Command:
    from cli.groups import groups

    return groups


def _rocketmq_consumer() -> click.Command:
    from cli.rocketmq_consumer import rocketmq_consumer

    return rocketmq_consumer


def _run() -> click.Command:
    from cli.run import run

    return run


def _why() -> click.Command:
    from cli.why import why

    return why


def _consume() -> click.Command:
    from cli.consume import consume

    return consume


COMMANDS: dict[str, Callable[[], click.Command]] = {
    "assign": _assign,
    "demo": _demo,
    "gateway": _gateway,
    "groups": _groups,
    "rocketmq-consumer": _rocketmq_consumer,
    "run": _run,
    "why": _why,
    "consume": _consume,
}


class _Commands(click.Group):
    """The subcommands by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        load = COMMANDS.get(cmd_name)
        return load() if load is not None else None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spark-group-coordinator")
def main() -> None:
    """Kafka's group coordinator as one Spark Structured Streaming query."""
