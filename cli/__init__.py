"""The command `group-coordinator`, with the subcommands of `kafka-why`. It imports a subcommand's module when
the subcommand is called.

Importing Spark takes a second and 140 MB, and most subcommands do not need it.
"""

from typing import Any

import click

from kafka_why import cli as explainer
from kafka_why.cli.program import Loaders, Program


def _adopt() -> click.Command:
    from cli.adopt import adopt

    return adopt


def _assign() -> click.Command:
    from cli.assign import assign

    return assign


def _demo() -> click.Command:
    from cli.demo.command import demo

    return demo


def _gateway() -> click.Command:
    from cli.gateway import gateway

    return gateway


def _gateway_user() -> click.Command:
    from cli.gateway_user import gateway_user

    return gateway_user


def _groups() -> click.Command:
    from cli.groups import groups

    return groups


def _observe() -> click.Command:
    from cli.observe import observe

    return observe


def _record() -> click.Command:
    from cli.record import record

    return record


def _replay() -> click.Command:
    from cli.replay import replay

    return replay


def _rocketmq_consumer() -> click.Command:
    from cli.rocketmq_consumer import rocketmq_consumer

    return rocketmq_consumer


def _run() -> click.Command:
    from cli.run import run

    return run


def _state() -> click.Command:
    from cli.state import state

    return state


def _whatif() -> click.Command:
    from cli.whatif import whatif

    return whatif


LOADERS: Loaders = {
    **explainer.LOADERS,
    "adopt": _adopt,
    "assign": _assign,
    "demo": _demo,
    "gateway": _gateway,
    "gateway-user": _gateway_user,
    "groups": _groups,
    "observe": _observe,
    "record": _record,
    "replay": _replay,
    "rocketmq-consumer": _rocketmq_consumer,
    "run": _run,
    "state": _state,
    "whatif": _whatif,
}


class _Program(Program):
    """Checks the project's packages first."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Check the packages before the first subcommand's module is imported, for `--help` as well."""
        from cli.own_packages import check_own_packages

        check_own_packages()
        return super().make_context(info_name, args, parent, **extra)


@click.group(cls=_Program, loaders=LOADERS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spark-group-coordinator")
def main() -> None:
    """Kafka's group coordinator as one Spark Structured Streaming query."""
