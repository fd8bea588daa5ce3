"""What is counted of one share group. No IO and no clock here."""

from collections.abc import Iterator

from gateway.deliveries.held import Place, Range, Room
from kafka_why.contract.deliveries import ACCEPTED, GONE, OPEN, REJECTED, Counted, Suspect

# Records of one group that may be poison. No IO and no clock here.


SUSPECTS_MAX = 1_000
"""Of one group. The oldest ones are forgotten."""
RANGE_MAX = 1_000
"""So many offsets of one range are looked at, the first ones."""
RELEASED_BY_MAX = 4

Key = tuple[bytes, int, int]
"""The id of a topic, a partition, an offset."""


def is_suspected(one: Suspect) -> bool:
    """Whether a record is probably poison: a member rejected it, several members released it, or its last
    delivery came to nothing.
    """
    if one.outcome == ACCEPTED:
        return False
    return one.outcome in (REJECTED, GONE) or len(one.released_by) > 1


class Suspects:
    """What is known of offsets that were released or rejected, or whose last delivery has ended."""

    __slots__ = ("_awaited", "_changed", "_known", "_room", "found")

    def __init__(self, room: Room) -> None:
        self._known: dict[Key, Suspect] = {}
        self._changed: dict[Key, None] = {}
        self._awaited: set[Key] = set()
        """Those that have been given back, and will be delivered again."""
        self._room = room
        self.found = 0
        """How many became suspected, since the start."""

    def acquired(self, place: Place, one: Range) -> None:
        """It was delivered again, so it was not archived, whatever was inferred."""
        for key in self._known_in(place, one):
            suspect = self._known[key]
            was_suspected = is_suspected(suspect)
            suspect.deliveries = max(suspect.deliveries, one.delivery_count)
            suspect.outcome = OPEN
            self._awaited.discard(key)
            self._note(key, was_suspected=was_suspected)

    def accepted(self, place: Place, one: Range) -> None:
        """It was processed in the end."""
        for key in self._known_in(place, one):
            if is_suspected(self._known[key]):
                self._known[key].outcome = ACCEPTED
                self._awaited.discard(key)
                self._note(key, was_suspected=True)
            else:
                self._forget(key)
                self._room.give()

    def ended(self, what: str, place: Place, one: Range, member_id: str, limit: int) -> None:
        """A delivery has ended: the member `released` or `rejected` it, or its lock or session has `ended`,
        which means something only of the last delivery.
        """
        is_last = one.delivery_count >= limit
        if what == "ended" and not is_last:
            return
        for key, suspect in self._each(place, one):
            was_suspected = is_suspected(suspect)
            suspect.is_last = is_last
            suspect.outcome = GONE if is_last else OPEN
            if is_last or what == "rejected":
                self._awaited.discard(key)
            else:
                self._awaited.add(key)
            if what == "rejected":
                suspect.rejected_by, suspect.outcome = member_id, REJECTED
            elif what == "released":
                suspect.releases += 1
                if member_id not in suspect.released_by and len(suspect.released_by) < RELEASED_BY_MAX:
                    suspect.released_by += (member_id,)
            self.found += is_suspected(suspect) and not was_suspected
            self._note(key, was_suspected=was_suspected)

    def learn(self, limit: int) -> None:
        """The brokers have said the limit: what was given back after so many deliveries has gone."""
        for key in [key for key in self._awaited if self._known[key].deliveries >= limit]:
            suspect = self._known[key]
            was_suspected = is_suspected(suspect)
            suspect.is_last, suspect.outcome = True, GONE
            self._awaited.discard(key)
            self.found += not was_suspected
            self._note(key, was_suspected=was_suspected)

    def changed(self, most: int) -> list[tuple[Key, Suspect]]:
        """What changed of suspects since the last call. There are at most so many, the latest ones."""
        told = [(key, self._known[key]) for key in self._changed]
        self._changed.clear()
        return told[-most:]

    def clear(self) -> None:
        """Forget all."""
        self._room.give(len(self._known))
        self._known.clear()
        self._changed.clear()
        self._awaited.clear()

    def _note(self, key: Key, *, was_suspected: bool) -> None:
        if was_suspected or is_suspected(self._known[key]):
            self._changed.pop(key, None)
            self._changed[key] = None

    def _known_in(self, place: Place, one: Range) -> list[Key]:
        """Nothing is known of what is delivered for the first time."""
        if not self._known or one.delivery_count <= 1:
            return []
        if one.offsets < len(self._known):
            keys: list[Key] = [(*place, offset) for offset in range(one.first, one.last + 1)]
            return [key for key in keys if key in self._known]
        return [key for key in self._known if key[:2] == place and one.first <= key[2] <= one.last]

    def _each(self, place: Place, one: Range) -> Iterator[tuple[Key, Suspect]]:
        for offset in range(one.first, min(one.last, one.first + RANGE_MAX - 1) + 1):
            key: Key = (*place, offset)
            suspect = self._known.pop(key, None)
            if suspect is None:
                suspect = Suspect(partition=place[1], offset=offset)
                if not self._has_place():
                    continue
            self._known[key] = suspect
            suspect.deliveries = max(suspect.deliveries, one.delivery_count)
            yield key, suspect

    def _has_place(self) -> bool:
        if len(self._known) < SUSPECTS_MAX and self._room.take():
            return True
        if not self._known:
            return False
        self._forget(next(iter(self._known)))
        return True

    def _forget(self, key: Key) -> None:
        del self._known[key]
        self._changed.pop(key, None)
        self._awaited.discard(key)


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
