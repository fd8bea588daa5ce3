"""Which requests go into which record: the requests of a slot that wait while the partition's last records
are under way make the slot's next record. See `kafka_why.contract.pack`.

A partition has at most one round of records under way, of each slot one. So the order of a group's requests
in the log is the order in which they were added, whatever a producer does with several records. Slots wait
for each other, because librdkafka's idempotent producer polls without a pause while records wait for the
five writes that it may have under way (decision 15).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from clients.pending import PendingRequest
from kafka_why.contract.pack import PACK_MAX_BYTES, PACK_MAX_REQUESTS, pack, pack_key, slot_of
from kafka_why.partitioner import REMEMBERED_MAX_CHARACTERS, partition_of

_GROUPS_REMEMBERED = 20_000

_Line: TypeAlias = deque[tuple[PendingRequest, bytes]]


class Place(NamedTuple):
    """Where the requests of a group go: a partition of the requests topic, and a slot of packs."""

    partition: int
    slot: int


def place_of(group_id: str, partitions: int) -> Place:
    """The place of a group's requests."""
    if len(group_id) > REMEMBERED_MAX_CHARACTERS:
        return _place_of(group_id, partitions)
    return _remembered(group_id, partitions)


def _place_of(group_id: str, partitions: int) -> Place:
    return Place(partition_of(group_id, partitions), slot_of(group_id))


_remembered = lru_cache(_GROUPS_REMEMBERED)(_place_of)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A record to write, and the requests in it."""

    place: Place
    key: bytes
    value: bytes
    requests: Sequence[PendingRequest]


class Packer:
    """The encoded requests that wait to be written, by their places. Not thread-safe."""

    def __init__(self, max_requests: int = PACK_MAX_REQUESTS, max_bytes: int = PACK_MAX_BYTES) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.packs = True
        """Whether requests are packed. If not, each is a record without the first line of a pack."""
        self._waiting: dict[int, dict[Place, _Line]] = {}
        """By partition: the requests of each slot, the slots in the order in which they began to wait."""
        self._under_way: dict[int, int] = {}
        """By partition: the number of records under way."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._waiting and not self._under_way

    def add(self, place: Place, request: PendingRequest, message: bytes) -> None:
        """Add a request at the end of its place's line. `message` is the encoded request."""
        lines = self._waiting.setdefault(place.partition, {})
        lines.setdefault(place, deque()).append((request, message))

    def next_records(self) -> list[Written]:
        """The records to write now, at most one for each place. They are under way until `written`.

        Requests that are no longer wanted are left out.
        """
        records: list[Written] = []
        for partition in self._waiting.keys() - self._under_way.keys():
            lines = self._waiting[partition]
            found = [record for place in [*lines] if (record := self._next(place, lines)) is not None]
            if found:
                self._under_way[partition] = len(found)
                records += found
            if not lines:
                del self._waiting[partition]
        return records

    def written(self, place: Place) -> None:
        """The place's write has ended, with or without success."""
        left = self._under_way.pop(place.partition) - 1
        if left:
            self._under_way[place.partition] = left

    def _next(self, place: Place, lines: dict[Place, _Line]) -> Written | None:
        """The next record of a place, None if none of its requests is wanted."""
        line = lines[place]
        requests: list[PendingRequest] = []
        messages: list[bytes] = []
        left_bytes = self._max_bytes
        while line and len(requests) < (self._max_requests if self.packs else 1):
            request, message = line[0]
            if not request.is_wanted():
                line.popleft()
                continue
            left_bytes -= len(message) + 1
            if left_bytes < 0 and requests:
                break
            line.popleft()
            requests.append(request)
            messages.append(message)
            if left_bytes < 0:
                break
        if not line:
            del lines[place]
        if not requests:
            return None
        if left_bytes < 0 or not self.packs:  # one request, which may be larger than a pack may be
            key = requests[0].request.group_id.encode()
            return Written(place, key, messages[0], requests)
        return Written(place, pack_key(place.slot), pack(messages), requests)
