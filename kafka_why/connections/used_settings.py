"""The settings of a file while they are read: trimmed as Kafka trims them, and which of them are left."""

from collections.abc import Mapping

from kafka_why.connections.known_settings import KNOWN, shown_names
from kafka_why.connections.properties import BLANKS, Resolve

# In a value that may be a secret, a text with one, or a URL with credentials.
_MAY_BE_SECRET = ("-----", "@", "?", "=", ";", '"', "'")
_REFERENCE = "${"
JAVA_CLASS = "is a class of Java, and not all clients here are Java's"
_MAX_SHOWN_CHARS = 200


class ClientConfigError(ValueError):
    """The client settings cannot be used. The message names the file and the setting, and no secret."""


class UsedSettings:
    """Settings by their names. `unused` has those that were not read."""

    def __init__(self, values: Mapping[str, str], resolve: Resolve = lambda _, value: value) -> None:
        self._values = values
        self._resolve = resolve
        self._unread = set(values)

    def text(self, name: str) -> str | None:
        """Return the value of a setting, or None if it is not set. The value may be empty."""
        if name not in self._values:
            return None
        self._unread.discard(name)
        return self._resolve(name, self._values[name]).strip(BLANKS)

    def get(self, name: str) -> str | None:
        """Return the value of a setting, or None if it is not set or empty."""
        return self.text(name) or None

    def first(self, *names: str) -> tuple[str, str | None]:
        """Return the first of these settings that has a value, with its value. The settings after it stay
        unread. If none has a value, return the first name and None.
        """
        for name in names:
            if value := self.get(name):
                return name, value
        return names[0], None

    def is_shown(self, name: str) -> bool:
        """Return True if an error may quote the value of a setting that is no secret: no secret can have got
        into it.
        """
        return _REFERENCE not in self._values[name] and _is_harmless(self._values[name])

    def shown(self, name: str) -> str:
        """Return the value of a setting that is no secret as an error may have it: in quotes, as it is
        written in the file, unless a secret may have got into it.
        """
        value = self._values[name].strip(BLANKS)
        return repr(value) if _is_harmless(value) else "its value (not shown)"

    @property
    def unused(self) -> list[str]:
        """The names of settings that were not read, in order."""
        return shown_names(name for name in self._unread if self._values[name] or name in KNOWN)


def _is_harmless(value: str) -> bool:
    return len(value) <= _MAX_SHOWN_CHARS and not any(mark in value for mark in _MAY_BE_SECRET)
