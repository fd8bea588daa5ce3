"""RocketMQ's allocation strategies, and the rule by which a broker assigns queues to clients in pop mode."""

import hashlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

from assignors.rocketmq.api import (
    AllocateMessageQueueStrategy,
    IllegalArgumentException,
    check,
)
from kafka_why.contract.protocols.subscriptions import java_order
from kafka_why.contract.rocketmq.requests import MessageQueue, averagely, averagely_by_circle

# AVG and AVG_BY_CIRCLE: shares whose sizes differ by at most one.
#
# Two clients with the same id both get the share of the id's first index, so no client consumes the share of
# the second. Source: AllocateMessageQueueAveragely.java, AllocateMessageQueueAveragelyByCircle.java.


class AllocateMessageQueueAveragely(AllocateMessageQueueStrategy):
    """Each client gets one run of queues; the first clients get a longer run. RocketMQ's default."""

    name: Final = "AVG"

    def share(
        self, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return averagely(queues, client_ids, own_cid)


class AllocateMessageQueueAveragelyByCircle(AllocateMessageQueueStrategy):
    """The clients, in a circle, get the queues one by one."""

    name: Final = "AVG_BY_CIRCLE"

    def share(
        self, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return averagely_by_circle(queues, client_ids, own_cid)


# MACHINE_ROOM: only the queues of some rooms. Source: AllocateMessageQueueByMachineRoom.java.


class AllocateMessageQueueByMachineRoom(AllocateMessageQueueStrategy):
    """A division of the queues of the machine rooms in `consumeridcs`. No client gets the other queues.

    A queue's room is in the name of its broker, `room@name`. All clients get a share, whatever their room. If
    the queues do not divide evenly, the extra ones are from the *end* of the list: of 5 queues, 2 clients get
    0, 1, 4 and 2, 3.
    """

    name: Final = "MACHINE_ROOM"

    def __init__(self, consumeridcs: Collection[str]) -> None:
        self._consumeridcs = consumeridcs

    def share(
        self, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        index = client_ids.index(own_cid)
        assignable = [queue for queue in queues if self._is_in_room(queue.broker_name)]
        quota, extra = divmod(len(assignable), len(client_ids))
        share = assignable[index * quota : (index + 1) * quota]
        if index < extra:
            share.append(assignable[index + quota * len(client_ids)])
        return share

    def _is_in_room(self, broker_name: str) -> bool:
        """Return True if the broker is in one of the rooms in `consumeridcs`."""
        # Java's split drops empty parts at the end, so "room@name@" has two parts and "room@" has one.
        parts = broker_name.rstrip("@").split("@")
        return len(parts) == 2 and parts[0] in self._consumeridcs


# CONSISTENT_HASH: a client that joins or leaves moves only its own queues; balance is not guaranteed.
#
# Source: AllocateMessageQueueConsistentHash.java, ConsistentHashRouter.java.


DEFAULT_VIRTUAL_NODE_COUNT = 10


def md5_hash(key: str) -> int:
    """Return the first four bytes of the MD5 of the UTF-8 text, as an unsigned number (big endian)."""
    # A lone surrogate has no UTF-8 encoding; Java writes "?" instead.
    digest = hashlib.md5(key.encode(errors="replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


class HashRing:
    """A circle of hashes with points of clients. A key belongs to the first point at or after its hash."""

    def __init__(
        self, client_ids: Iterable[str], virtual_node_count: int, hash_function: Callable[[str], int]
    ) -> None:
        self._hash = hash_function
        self._owners: dict[int, str] = {}
        points_of: Counter[str] = Counter()
        for client_id in client_ids:
            # As in RocketMQ, an id that is in the list again gets more points. They are numbered from the
            # number of points that it has now, which does not count points that went to other ids.
            first = points_of[client_id]
            for replica in range(first, first + virtual_node_count):
                point = hash_function(f"{client_id}-{replica}")
                if point in self._owners:  # equal hashes: the point goes to the later client
                    points_of[self._owners[point]] -= 1
                self._owners[point] = client_id
                points_of[client_id] += 1
        self._points = sorted(self._owners)

    def owner(self, key: str) -> str | None:
        """Return the client that `key` belongs to; None on an empty ring."""
        if not self._points:
            return None
        index = bisect_left(self._points, self._hash(key))
        return self._owners[self._points[index % len(self._points)]]


class AllocateMessageQueueConsistentHash(AllocateMessageQueueStrategy):
    """A rule by which each queue, as text, is a key of a `HashRing` of the clients.

    The ring has `virtual_node_count` points per client. Without points no client gets a queue. Two clients
    with the same id both get all queues of that id.
    """

    name: Final = "CONSISTENT_HASH"

    def __init__(self, virtual_node_count: int = DEFAULT_VIRTUAL_NODE_COUNT) -> None:
        if virtual_node_count < 0:
            raise IllegalArgumentException(f"illegal virtualNodeCnt :{virtual_node_count}")
        self._virtual_node_count = virtual_node_count

    def share(
        self, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        ring = HashRing(client_ids, self._virtual_node_count, md5_hash)
        return [queue for queue in queues if ring.owner(str(queue)) == own_cid]


# MACHINE_ROOM_NEARBY: a room's queues go to its own clients. Source: AllocateMachineRoomNearby.java.


InRoom = TypeVar("InRoom", MessageQueue, str)


class AllocateMachineRoomNearby(AllocateMessageQueueStrategy):
    """A wrapper that applies its inner strategy to each machine room: to the room's queues and its clients.

    The queues of a room without clients are shared among all clients, room by room, so the last clients may
    get no queue of any such room. `room_of_broker` and `room_of_client` return "" or None if a room is
    unknown, which is an error.
    """

    def __init__(
        self,
        strategy: AllocateMessageQueueStrategy,
        room_of_broker: Callable[[MessageQueue], str | None],
        room_of_client: Callable[[str], str | None],
    ) -> None:
        self.name = f"MACHINE_ROOM_NEARBY-{strategy.name}"
        self._strategy = strategy
        self._room_of_broker = room_of_broker
        self._room_of_client = room_of_client

    def share(
        self, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the client's share of its own room's queues first, then its shares of the rooms without
        clients. Raises the inner strategy's errors.
        """
        queues_in = _by_room(queues, self._room_of_broker, "mq")
        clients_in = _by_room(client_ids, self._room_of_client, "consumer id")
        own_room = self._room_of_client(own_cid)
        rooms_without_clients = sorted(queues_in.keys() - clients_in.keys(), key=java_order)
        divisions = [(queues_in[room], client_ids) for room in rooms_without_clients]
        if own_room and own_room in queues_in:
            divisions.insert(0, (queues_in[own_room], clients_in[own_room]))
        result: list[MessageQueue] = []
        for queues_to_share, sharers in divisions:
            result += self._strategy.allocate(own_cid, queues_to_share, sharers)
        return result


def _by_room(
    items: Iterable[InRoom], room_of: Callable[[InRoom], str | None], kind: str
) -> dict[str, list[InRoom]]:
    """Return the items by their room. Raises IllegalArgumentException if a room is unknown."""
    rooms: defaultdict[str, list[InRoom]] = defaultdict(list)
    for item in items:
        room = room_of(item)
        if not room:
            raise IllegalArgumentException(f"Machine room is null for {kind} {item}")
        rooms[room].append(item)
    return rooms


# The rule by which a broker assigns queues to clients in pop mode.
#
# Source: QueryAssignmentProcessor.allocate4Pop.


ALL_QUEUES_OF_BROKER = -1
# Characters that are whitespace for Python but not for Java's Character.isWhitespace.
_NOT_WHITESPACE_IN_JAVA = "\x85\xa0\u2007\u202f"


def allocate_for_pop(
    strategy: AllocateMessageQueueStrategy,
    client_id: str | None,
    mq_all: Sequence[MessageQueue],
    cid_all: Sequence[str],
    pop_share_queue_num: int,
) -> list[MessageQueue]:
    """Return a client's queues: its own share and the shares of the `pop_share_queue_num` clients after it.

    If that number is not positive, or at least the number of all other clients, every client gets all queues:
    one entry for each queue, with ALL_QUEUES_OF_BROKER as its number. Otherwise, if clients outnumber queues,
    each client gets one queue, in turns. Raises IllegalArgumentException.
    """
    if pop_share_queue_num <= 0 or pop_share_queue_num >= len(cid_all) - 1:
        return [queue._replace(queue_id=ALL_QUEUES_OF_BROKER) for queue in mq_all]
    if len(cid_all) > len(mq_all):
        return _allocate_one_queue(client_id, mq_all, cid_all)
    share_owners = [client_id]
    if client_id in cid_all:
        next_index = cid_all.index(client_id) + 1
        share_owners += [cid_all[(next_index + i) % len(cid_all)] for i in range(pop_share_queue_num)]
    result: list[MessageQueue] = []
    for share_owner in share_owners:
        result += strategy.allocate(share_owner, mq_all, cid_all)
    return result


def _allocate_one_queue(
    client_id: str | None, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
) -> list[MessageQueue]:
    """Return the one queue of a client, in turns: the first client gets the first queue, and so on."""
    # Unlike the strategies, RocketMQ refuses a blank client id here.
    if client_id and all(c.isspace() and c not in _NOT_WHITESPACE_IN_JAVA for c in client_id):
        raise IllegalArgumentException("currentCID is empty")
    own_cid, queues, client_ids = check(client_id, mq_all, cid_all)
    return [queues[client_ids.index(own_cid) % len(queues)]] if own_cid in client_ids else []
