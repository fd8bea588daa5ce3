"""Click's parameters as one object: a command takes its options whole, and passes them on whole."""

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Command = Callable[..., Any]

T = TypeVar("T", bound="DataclassInstance")


def pop_fields(kind: type[T], given: dict[str, Any]) -> T:
    """Take the parameters that have the names of fields of `kind`, a dataclass, and return them as one."""
    return kind(**{field.name: given.pop(field.name) for field in fields(kind)})


def as_object(kind: type[T], name: str) -> Callable[[Command], Command]:
    """The command gets these parameters as one object, as `name`. What `kind` raises, click shows."""

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(**{name: pop_fields(kind, given)}, **given)

        return run

    return decorated


def with_options(command: Command, *options: Callable[[Command], Command]) -> Command:
    """The command with these options, in the order of its help."""
    for option in reversed(options):
        command = option(command)
    return command
