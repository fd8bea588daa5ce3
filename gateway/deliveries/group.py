"""What is counted of one share group. No IO and no clock here."""

from collections.abc import Iterator

from gateway.deliveries.held import Place, Room
from gateway.deliveries.suspects import Suspects
from kafka_why.contract.deliveries import Counted

ROWS_MAX = 1_000
"""Partitions of members that are counted apart, of one group in one minute. The others are added up."""
DEFAULT_LIMIT = 5
"""Kafka's default of group.share.delivery.count.limit."""


class Group:
    """The counts since they were taken last, and the suspects.

    `limit` is `share.delivery.count.limit`, which the brokers said if `is_limit_known`. `lock_ms` is 0 until
    a broker has named it. `sessions` are the connections of members.
    """

    __slots__ = (
        "_others", "_room", "_rows", "_since_ms", "group_id", "is_limit_known", "limit", "limit_asked_ms",
        "lock_ms", "sessions", "suspects",
    )  # fmt: skip

    def __init__(self, group_id: str, rows: Room, suspects: Room, now_ms: int) -> None:
        self.group_id = group_id
        self.limit = DEFAULT_LIMIT
        self.is_limit_known = False
        self.limit_asked_ms: int | None = None
        self.lock_ms = 0
        self.sessions = 0
        self.suspects = Suspects(suspects)
        self._rows: dict[tuple[bytes, int, str], Counted] = {}
        self._others: Counted | None = None
        self._room = rows
        self._since_ms = now_ms

    def row(self, place: Place, member_id: str) -> Counted:
        """Where to count what this member does with this partition."""
        key = (*place, member_id)
        found = self._rows.get(key)
        if found is not None:
            return found
        if len(self._rows) < ROWS_MAX and self._room.take():
            self._rows[key] = row = Counted(partition=place[1], member_id=member_id)
            return row
        if self._others is None:
            self._others = Counted()
        return self._others

    def take(self, now_ms: int) -> "Taken | None":
        """Take the counts out, None if there are none."""
        if not self._rows and self._others is None:
            self._since_ms = now_ms
            return None
        taken = Taken(self._rows, self._others, now_ms - self._since_ms)
        self._room.give(len(self._rows))
        self._rows, self._others, self._since_ms = {}, None, now_ms
        return taken

    def clear(self) -> None:
        """Forget all."""
        self.take(self._since_ms)
        self.suspects.clear()


class Taken:
    """The counts of a group in some time."""

    __slots__ = ("_rows", "others", "took_ms")

    def __init__(
        self, rows: dict[tuple[bytes, int, str], Counted], others: Counted | None, took_ms: int
    ) -> None:
        self._rows = rows
        self.others = others
        self.took_ms = took_ms

    def rows(self, most: int) -> Iterator[tuple[bytes, Counted]]:
        """Topics' ids and rows, those with most deliveries first. Those beyond `most` go to the others."""
        ordered = sorted(self._rows.items(), key=lambda item: -item[1].delivered - item[1].acknowledged)
        for _, row in ordered[most:]:
            if self.others is None:
                self.others = Counted()
            self.others.add(row)
        return ((key[0], row) for key, row in ordered[:most])
