"""A program of subcommands, which imports a subcommand's module only when the subcommand is called."""

from collections.abc import Sequence
from itertools import takewhile
from pkgutil import resolve_name
from typing import Any

import click

# The key under which `Commands` keeps the arguments in click's `meta`.
_ARGUMENTS = "kafka_why.cli.program.arguments"
_MAX_HELP_CHARS = 200


class Commands(click.Group):
    """A group of commands. If click mistakes a group id with a leading `-` for an option, the error explains
    how to write it.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the subcommand, and keep the arguments for `invoke`."""
        ctx.meta[_ARGUMENTS] = tuple(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each subcommand's help in full, which click would cut off."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(limit=_MAX_HELP_CHARS)) for name, one in commands if one]
            )

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            hint = _hint_about_hyphen(error, ctx.meta.get(_ARGUMENTS, ()))
            if not error.message.endswith(hint):
                error.message += hint  # type: ignore[misc]  # click declares it final
            raise


def _hint_about_hyphen(error: click.UsageError, arguments: Sequence[str]) -> str:
    """Return advice for a name that begins with `-` and that click mistook for an option, or "" if there is
    none.
    """
    command = error.ctx.command if error.ctx else None
    if command is None or not any(isinstance(param, click.Argument) for param in command.params):
        return ""
    options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    refused_options = _refused_options(error)
    for argument in takewhile(lambda word: word != "--", arguments):
        if argument not in options and any(_is_read_as(option, argument) for option in refused_options):
            as_option = f"--group {argument} or " if "--group" in options else ""
            return f" A name that begins with '-' is given as {as_option}-- {argument}"
    return ""


def _refused_options(error: click.UsageError) -> list[str]:
    """Return the options that the error is about, if a name with a leading hyphen may be the cause."""
    if isinstance(error, click.NoSuchOption):
        return [] if error.possibilities else [error.option_name]
    if isinstance(error, click.BadParameter) and error.param is not None:
        return [option for option in error.param.opts if len(option) == 2]  # short ones, such as -o
    return []


def _is_read_as(option: str, argument: str) -> bool:
    """Return True if click reads `argument` as `option`, or as short options (`-abc`) with this one."""
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

    def __init__(self, *args: Any, commands_at: CommandsAt, **options: Any) -> None:
        super().__init__(*args, **options)
        self._commands_at = commands_at

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Configure logs and guard the terminal before the first import of a subcommand."""
        from kafka_why.cli.output import configure_logs

        configure_logs()
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
            raise _to_click_error(error) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        location = self._commands_at.get(cmd_name)
        return None if location is None else resolve_name(location)


def _to_click_error(error: Exception) -> click.ClickException:
    """Return the error as a sentence for the user. Log an unexpected error with its traceback."""
    # Imported only here, because these take a tenth of a second to import.
    import structlog
    from kafka.errors import KafkaError

    from kafka_why.errors import MultilineError, UserFacingError
    from kafka_why.wording import visible, visible_lines

    if isinstance(error, MultilineError):
        return click.ClickException(visible_lines(str(error).expandtabs()))
    if isinstance(error, (UserFacingError, KafkaError, OSError)):
        return click.ClickException(visible(str(error) or type(error).__name__))
    structlog.get_logger().error("the command failed unexpectedly", exc_info=error)
    return click.ClickException(visible(f"unexpected {type(error).__name__}: {error}"))
