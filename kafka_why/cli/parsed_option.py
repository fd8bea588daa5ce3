"""An option type made of a parser. What the parser refuses ends the command."""

from collections.abc import Callable
from typing import Any

import click


class ParsedOption(click.ParamType[Any]):
    """An option type from a parser that raises ValueError. `expected` describes a valid value by example."""

    def __init__(self, name: str, parse: Callable[[str], Any], expected: str) -> None:
        self.name = name
        self._parse = parse
        self._expected = expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return parsed_or_default(self._parse, value, self, param, ctx, f"; expected is {self._expected}")


def parsed_or_default(
    parse: Callable[[str], Any],
    value: Any,
    kind: click.ParamType[Any],
    param: click.Parameter | None,
    ctx: click.Context | None,
    hint: str = "",
) -> Any:
    """Return the parsed text, or a default that was parsed before. A ValueError ends the command."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except ValueError as error:
        kind.fail(f"{error}{hint}", param, ctx)
