"""Turns each trouble into two messages: one when it has begun, one when it has ended."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from kafka_why.notify.messages import Link, Message, Status, page_of, shown

Key: TypeAlias = tuple[str, str]
"""The kind, and whom it is about: a group, or the beginning of an alarm's sentence."""


class Trouble(NamedTuple):
    """Something that is wrong now. `group` is None for an alarm. `since_ms` is None if that is not known."""

    kind: str
    subject: str
    group: str | None
    sentence: str
    since_ms: int | None = None

    @property
    def key(self) -> Key:
        return self.kind, self.subject


@dataclass(slots=True)
class _Episode:
    """`is_seen`: it was found in this process. `told_ms` is the time of its last message, None before."""

    trouble: Trouble
    began_ms: int
    is_seen: bool
    told_ms: int | None


class Episodes:
    """Follows what is wrong from poll to poll. For one thread.

    `open_before` is what receivers had been told when the process before this one ended. Of that, what was
    not found again has ended only when `settled_ms` is over, because a process that has just started does not
    see what takes time to be seen. `is_wanted` says whether a message is sent at a time. `again_ms` is the
    time after which BEGAN is sent again while it lasts, None for never.
    """

    def __init__(
        self,
        open_before: Iterable[Message],
        *,
        settled_ms: int,
        is_wanted: Callable[[Message, int], bool],
        link: Link,
        again_ms: int | None = None,
    ) -> None:
        self._settled_ms = settled_ms
        self._is_wanted = is_wanted
        self._link = link
        self._again_ms = again_ms
        self._open: dict[Key, _Episode] = {}
        for told in open_before:
            trouble = Trouble(told.kind, told.subject, told.group, told.sentence, told.began_ms)
            self._open[trouble.key] = _Episode(trouble, told.began_ms, is_seen=False, told_ms=told.began_ms)

    def update(self, found: Iterable[Trouble], now_ms: int) -> list[Message]:
        """Take what is wrong now. Return what is to be told."""
        now = {trouble.key: trouble for trouble in found}
        messages = [message for key in list(self._open) for message in self._ended(key, now, now_ms)]
        for key, trouble in now.items():
            episode = self._open.get(key)
            if episode is None:
                began_ms = now_ms if trouble.since_ms is None else trouble.since_ms
                episode = self._open[key] = _Episode(trouble, began_ms, is_seen=True, told_ms=None)
            episode.trouble, episode.is_seen = trouble, True
            if self._is_due(episode, now_ms):
                message = self._message(episode, Status.BEGAN, now_ms)
                if self._is_wanted(message, now_ms):
                    episode.told_ms = now_ms
                    messages.append(message)
        return messages

    def _is_due(self, episode: _Episode, now_ms: int) -> bool:
        if episode.told_ms is None:
            return True
        return self._again_ms is not None and now_ms - episode.told_ms >= self._again_ms

    def _ended(self, key: Key, now: dict[Key, Trouble], now_ms: int) -> list[Message]:
        episode = self._open[key]
        if key in now or not (episode.is_seen or now_ms >= self._settled_ms):
            return []
        del self._open[key]
        return [] if episode.told_ms is None else [self._message(episode, Status.ENDED, now_ms)]

    def _message(self, episode: _Episode, status: Status, now_ms: int) -> Message:
        trouble = episode.trouble
        return Message(
            id=f"{trouble.kind}:{trouble.subject}:{episode.began_ms}",
            kind=trouble.kind,
            status=status,
            subject=trouble.subject,
            group=trouble.group,
            sentence=shown(trouble.sentence),
            began_ms=episode.began_ms,
            ended_ms=now_ms if status is Status.ENDED else None,
            page=page_of(trouble.group, self._link),
        )
