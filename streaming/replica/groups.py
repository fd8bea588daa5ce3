"""The groups of a partition in a replica's memory. A few are decoded, the others stay encoded."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from checkpoints import codec
from streaming.query.handling import DecodedGroup

DECODED_MAX = 4_000
"""The maximum number of decoded groups. Beyond it, the least recently used one is encoded."""

DecodeGroup = Callable[[str, codec.StoredGroup | None], DecodedGroup]


class ReplicaGroups:
    """The groups by id. `decode_group` decodes one.

    The caller has to call `touched` after each use of a group from `decoded` or `due`.
    """

    def __init__(
        self,
        entries: dict[str, codec.StoredGroup],
        decode_group: DecodeGroup,
        *,
        decoded_max: int = DECODED_MAX,
    ) -> None:
        self._entries = entries
        self._decode_group = decode_group
        self._decoded_max = decoded_max
        self._decoded: OrderedDict[str, DecodedGroup] = OrderedDict()
        # (time, group id) for each group with a deadline, at a time that is not later than the deadline.
        self._due = [
            (entry.next_deadline_ms, group_id)
            for group_id, entry in entries.items()
            if entry.next_deadline_ms is not None
        ]
        heapify(self._due)
        self._scheduled_ms = {group_id: at_ms for at_ms, group_id in self._due}

    def __len__(self) -> int:
        return len(self._entries) + len(self._decoded)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._decoded or group_id in self._entries

    def decoded(self, group_id: str) -> DecodedGroup:
        """Return the group, decoded. An unknown group is empty."""
        group = self._decoded.get(group_id)
        if group is None:
            group = self._decoded[group_id] = self._decode_group(group_id, self._entries.pop(group_id, None))
            if len(self._decoded) > self._decoded_max:
                self._encode_group(*self._decoded.popitem(last=False))
        else:
            self._decoded.move_to_end(group_id)
        return group

    def due(self, until_ms: int) -> Iterator[DecodedGroup]:
        """Yield the groups that may have a deadline until this time.

        The caller must be done with a group before taking the next, which may encode it.
        """
        found = []
        while self._due and self._due[0][0] <= until_ms:
            at_ms, group_id = heappop(self._due)
            # Only a group's scheduled time counts. The heap may also have obsolete later times.
            if self._scheduled_ms.get(group_id) == at_ms:
                del self._scheduled_ms[group_id]
                if group_id in self:
                    found.append(group_id)
        for group_id in found:
            yield self.decoded(group_id)

    @property
    def next_due_ms(self) -> int | None:
        """A time in ms before which no group has a deadline, None if no group has one."""
        return self._due[0][0] if self._due else None

    def touched(self, group: DecodedGroup) -> None:
        """Update the scheduled deadline of the group."""
        at_ms, group_id = group.timeline.due_ms, group.timeline.group_id
        if at_ms is None:
            return
        scheduled_ms = self._scheduled_ms.get(group_id)
        if scheduled_ms is None or at_ms < scheduled_ms:
            self._scheduled_ms[group_id] = at_ms
            heappush(self._due, (at_ms, group_id))

    def encode_all(self) -> None:
        """Encode all groups."""
        while self._decoded:
            self._encode_group(*self._decoded.popitem(last=False))

    def _encode_group(self, group_id: str, decoded: DecodedGroup) -> None:
        group = decoded.timeline.group
        if group is not None:
            self._entries[group_id] = codec.encode_group(group, decoded.timeline.next_deadline_ms())
