"""`--page-url`: where the page is, so that a command's output ends with a link to it."""

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

import click

from kafka_why.cli.parameters import WEB_URL

Command = TypeVar("Command", bound=Callable[..., Any])

VARIABLE = "GROUP_COORDINATOR_PAGE_URL"


def page_url_option(command: Command) -> Command:
    """Add `--page-url`; the command gets it as `page_url`, None if neither it nor VARIABLE is set."""
    return click.option(
        "--page-url",
        type=WEB_URL,
        envvar=VARIABLE,
        show_envvar=True,
        help="Where the page is, as http://HOST:PORT/, for the link to the group.",
    )(command)


def link(page_url: str, group_id: str | None = None) -> str:
    """The address of a group on the page, of all groups without one."""
    base = f"{page_url.rstrip('/')}/"
    return base if group_id is None else f"{base}group?{urlencode({'id': group_id})}"
