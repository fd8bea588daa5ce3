"""Commands that run in the process of a test."""

from collections.abc import Sequence

import click
import structlog
from click.testing import CliRunner, Result


def invoke(command: click.Command, arguments: Sequence[str]) -> Result:
    """Run the command. Its logs go to what is closed when it has ended, so they are set up anew."""
    result = CliRunner().invoke(command, arguments)
    structlog.reset_defaults()
    return result
