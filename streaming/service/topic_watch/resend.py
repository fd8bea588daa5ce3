"""When a record for a group is due again. No IO, no clock."""

from collections.abc import Container
from typing import Generic, TypeVar

from msgspec import Struct

# A group that still needs its record gets it again after a pause, which doubles each time.
FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 3_600.0

Content = TypeVar("Content")


class _Sent(Struct, Generic[Content], frozen=True):
    """The last record for a group, when it was sent, and the time from which it is due again."""

    content: Content
    at_s: float
    again_at_s: float
    pause_s: float


class Resend(Generic[Content]):
    """The last record of each group, and so whether the next one is due.

    Other content is due `apart_s` after the last record, the same content after a pause. The clock of `now_s`
    (seconds) never goes back.
    """

    def __init__(self, apart_s: float = 0.0) -> None:
        self._apart_s = apart_s
        self._sent: dict[str, _Sent[Content]] = {}

    def keep(self, group_ids: Container[str], now_s: float) -> None:
        """Forget the other groups, which need no record, once another record for them is due at once."""
        self._sent = {
            group_id: sent
            for group_id, sent in self._sent.items()
            if group_id in group_ids or now_s < sent.at_s + self._apart_s
        }

    def is_due(self, group_id: str, content: Content, now_s: float) -> bool:
        last = self._sent.get(group_id)
        if last is None:
            return True
        return now_s >= (last.again_at_s if last.content == content else last.at_s + self._apart_s)

    def sent(self, group_id: str, content: Content, now_s: float) -> None:
        """The group gets a record of this content now."""
        last = self._sent.get(group_id)
        pause_s = FIRST_PAUSE_S
        if last is not None and last.content == content:
            pause_s = min(2 * last.pause_s, LONGEST_PAUSE_S)
        self._sent[group_id] = _Sent(content, now_s, now_s + pause_s, pause_s)

    def not_sent(self, group_id: str) -> None:
        """The group's last record could not be sent, so the next one is due at once."""
        self._sent.pop(group_id, None)
