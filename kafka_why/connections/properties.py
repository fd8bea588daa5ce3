"""Files in the format of Java's properties, with references to the environment and to other files."""

import codecs
import re
from collections.abc import Callable, Mapping
from os import environ
from pathlib import Path

PROVIDERS = "config.providers"
# Java trims these characters from a setting's value: all up to the space.
BLANKS = "".join(map(chr, range(0x21)))
_REFERENCE = re.compile(r"\$\{([^}:]+):([^}]+)\}")
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

Resolve = Callable[[str, str], str]


class PropertiesError(ValueError):
    """The error of an unreadable settings file. Its message names the file and the setting, but no value."""


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings of a file, with references resolved as in `load_properties`.

    Raises PropertiesError.
    """
    found, resolve = load_properties(path)
    return {name: resolve(name, value) for name, value in found.items()}


def load_properties(path: Path) -> tuple[dict[str, str], Resolve]:
    """Return a file's settings as written, and a function that resolves the references in a value.

    `${env:NAME}` is a variable of the environment. `${file:PATH}` is the content of a file without
    surrounding blanks. `${file:PATH:KEY}` is a value of another properties file. `${dir:PATH:FILE}` is the
    content of a file in a folder. As in Kafka's clients, `config.providers` may give these providers other
    names; this setting is not returned. Raises PropertiesError.
    """
    found = _parsed(path)
    declared = {
        name: found[name] for name in list(found) if name == PROVIDERS or name.startswith(f"{PROVIDERS}.")
    }
    references = _References(path, declared)
    return {name: value for name, value in found.items() if name not in declared}, references.resolve


def properties_text(settings: Mapping[str, str]) -> str:
    """Return settings as text that `read_properties` can read."""
    import javaproperties

    text: str = javaproperties.dumps(dict(settings), timestamp=False)
    return text


def _parsed(path: Path) -> dict[str, str]:
    import javaproperties  # executors get parsed settings, so they need not have it

    try:
        found: dict[str, str] = javaproperties.loads(_text(path.read_bytes()))
    except (OSError, ValueError) as error:
        reason = _reason(error)
    else:
        # Without the names of an INI file's sections, which Confluent's examples for Python have.
        return {
            name: value for name, value in found.items() if value or not re.fullmatch(r"\[[^\]]*\]", name)
        }
    # Not in the handler: the error's own context may quote the file.
    raise PropertiesError(f"the settings in {path} cannot be read: {reason}")


def _text(content: bytes) -> str:
    """Decode as ISO 8859-1, as Java does, unless the file has a byte order mark."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return content.decode(encoding)
    if b"\0" in content:
        raise PropertiesError("it has zero bytes. Save it as UTF-8 or ISO 8859-1")
    return content.decode("iso-8859-1")


class _References:
    """The providers of a file, by the names that its references use."""

    def __init__(self, path: Path, declared: Mapping[str, str]) -> None:
        self._path = path
        self._sources: dict[str, Callable[[str], str]] = dict(_SOURCES)
        self._unknown: dict[str, str] = {}
        for name in declared.get(PROVIDERS, "").split(","):
            self._declare(name.strip(BLANKS), declared.get(f"{PROVIDERS}.{name.strip(BLANKS)}.class", ""))

    def _declare(self, name: str, class_name: str) -> None:
        kind = class_name.strip(BLANKS).rpartition(".")[2]
        if kind in _CLASSES:
            self._sources[name] = _CLASSES[kind]
        elif name:
            self._sources.pop(name, None)
            # Joined lines may have added text to the class's name, so only an identifier is shown.
            self._unknown[name] = kind if kind.isidentifier() else "whose name is not valid"

    def resolve(self, name: str, value: str) -> str:
        """Return the value of setting `name` with its references replaced. Raises PropertiesError."""
        return _REFERENCE.sub(lambda reference: self._read(name, reference), value)

    def _read(self, name: str, reference: re.Match[str]) -> str:
        provider, where = reference.groups()
        if provider in self._unknown:
            raise PropertiesError(
                f"{name} in {self._path}: the provider {provider!r} of its value is a class of Java, "
                f"{self._unknown[provider]}. Refer to the environment or a file: "
                "${env:NAME}, ${file:PATH}"
            )
        if provider not in self._sources:
            return reference[0]  # Kafka, too, leaves it unchanged
        try:
            return self._sources[provider](where)
        except (KeyError, OSError, ValueError) as error:
            reason = _reason(error)
        raise PropertiesError(f"{name} in {self._path}: {provider}:{where} cannot be read: {reason}")


def _read_file_reference(where: str) -> str:
    """Return the content of PATH, or the value of KEY in PATH:KEY."""
    path, colon, key = where.partition(":")
    if not colon or Path(where).is_file():
        return Path(where).read_text().strip()
    return _parsed(Path(path))[key]


def _read_folder_reference(where: str) -> str:
    folder, _, name = where.partition(":")
    if Path(name).name != name:
        raise PropertiesError("FOLDER:FILE is needed")
    return (Path(folder) / name).read_text().strip()


_SOURCES: Mapping[str, Callable[[str], str]] = {
    "env": lambda name: environ[name],
    "file": _read_file_reference,
    "dir": _read_folder_reference,
    "directory": _read_folder_reference,
}
_CLASSES: Mapping[str, Callable[[str], str]] = {
    "EnvVarConfigProvider": _SOURCES["env"],
    "FileConfigProvider": _read_file_reference,
    "DirectoryConfigProvider": _read_folder_reference,
}


def _reason(error: Exception) -> str:
    """Return the error's text without quotes from the file, which may be secret."""
    if isinstance(error, PropertiesError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return f"it is not {error.encoding.upper()}"
    return "it is not set" if isinstance(error, KeyError) else type(error).__name__
