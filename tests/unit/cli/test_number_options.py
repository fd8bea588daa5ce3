"""Numbers on the command line: every option of a number reads it with the parser for text from outside."""

import click
import pytest

from cli import main
from kafka_why.cli.parameters import INT64, DecimalNumber, WholeNumber
from tests.unit.cli.test_addresses import commands

OURS = (WholeNumber, DecimalNumber)
# Those of click, which use int() and float().
FOREIGN = (click.types.IntParamType, click.types.FloatParamType)
OPTIONS = [
    pytest.param(path, parameter, id=" ".join((*path, parameter.opts[0])))
    for path, command in commands(main)
    for parameter in command.params
    if isinstance(parameter.type, FOREIGN) or parameter.type is INT64
    if not (isinstance(parameter, click.Option) and parameter.count)
]


@pytest.mark.parametrize(("path", "option"), OPTIONS)
def test_number_option_accepts_only_ascii_digits(path: tuple[str, ...], option: click.Parameter) -> None:
    assert option.type is INT64 or isinstance(option.type, OURS)
    context = click.Context(click.Command("a"))
    for text in ("1_0", "\N{FULLWIDTH DIGIT ONE}", " 1", "nan", "9" * 5_000):
        with pytest.raises(click.BadParameter, match=r"is not a whole number|is not a number|is not between"):
            option.type.convert(text, option, context)
