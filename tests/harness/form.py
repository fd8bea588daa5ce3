"""The coordinators that tests start run with a replica, or with the query alone (`pytest --pure`)."""

from dataclasses import replace

from streaming.service.starts import Options

has_replica = True
"""Set once, before tests are collected."""


def arguments() -> list[str]:
    """Return the arguments of `run` for this form."""
    return [] if has_replica else ["--no-replica"]


def formed(options: Options) -> Options:
    """Return the options, without a replica if tests run the query alone."""
    return options if has_replica else replace(options, replica=False)
