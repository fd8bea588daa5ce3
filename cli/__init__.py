"""The command `group-coordinator`. It imports a subcommand's module when the subcommand is called.

Importing Spark takes a second and 140 MB, and most subcommands do not need it.
"""

from collections.abc import Callable
from typing import Any

import click
import structlog

from cli.commands import Commands


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


def _notify() -> click.Command:
    from cli.notify import notify

    return notify


def _observe() -> click.Command:
    from cli.observe import observe

    return observe


def _page() -> click.Command:
    from cli.page import page

    return page


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


def _why() -> click.Command:
    from cli.why import why

    return why


COMMANDS: dict[str, Callable[[], click.Command]] = {
    "adopt": _adopt,
    "assign": _assign,
    "demo": _demo,
    "gateway": _gateway,
    "gateway-user": _gateway_user,
    "groups": _groups,
    "notify": _notify,
    "observe": _observe,
    "page": _page,
    "record": _record,
    "replay": _replay,
    "rocketmq-consumer": _rocketmq_consumer,
    "run": _run,
    "state": _state,
    "whatif": _whatif,
    "why": _why,
}


class _Commands(Commands):
    """Checks the project's packages, loads subcommands on demand, and reports their errors.

    Any exception of a subcommand ends it with a one-sentence message and exit code 1. An unexpected exception
    is logged with its traceback first. A message may quote clients' strings, so it is escaped.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Check the packages before the first subcommand's module is imported, for `--help` as well.

        Then guard the terminal.
        """
        from cli.own_packages import check_own_packages

        check_own_packages()
        from cli.terminal import guard_terminals

        guard_terminals()
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            from kafka_why.escaping import visible

            error.message = visible(error.message)  # type: ignore[misc]  # click declares it final
            raise
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            raise _in_a_sentence(error) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        load = COMMANDS.get(cmd_name)
        return load() if load is not None else None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="spark-group-coordinator")
def main() -> None:
    """Kafka's group coordinator as one Spark Structured Streaming query."""


def _in_a_sentence(error: Exception) -> click.ClickException:
    from kafka.errors import KafkaError  # these take a tenth of a second to import

    from cli.logs import configure_logs
    from kafka_why.escaping import visible
    from kafka_why.topic_layout import ClientError

    if isinstance(error, (ClientError, KafkaError, OSError)):
        return click.ClickException(visible(str(error) or type(error).__name__))
    configure_logs()
    structlog.get_logger().error("the command failed unexpectedly", exc_info=error)
    return click.ClickException(visible(f"unexpected {type(error).__name__}: {error}"))
