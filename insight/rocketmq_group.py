"""What the operators' tools tell of a RocketMQ group, from its view on the groups topic."""

from enum import StrEnum

from state.rocketmq.requests import ConsumeType
from state.rocketmq.snapshot import ConnectionSnapshot, GroupSnapshot


class GroupState(StrEnum):
    """RocketMQ's groups have no states of their own; its tools say whether a group is online."""

    ONLINE = "Online"
    OFFLINE = "Offline"


_MODES = {
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_POP: "pop",
}


def group_state(group: GroupSnapshot) -> GroupState:
    """Online while a consumer is connected. An offline group has producers, locks or modes only."""
    # Consumers may have been left out of the view, but not what they last said of the group.
    return GroupState.OFFLINE if group.message_model is None else GroupState.ONLINE


def consume_mode(group: GroupSnapshot) -> str:
    """`pull`, `push` or `pop`, as RocketMQ's metrics call it; "" while nobody consumes."""
    return "" if group.consume_type is None else _MODES[group.consume_type]


def client_version(consumer: ConnectionSnapshot) -> str:
    """`JAVA 401`: the language, and the number the client goes by (an ordinal of RocketMQ's MQVersion)."""
    return f"{consumer.language} {consumer.client_version}"
