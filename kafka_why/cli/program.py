"""A program of subcommands, which imports a subcommand's module only when the subcommand is called."""

from collections.abc import Sequence
from itertools import takewhile
from pkgutil import resolve_name
from typing import Any

import click

_ARGUMENTS = "kafka_why.cli.program.arguments"


class Commands(click.Group):
    """A group of commands that explains how to give a name that begins with `-`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the subcommand, and keep the arguments for `invoke`."""
        ctx.meta[_ARGUMENTS] = tuple(args)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            hint = _hint(error, ctx.meta.get(_ARGUMENTS, ()))
            if not error.message.endswith(hint):
                error.message += hint  # type: ignore[misc]  # click declares it final
            raise


def _hint(error: click.UsageError, arguments: Sequence[str]) -> str:
    command = error.ctx.command if error.ctx else None
    if command is None or not any(isinstance(one, click.Argument) for one in command.params):
        return ""
    options = {opt for one in command.params for opt in (*one.opts, *one.secondary_opts)}
    refused = _refused(error)
    for argument in takewhile(lambda one: one != "--", arguments):
        if argument not in options and any(_is_read_as(option, argument) for option in refused):
            as_option = f"--group {argument} or " if "--group" in options else ""
            return f" A name that begins with '-' is given as {as_option}-- {argument}"
    return ""


def _refused(error: click.UsageError) -> list[str]:
    if isinstance(error, click.NoSuchOption):
        return [] if error.possibilities else [error.option_name]
    if isinstance(error, click.BadParameter) and error.param is not None:
        return [option for option in error.param.opts if len(option) == 2]
    return []


def _is_read_as(option: str, argument: str) -> bool:
    if len(option) == 2 and argument.startswith("-") and not argument.startswith("--"):
        return option[1] in argument[1:]
    return argument.partition("=")[0] == option


CommandsAt = dict[str, str]
"""The location of each subcommand by its name, as MODULE:ATTRIBUTE."""


class Program(Commands):
    """A program that loads subcommands on demand, and reports their errors.

    An exception of a subcommand ends the program with one sentence and exit code 1. An unexpected exception
    is also logged with its traceback. Messages are escaped, because they may quote clients.
    """

    def __init__(self, *args: Any, commands_at: CommandsAt, **given: Any) -> None:
        super().__init__(*args, **given)
        self._commands_at = commands_at

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Guard the terminal before the first import of a subcommand, also for `--help`."""
        from kafka_why.cli.output import guard_terminals

        guard_terminals()
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            from kafka_why.wording import visible

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

    from kafka_why.cli.output import configure_logs
    from kafka_why.topic_reader import ClientError
    from kafka_why.wording import visible

    if isinstance(error, (ClientError, KafkaError, OSError)):
        return click.ClickException(visible(str(error) or type(error).__name__))
    configure_logs()
    structlog.get_logger().error("the command failed unexpectedly", exc_info=error)
    return click.ClickException(visible(f"unexpected {type(error).__name__}: {error}"))
