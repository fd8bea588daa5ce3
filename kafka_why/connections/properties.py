"""Files in the format of Java's properties, with references to the environment and to other files."""

import codecs
import re
from collections.abc import Callable, Mapping
from os import environ
from pathlib import Path

PROVIDERS = "config.providers"
# Java trims these characters from a setting's value: all up to the space.
BLANKS = "".join(map(chr, range(0x21)))
_REFERENCE = re.compile(r"\$\{(?P<provider>[^}:]+):(?P<where>[^}]+)\}")
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

Resolve = Callable[[str, str], str]
"""A function of a setting's name and value that returns the value with its references replaced."""


class PropertiesError(ValueError):
    """The error of an unreadable settings file. Its message names the file and the setting, but no value."""


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings of a file, with references resolved as in `load_properties`.

    Raises PropertiesError.
    """
    settings, resolve = load_properties(path)
    return {name: resolve(name, value) for name, value in settings.items()}


def load_properties(path: Path) -> tuple[dict[str, str], Resolve]:
    """Return a file's settings as written, and a function that resolves the references in a value.

    `${env:NAME}` is a variable of the environment. `${file:PATH}` is the content of a file, with surrounding
    blanks removed. `${file:PATH:KEY}` is a value of another properties file. `${dir:PATH:FILE}` is the
    content of a file in a folder. As in Kafka's clients, `config.providers` may give these providers other
    names. `config.providers` itself is not returned. Raises PropertiesError.
    """
    settings = _parse(path)
    provider_settings = {
        name: value
        for name, value in settings.items()
        if name == PROVIDERS or name.startswith(f"{PROVIDERS}.")
    }
    references = _References(path, provider_settings)
    others = {name: value for name, value in settings.items() if name not in provider_settings}
    return others, references.resolve


def properties_text(settings: Mapping[str, str]) -> str:
    """Return settings as text that `read_properties` can read."""
    import javaproperties

    text: str = javaproperties.dumps(dict(settings), timestamp=False)
    return text


def _parse(path: Path) -> dict[str, str]:
    """Return the settings of a file as written. Raises PropertiesError."""
    import javaproperties  # executors get parsed settings, so they need not have it

    try:
        settings: dict[str, str] = javaproperties.loads(_text(path.read_bytes()))
    except (OSError, ValueError) as error:
        reason = _reason(error)
    else:
        # Confluent's examples for Python are INI files. The names of their sections are not settings.
        return {
            name: value for name, value in settings.items() if value or not re.fullmatch(r"\[[^\]]*\]", name)
        }
    # Raised outside of the handler, because the caught error may quote the file.
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
    """A resolver of a file's references, with the providers that the file declares."""

    def __init__(self, path: Path, provider_settings: Mapping[str, str]) -> None:
        self._path = path
        self._providers: dict[str, Callable[[str], str]] = dict(_PROVIDERS_BY_NAME)
        # By provider without a counterpart here: its Java class, or a clause if the class must not be shown.
        self._unsupported: dict[str, str] = {}
        for item in provider_settings.get(PROVIDERS, "").split(","):
            name = item.strip(BLANKS)
            self._declare(name, provider_settings.get(f"{PROVIDERS}.{name}.class", ""))

    def _declare(self, name: str, class_name: str) -> None:
        """Add a provider. If its class has no counterpart here, each reference to the provider is an error.

        `name` is "" if the file declares no provider, or has a comma too many.
        """
        simple_class_name = class_name.strip(BLANKS).rpartition(".")[2]
        if simple_class_name in _PROVIDERS_BY_CLASS:
            self._providers[name] = _PROVIDERS_BY_CLASS[simple_class_name]
        elif name:
            self._providers.pop(name, None)
            # The error says "is a class of Java, " and this text. Only an identifier is shown, because a line
            # that ends with a backslash can append a secret to it.
            is_name = simple_class_name.isidentifier()
            self._unsupported[name] = simple_class_name if is_name else "whose name is not valid"

    def resolve(self, name: str, value: str) -> str:
        """Return the value of setting `name` with its references replaced. Raises PropertiesError."""
        return _REFERENCE.sub(lambda reference: self._read(name, reference), value)

    def _read(self, name: str, reference: re.Match[str]) -> str:
        """Return the value of a reference in setting `name`. Raises PropertiesError."""
        provider, where = reference["provider"], reference["where"]
        if provider in self._unsupported:
            raise PropertiesError(
                f"{name} in {self._path}: the provider {provider!r} of its value is a class of Java, "
                f"{self._unsupported[provider]}. Refer to the environment or a file: "
                "${env:NAME}, ${file:PATH}"
            )
        if provider not in self._providers:
            return reference[0]  # Kafka, too, leaves it unchanged
        try:
            return self._providers[provider](where)
        except (KeyError, OSError, ValueError) as error:
            reason = _reason(error)
        # Raised outside of the handler, because the caught error may quote the file.
        raise PropertiesError(f"{name} in {self._path}: {provider}:{where} cannot be read: {reason}")


def _read_file_reference(where: str) -> str:
    """Return the content of PATH, or the value of KEY in PATH:KEY."""
    path, colon, key = where.partition(":")
    if not colon or Path(where).is_file():
        return Path(where).read_text().strip()
    return _parse(Path(path))[key]


def _read_folder_reference(where: str) -> str:
    """Return the content of FILE in the folder PATH, for PATH:FILE."""
    folder, _, name = where.partition(":")
    if Path(name).name != name:  # it is empty, or a path to another folder
        raise PropertiesError("FOLDER:FILE is needed")
    return (Path(folder) / name).read_text().strip()


_PROVIDERS_BY_NAME: Mapping[str, Callable[[str], str]] = {
    "env": lambda name: environ[name],
    "file": _read_file_reference,
    "dir": _read_folder_reference,
    "directory": _read_folder_reference,
}
_PROVIDERS_BY_CLASS: Mapping[str, Callable[[str], str]] = {
    "EnvVarConfigProvider": _PROVIDERS_BY_NAME["env"],
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
