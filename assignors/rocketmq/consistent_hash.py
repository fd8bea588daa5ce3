"""CONSISTENT_HASH: a client that joins or leaves moves only its own queues; balance is not guaranteed.

Source: AllocateMessageQueueConsistentHash.java, ConsistentHashRouter.java.
"""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from assignors.rocketmq.api import AbstractAllocateMessageQueueStrategy, IllegalArgumentException
from kafka_why.contract.rocketmq.queues import MessageQueue

DEFAULT_VIRTUAL_NODE_COUNT = 10


def md5_hash(key: str) -> int:
    """The first four bytes of the MD5 of the UTF-8 text, as an unsigned number (big endian)."""
    # A lone surrogate has no UTF-8 encoding; Java writes "?" instead.
    digest = hashlib.md5(key.encode(errors="replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


class HashRing:
    """Points of clients on a circle of hashes; a key belongs to the first point at or after its own hash."""

    def __init__(
        self, client_ids: Iterable[str], virtual_node_count: int, hash_function: Callable[[str], int]
    ) -> None:
        self._hash = hash_function
        self._owners: dict[int, str] = {}
        points_of: Counter[str] = Counter()
        for client_id in client_ids:
            # For an id that stands twice, the index continues where it stopped, less the points it lost.
            first = points_of[client_id]
            for replica in range(first, first + virtual_node_count):
                point = hash_function(f"{client_id}-{replica}")
                if point in self._owners:
                    points_of[self._owners[point]] -= 1
                self._owners[point] = client_id
                points_of[client_id] += 1
        self._points = sorted(self._owners)

    def owner(self, key: str) -> str | None:
        """Return the client that `key` belongs to; None on an empty ring."""
        if not self._points:
            return None
        place = bisect_left(self._points, self._hash(key))
        return self._owners[self._points[place % len(self._points)]]


class AllocateMessageQueueConsistentHash(AbstractAllocateMessageQueueStrategy):
    """A queue belongs to the owner of its text on a ring with `virtual_node_count` points per client.

    Without points no client gets a queue. Two clients with the same id both get all queues of that id.
    """

    name: Final = "CONSISTENT_HASH"

    def __init__(self, virtual_node_count: int = DEFAULT_VIRTUAL_NODE_COUNT) -> None:
        if virtual_node_count < 0:
            raise IllegalArgumentException(f"illegal virtualNodeCnt :{virtual_node_count}")
        self._virtual_node_count = virtual_node_count

    def share(
        self, consumer_group: str, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        ring = HashRing(client_ids, self._virtual_node_count, md5_hash)
        return [queue for queue in queues if ring.owner(str(queue)) == own_cid]
