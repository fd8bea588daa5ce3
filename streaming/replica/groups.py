"""The groups of a partition in a replica's memory. The recently used ones are decoded, the others encoded."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from checkpoints import codec
from streaming.query.handling import DecodedGroup


class DecodedLimits(NamedTuple):
    """The limits of decoded groups. Above `max_bytes`, the least recently used ones are encoded, but
    `min_groups` always stay decoded.

    Decoding a group for each request doubles the processor time. With 20,000 groups of one member, a request
    takes 18 us if all stay decoded. If only 4,000 do, it takes 36 us, and 35 MiB are saved.
    """

    max_bytes: int = 512 * 1024 * 1024
    min_groups: int = 16


DECODED_LIMITS = DecodedLimits()


DecodeGroup = Callable[[str, codec.StoredGroup | None], DecodedGroup]


class ReplicaGroups:
    """The groups by id. `decode_group` decodes a stored group, or returns an empty one for None.

    The caller has to call `end_use` for a group from `decoded` or `due` after each use.
    """

    def __init__(
        self,
        entries: dict[str, codec.StoredGroup],
        decode_group: DecodeGroup,
        *,
        limits: DecodedLimits = DECODED_LIMITS,
    ) -> None:
        self._entries = entries  # the encoded groups
        self._decode_group = decode_group
        self._limits = limits
        self._decoded_bytes = 0  # an estimate of the memory of the decoded groups
        self._decoded: OrderedDict[str, DecodedGroup] = OrderedDict()  # the least recently used first
        # A heap of (time, group id). The time is not later than the group's next deadline.
        self._schedule = [
            (entry.next_deadline_ms, group_id)
            for group_id, entry in entries.items()
            if entry.next_deadline_ms is not None
        ]
        heapify(self._schedule)
        # By group id, its earliest time in the heap. The heap may have later, obsolete times, too.
        self._scheduled_ms = {group_id: at_ms for at_ms, group_id in self._schedule}

    def __len__(self) -> int:
        return len(self._entries) + len(self._decoded)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._decoded or group_id in self._entries

    def decoded(self, group_id: str) -> DecodedGroup:
        """Return the group, decoded. For a new group id, return a `DecodedGroup` without a group."""
        group = self._decoded.get(group_id)
        if group is None:
            group = self._decoded[group_id] = self._decode_group(group_id, self._entries.pop(group_id, None))
            self._limit_memory(group)
        else:
            self._decoded.move_to_end(group_id)
        return group

    def due(self, until_ms: int) -> Iterator[DecodedGroup]:
        """Yield the groups that may have a deadline at `until_ms` or earlier.

        The caller must call `end_use` for a group before it takes the next one, because decoding the next one
        may encode it.
        """
        due_ids = []
        while self._schedule and self._schedule[0][0] <= until_ms:
            at_ms, group_id = heappop(self._schedule)
            if self._scheduled_ms.get(group_id) == at_ms:
                del self._scheduled_ms[group_id]
                if group_id in self:
                    due_ids.append(group_id)
        for group_id in due_ids:
            yield self.decoded(group_id)

    @property
    def next_due_ms(self) -> int | None:
        """A time in ms before which no group has a deadline, or None if no group has one."""
        return self._schedule[0][0] if self._schedule else None

    def end_use(self, group: DecodedGroup) -> None:
        """Schedule the group's next deadline and count its memory after its use, or drop it if it no longer
        exists.
        """
        due_ms, group_id = group.timeline.due_ms, group.timeline.group_id
        if group.timeline.group is None:
            self._remove_decoded(group_id, self._decoded.pop(group_id))
        else:
            self._limit_memory(group)
        if due_ms is None:
            return
        scheduled_ms = self._scheduled_ms.get(group_id)
        if scheduled_ms is None or due_ms < scheduled_ms:
            self._scheduled_ms[group_id] = due_ms
            heappush(self._schedule, (due_ms, group_id))

    def _limit_memory(self, group: DecodedGroup) -> None:
        """Count the memory of the group in use. Encode the least recently used groups while the decoded ones
        exceed the limits.
        """
        memory_bytes = group.timeline.memory_bytes
        self._decoded_bytes += memory_bytes - group.counted_bytes
        group.counted_bytes = memory_bytes
        limits = self._limits
        while self._decoded_bytes > limits.max_bytes and len(self._decoded) > limits.min_groups:
            self._remove_decoded(*self._decoded.popitem(last=False))

    def encode_all(self) -> None:
        """Encode all groups."""
        while self._decoded:
            self._remove_decoded(*self._decoded.popitem(last=False))

    def _remove_decoded(self, group_id: str, decoded: DecodedGroup) -> None:
        """Encode a group that was taken out of `_decoded`, unless it does not exist."""
        self._decoded_bytes -= decoded.counted_bytes
        group = decoded.timeline.group
        if group is not None:
            self._entries[group_id] = codec.encode_group(group, decoded.timeline.next_deadline_ms())
