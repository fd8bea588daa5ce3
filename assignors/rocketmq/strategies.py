"""Construction of a strategy from its name and its settings."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from assignors.rocketmq.api import AllocateMessageQueueStrategy
from assignors.rocketmq.averagely import AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle
from assignors.rocketmq.by_config import AllocateMessageQueueByConfig
from assignors.rocketmq.by_machine_room import AllocateMessageQueueByMachineRoom
from assignors.rocketmq.consistent_hash import DEFAULT_VIRTUAL_NODE_COUNT, AllocateMessageQueueConsistentHash
from assignors.rocketmq.machine_room_nearby import AllocateMachineRoomNearby, MachineRoomResolver
from kafka_why.contract.rocketmq.queues import MessageQueue

NEARBY_PREFIX = "MACHINE_ROOM_NEARBY-"


class UnknownStrategy(ValueError):
    """There is no strategy of this name."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the strategies other than AVG and AVG_BY_CIRCLE; a strategy reads only its own fields."""

    virtual_node_count: int = DEFAULT_VIRTUAL_NODE_COUNT
    consumeridcs: Collection[str] | None = None
    message_queue_list: Sequence[MessageQueue] | None = None
    machine_room_resolver: MachineRoomResolver | None = None


_MAKERS: Mapping[str, Callable[[Settings], AllocateMessageQueueStrategy]] = MappingProxyType(
    {
        "AVG": lambda _: AllocateMessageQueueAveragely(),
        "AVG_BY_CIRCLE": lambda _: AllocateMessageQueueAveragelyByCircle(),
        "CONFIG": lambda settings: AllocateMessageQueueByConfig(settings.message_queue_list),
        "CONSISTENT_HASH": lambda settings: AllocateMessageQueueConsistentHash(settings.virtual_node_count),
        "MACHINE_ROOM": lambda settings: AllocateMessageQueueByMachineRoom(settings.consumeridcs),
    }
)


def strategy_named(name: str, settings: Settings) -> AllocateMessageQueueStrategy:
    """Make the strategy. MACHINE_ROOM_NEARBY takes the inner strategy after a dash, as in its own name.

    Raises UnknownStrategy, and what the strategy's constructor raises.
    """
    if name.startswith(NEARBY_PREFIX):
        inner = strategy_named(name.removeprefix(NEARBY_PREFIX), settings)
        return AllocateMachineRoomNearby(inner, settings.machine_room_resolver)
    if name not in _MAKERS:
        raise UnknownStrategy(f"unknown strategy {name!r}")
    return _MAKERS[name](settings)
