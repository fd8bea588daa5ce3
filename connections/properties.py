"""Files in the format of Java's properties, with references to the environment and to other files."""

import re
from collections.abc import Callable, Mapping
from os import environ
from pathlib import Path

# As Kafka's EnvVarConfigProvider and FileConfigProvider are used in a file of settings.
_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


class PropertiesError(ValueError):
    """A file of settings cannot be read. The message names the file and the setting, and no value."""


def read_properties(path: Path) -> dict[str, str]:
    """Return the values of a file by their names.

    `${env:NAME}` in a value is the environment's variable, `${file:PATH}` the content of a file without the
    blanks around it. Raises PropertiesError.
    """
    import javaproperties  # executors are given what was read, and need not have it

    try:
        with path.open("rb") as file:
            found: dict[str, str] = javaproperties.load(file)
    except (OSError, ValueError) as error:
        raise PropertiesError(f"the settings in {path} cannot be read: {_text(error)}") from error
    return {name: _resolved(path, name, value) for name, value in found.items()}


def properties_text(settings: Mapping[str, str]) -> str:
    """Return settings in the format that `read_properties` reads."""
    import javaproperties

    text: str = javaproperties.dumps(dict(settings), timestamp=False)
    return text


def _resolved(path: Path, name: str, value: str) -> str:
    """The value with what its references name."""

    def found(reference: re.Match[str]) -> str:
        kind, where = reference.groups()
        try:
            return _SOURCES[kind](where)
        except (KeyError, OSError, ValueError) as error:
            what = f"{kind}:{where}"
            raise PropertiesError(f"{name} in {path}: {what} cannot be read: {_text(error)}") from error

    return _REFERENCE.sub(found, value)


_SOURCES: Mapping[str, Callable[[str], str]] = {
    "env": lambda name: environ[name],
    "file": lambda name: Path(name).read_text().strip(),
}


def _text(error: Exception) -> str:
    """The error without what it quotes of a file, which may be secret."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is not set" if isinstance(error, KeyError) else type(error).__name__
