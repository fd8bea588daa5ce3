"""Commands that run in the process of a test."""

from collections.abc import Sequence

import click
import structlog
from click.testing import CliRunner, Result


def invoke(command: click.Command, arguments: Sequence[str]) -> Result:
    """Run the command, and reset the logging, because the command's output streams are closed afterwards."""
    result = CliRunner().invoke(command, arguments)
    structlog.reset_defaults()
    return result
