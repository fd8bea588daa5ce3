"""A program of subcommands: it imports a subcommand's module when the subcommand is called."""

from pkgutil import resolve_name
from typing import Any

import click

from kafka_why.cli.commands import Commands

CommandsAt = dict[str, str]
"""Where each subcommand is, by its name: MODULE:ATTRIBUTE."""


class Program(Commands):
    """Loads subcommands on demand, and reports their errors.

    Any exception of a subcommand ends it with a one-sentence message and exit code 1. An unexpected exception
    is logged with its traceback first. A message may quote clients' strings, so it is escaped.
    """

    def __init__(self, *args: Any, commands_at: CommandsAt, **given: Any) -> None:
        super().__init__(*args, **given)
        self._commands_at = commands_at

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Guard the terminal before the first subcommand's module is imported, for `--help` as well."""
        from kafka_why.cli.terminal import guard_terminals

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
        return sorted(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        at = self._commands_at.get(cmd_name)
        return None if at is None else resolve_name(at)


def _in_a_sentence(error: Exception) -> click.ClickException:
    import structlog
    from kafka.errors import KafkaError  # these take a tenth of a second to import

    from kafka_why.cli.logs import configure_logs
    from kafka_why.escaping import visible
    from kafka_why.topic_layout import ClientError

    if isinstance(error, (ClientError, KafkaError, OSError)):
        return click.ClickException(visible(str(error) or type(error).__name__))
    configure_logs()
    structlog.get_logger().error("the command failed unexpectedly", exc_info=error)
    return click.ClickException(visible(f"unexpected {type(error).__name__}: {error}"))
