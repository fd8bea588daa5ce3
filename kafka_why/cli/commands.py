"""A group of commands whose errors say how to give a name that begins with `-`."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import click

_ARGUMENTS = "kafka_why.cli.commands.arguments"


class Commands(click.Group):
    """Explains the error if a name that begins with `-` was taken for an option."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Keep the arguments for `invoke`."""
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
    """Return how to give a name that begins with `-`, or "" if the error has another cause."""
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
    """Return the option that the parser does not know, or the short one whose value it refuses."""
    if isinstance(error, click.NoSuchOption):
        return [] if error.possibilities else [error.option_name]
    if isinstance(error, click.BadParameter) and error.param is not None:
        return [option for option in error.param.opts if len(option) == 2]
    return []


def _is_read_as(option: str, argument: str) -> bool:
    """Return True if the parser reads the argument as this option, or as several short ones with it."""
    if len(option) == 2 and argument.startswith("-") and not argument.startswith("--"):
        return option[1] in argument[1:]
    return argument.partition("=")[0] == option
