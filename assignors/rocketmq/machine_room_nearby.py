"""MACHINE_ROOM_NEARBY: a room's queues go to its own clients. Source: AllocateMachineRoomNearby.java."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from assignors.rocketmq.api import (
    AbstractAllocateMessageQueueStrategy,
    AllocateMessageQueueStrategy,
    IllegalArgumentException,
    NullPointerException,
)
from kafka_why.contract.protocols.java_order import java_order
from kafka_why.contract.rocketmq.queues import MessageQueue

Placed = TypeVar("Placed", MessageQueue, str)


class MachineRoomResolver(Protocol):
    """Returns the machine room of a queue's broker and of a client; callers treat "" and None as errors."""

    def broker_deploy_in(self, queue: MessageQueue) -> str | None:
        """Return the room of the queue's broker."""

    def consumer_deploy_in(self, client_id: str) -> str | None:
        """Return the room of the client."""


class NamePrefixResolver:
    """The room is the part of a broker's name or a client id before the first "-"; "" without a "-"."""

    def broker_deploy_in(self, queue: MessageQueue) -> str:
        """See `MachineRoomResolver`."""
        return self.consumer_deploy_in(queue.broker_name)

    def consumer_deploy_in(self, client_id: str) -> str:
        """See `MachineRoomResolver`."""
        room, dash, _ = client_id.partition("-")
        return room if dash else ""


class AllocateMachineRoomNearby(AbstractAllocateMessageQueueStrategy):
    """Applies another strategy within each room, then over the rooms that have queues but no client.

    All clients share the queues of such a room, each room separately: the last ids may get none of any room.
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
        """See `AbstractAllocateMessageQueueStrategy.share`. The own room's share is first, then room by room.

        Raises what the inner strategy raises, and NullPointerException if that strategy returns None.
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
