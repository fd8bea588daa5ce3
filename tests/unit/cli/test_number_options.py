"""Numbers on the command line: every option of a number reads it with the parser for text from outside."""

import click
import pytest
from click.testing import CliRunner

from cli import main
from cli.parameters import INT64, DecimalNumber, WholeNumber
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
def test_option_of_a_number_reads_only_ascii_digits(path: tuple[str, ...], option: click.Parameter) -> None:
    assert option.type is INT64 or isinstance(option.type, OURS)
    context = click.Context(click.Command("a"))
    for text in ("1_0", "\N{FULLWIDTH DIGIT ONE}", " 1", "nan", "9" * 5_000):
        with pytest.raises(click.BadParameter, match=r"is not a whole number|is not a number|is not between"):
            option.type.convert(text, option, context)


def test_range_is_checked_after_the_form() -> None:
    kind = WholeNumber(10)
    assert kind.convert("010", None, None) == 10
    with pytest.raises(click.BadParameter, match="9 is not in the range x>=10"):
        kind.convert("9", None, None)
    with pytest.raises(click.BadParameter, match="2147483648 is not between"):
        kind.convert("2147483648", None, None)
    assert WholeNumber(0, 2**40).convert(str(2**33), None, None) == 2**33


@pytest.mark.parametrize("value", ["3_000", "\N{ARABIC-INDIC DIGIT THREE}", "1e3", "9" * 5_000])
def test_setting_of_the_coordinator_is_a_number_of_ascii_digits(value: str) -> None:
    result = CliRunner().invoke(main, ["run", "-c", f"group.initial.rebalance.delay.ms={value}"])
    assert result.exit_code == 2
    assert "Invalid value for -c: group.initial.rebalance.delay.ms must be " in result.stderr
