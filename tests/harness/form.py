"""The form of the coordinators that tests start: with a replica, or the query alone (`pytest --pure`)."""

from dataclasses import replace

from streaming.service.starts import Options

has_replica = True
"""Set once, before tests are collected."""


def arguments() -> list[str]:
    """Return what `run` is given."""
    return [] if has_replica else ["--no-replica"]


def formed(options: Options) -> Options:
    """Return the options of a coordinator of this form. One without a replica stays so."""
    return options if has_replica else replace(options, replica=False)
