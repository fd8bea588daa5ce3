"""Construction of a strategy from its name and its settings."""

import hashlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from assignors.rocketmq.api import (
    AbstractAllocateMessageQueueStrategy,
    AllocateMessageQueueStrategy,
    IllegalArgumentException,
    NullPointerException,
    check,
)
from kafka_why.contract.protocols.subscriptions import java_order
from kafka_why.contract.rocketmq.requests import MessageQueue, averagely, averagely_by_circle

# AVG and AVG_BY_CIRCLE: shares whose sizes differ by at most one.
#
# Two clients with the same id both take the share of the id's first index, so nobody consumes that of the
# second. Source: AllocateMessageQueueAveragely.java, AllocateMessageQueueAveragelyByCircle.java.


class AllocateMessageQueueAveragely(AbstractAllocateMessageQueueStrategy):
    """Each client gets one run of queues; the first clients get a longer run. RocketMQ's default."""

    name: Final = "AVG"

    def share(
        self, consumer_group: str, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return averagely(queues, client_ids, own_cid)


class AllocateMessageQueueAveragelyByCircle(AbstractAllocateMessageQueueStrategy):
    """The clients, in a circle, get the queues one by one."""

    name: Final = "AVG_BY_CIRCLE"

    def share(
        self, consumer_group: str, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return averagely_by_circle(queues, client_ids, own_cid)


# CONFIG: the queues in the client's configuration. Source: AllocateMessageQueueByConfig.java.


class AllocateMessageQueueByConfig:
    """The configured queues, whatever the arguments are. Without a configured list the result is None."""

    name: Final = "CONFIG"

    def __init__(self, message_queue_list: Sequence[MessageQueue] | None = None) -> None:
        self._message_queue_list = message_queue_list

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue] | None:
        return None if self._message_queue_list is None else list(self._message_queue_list)


# MACHINE_ROOM: only the queues of some rooms. Source: AllocateMessageQueueByMachineRoom.java.


class AllocateMessageQueueByMachineRoom(AbstractAllocateMessageQueueStrategy):
    """Brokers are named `room@name`. Queues of rooms outside `consumeridcs` are assigned to no client.

    All clients count, in any room. Queues that do not divide evenly are taken from the *end* of the list: of
    5 queues, 2 clients get 0, 1, 4 and 2, 3.
    """

    name: Final = "MACHINE_ROOM"

    def __init__(self, consumeridcs: Collection[str] | None = None) -> None:
        self._consumeridcs = consumeridcs

    def share(
        self, consumer_group: str, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Raise NullPointerException if a broker has a room and `consumeridcs` is None."""
        index = client_ids.index(own_cid)
        kept = [queue for queue in queues if self._is_ours(queue.broker_name)]
        quota, extra = divmod(len(kept), len(client_ids))
        share = kept[index * quota : (index + 1) * quota]
        if index < extra:
            share.append(kept[index + quota * len(client_ids)])
        return share

    def _is_ours(self, broker_name: str) -> bool:
        # Java's split drops empty parts at the end, so "room@name@" has two parts and "room@" has one.
        parts = broker_name.rstrip("@").split("@")
        if len(parts) != 2:
            return False
        if self._consumeridcs is None:
            raise NullPointerException
        return parts[0] in self._consumeridcs


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
            # For a repeated id, the index continues where it stopped, less the points it lost.
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


# MACHINE_ROOM_NEARBY: a room's queues go to its own clients. Source: AllocateMachineRoomNearby.java.


Placed = TypeVar("Placed", MessageQueue, str)


class MachineRoomResolver(Protocol):
    """The machine rooms of brokers and clients. Callers treat "" and None as errors."""

    def broker_deploy_in(self, queue: MessageQueue) -> str | None:
        """Return the room of the queue's broker."""

    def consumer_deploy_in(self, client_id: str) -> str | None:
        """Return the room of the client."""


class NamePrefixResolver:
    """A resolver that reads the room from a name: the part before the first "-", or "" without a "-"."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        return self.consumer_deploy_in(queue.broker_name)

    def consumer_deploy_in(self, client_id: str) -> str:
        room, dash, _ = client_id.partition("-")
        return room if dash else ""


class AllocateMachineRoomNearby(AbstractAllocateMessageQueueStrategy):
    """Another strategy, applied within each room, and then to each room that has queues but no client.

    All clients share the queues of each such room separately, so the last ids may get none of any room.
    """

    def __init__(
        self, strategy: AllocateMessageQueueStrategy | None, resolver: MachineRoomResolver | None
    ) -> None:
        if strategy is None:
            raise NullPointerException("allocateMessageQueueStrategy is null")
        if resolver is None:
            raise NullPointerException("machineRoomResolver is null")
        self._strategy = strategy
        self._resolver = resolver

    @property
    def name(self) -> str:
        """The strategy's name, which includes the inner strategy's name."""
        return f"MACHINE_ROOM_NEARBY-{self._strategy.name}"

    def share(
        self, consumer_group: str, own_cid: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of the client's own room first, then the shares room by room.

        Raises the inner strategy's errors, and NullPointerException if that strategy returns None.
        """
        queues_in = _by_room(queues, self._resolver.broker_deploy_in, "mq")
        clients_in = _by_room(client_ids, self._resolver.consumer_deploy_in, "consumer id")
        own_room = self._resolver.consumer_deploy_in(own_cid)
        orphans = sorted(queues_in.keys() - clients_in.keys(), key=java_order)
        shared = [(queues_in[room], client_ids) for room in orphans]
        if own_room and own_room in queues_in:
            shared.insert(0, (queues_in[own_room], clients_in[own_room]))
        result: list[MessageQueue] = []
        for room_queues, room_clients in shared:
            share = self._strategy.allocate(consumer_group, own_cid, room_queues, room_clients)
            if share is None:
                raise NullPointerException
            result += share
        return result


def _by_room(
    things: Iterable[Placed], deploy_in: Callable[[Placed], str | None], kind: str
) -> dict[str, list[Placed]]:
    rooms: defaultdict[str, list[Placed]] = defaultdict(list)
    for thing in things:
        room = deploy_in(thing)
        if not room:
            raise IllegalArgumentException(f"Machine room is null for {kind} {thing}")
        rooms[room].append(thing)
    return rooms


# How a broker assigns queues to clients that pop. Source: QueryAssignmentProcessor.allocate4Pop.


ALL_QUEUES_OF_BROKER = -1
# Characters that are whitespace for Python but not for Java's Character.isWhitespace.
_NOT_WHITESPACE_IN_JAVA = "\x85\xa0\u2007\u202f"


def allocate_for_pop(
    strategy: AllocateMessageQueueStrategy,
    consumer_group: str,
    client_id: str | None,
    mq_all: Sequence[MessageQueue] | None,
    cid_all: Sequence[str] | None,
    pop_share_queue_num: int,
) -> list[MessageQueue]:
    """Return a client's queues: its own share and those of the `pop_share_queue_num` clients after it.

    If that number is not positive, or reaches all other clients, every client gets all queues: one entry for
    each queue, with ALL_QUEUES_OF_BROKER as its number. If clients outnumber queues, each client gets one
    queue, in turns. Raises what the strategy raises, IllegalArgumentException, or NullPointerException for a
    list that is None and is read.
    """
    if mq_all is None or (cid_all is None and pop_share_queue_num > 0):
        raise NullPointerException
    if cid_all is None or pop_share_queue_num <= 0 or pop_share_queue_num >= len(cid_all) - 1:
        return [queue._replace(queue_id=ALL_QUEUES_OF_BROKER) for queue in mq_all]
    if len(cid_all) > len(mq_all):
        return _one_queue(client_id, mq_all, cid_all)
    sharers = [client_id]
    if client_id in cid_all:
        after = cid_all.index(client_id) + 1
        sharers += [cid_all[(after + i) % len(cid_all)] for i in range(pop_share_queue_num)]
    result: list[MessageQueue] = []
    for sharer in sharers:
        share = strategy.allocate(consumer_group, sharer, mq_all, cid_all)
        if share is None:
            raise NullPointerException
        result += share
    return result


def _one_queue(
    client_id: str | None, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
) -> list[MessageQueue]:
    if client_id and all(c.isspace() and c not in _NOT_WHITESPACE_IN_JAVA for c in client_id):
        raise IllegalArgumentException("currentCID is empty")
    own_cid, queues, client_ids = check(client_id, mq_all, cid_all)
    return [queues[client_ids.index(own_cid) % len(queues)]] if own_cid in client_ids else []


NEARBY_PREFIX = "MACHINE_ROOM_NEARBY-"


class UnknownStrategy(ValueError):
    """The name of the strategy is unknown."""


@dataclass(frozen=True, slots=True)
class StrategySettings:
    """Settings of all strategies but AVG and AVG_BY_CIRCLE. A strategy reads only its own fields."""

    virtual_node_count: int = DEFAULT_VIRTUAL_NODE_COUNT
    consumeridcs: Collection[str] | None = None
    message_queue_list: Sequence[MessageQueue] | None = None
    machine_room_resolver: MachineRoomResolver | None = None


_MAKERS: Mapping[str, Callable[[StrategySettings], AllocateMessageQueueStrategy]] = MappingProxyType(
    {
        "AVG": lambda _: AllocateMessageQueueAveragely(),
        "AVG_BY_CIRCLE": lambda _: AllocateMessageQueueAveragelyByCircle(),
        "CONFIG": lambda settings: AllocateMessageQueueByConfig(settings.message_queue_list),
        "CONSISTENT_HASH": lambda settings: AllocateMessageQueueConsistentHash(settings.virtual_node_count),
        "MACHINE_ROOM": lambda settings: AllocateMessageQueueByMachineRoom(settings.consumeridcs),
    }
)


def strategy_named(name: str, settings: StrategySettings) -> AllocateMessageQueueStrategy:
    """Build the strategy. Raises UnknownStrategy, and the errors of the strategy's constructor.

    MACHINE_ROOM_NEARBY takes the inner strategy after a dash, as in its own name.
    """
    if name.startswith(NEARBY_PREFIX):
        inner = strategy_named(name.removeprefix(NEARBY_PREFIX), settings)
        return AllocateMachineRoomNearby(inner, settings.machine_room_resolver)
    if name not in _MAKERS:
        raise UnknownStrategy(f"unknown strategy {name!r}")
    return _MAKERS[name](settings)
