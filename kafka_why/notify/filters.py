"""Selects the messages that a receiver wants."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from kafka_why.notify.messages import KINDS, Message


@dataclass(frozen=True, slots=True)
class Filter:
    """Patterns of group ids are the shell's: `*`, `?`, `[...]`; case counts. No pattern in `groups` means all
    groups. Alarms of the coordinator are of no group. What lasted less than `least_ms` is not sent. What is
    still wrong is sent once it has lasted `least_ms`.
    """

    groups: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    kinds: frozenset[str] = frozenset(KINDS)
    least_ms: int = 0

    def wants(self, message: Message, now_ms: int) -> bool:
        """Return True if this message is to be sent. What lasts has lasted until `now_ms`."""
        if message.kind not in self.kinds or not self._wants_group(message.group):
            return False
        return (now_ms if message.ended_ms is None else message.ended_ms) - message.began_ms >= self.least_ms

    def _wants_group(self, group: str | None) -> bool:
        if group is None:
            return True
        if any(fnmatchcase(group, pattern) for pattern in self.without):
            return False
        return not self.groups or any(fnmatchcase(group, pattern) for pattern in self.groups)
