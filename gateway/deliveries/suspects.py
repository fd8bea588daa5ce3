"""Records of one group that may be poison. No IO and no clock here."""

from collections.abc import Iterator

from gateway.deliveries.held import Place, Range, Room
from kafka_why.contract.deliveries import ACCEPTED, GONE, OPEN, REJECTED, Suspect

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
