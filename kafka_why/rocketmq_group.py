"""The description of a RocketMQ group in the operators' tools, from its view on the groups topic."""

from enum import StrEnum

from kafka_why.contract.rocketmq.requests import ConsumeType
from kafka_why.contract.rocketmq.snapshot import ConnectionSnapshot, GroupSnapshot


class RocketMqGroupState(StrEnum):
    """RocketMQ's groups have no states of their own; its tools report whether a group is online."""

    ONLINE = "Online"
    OFFLINE = "Offline"


_MODES = {
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_POP: "pop",
}


def group_state(group: GroupSnapshot) -> RocketMqGroupState:
    """Return ONLINE if a consumer is connected. An offline group has only producers, locks or modes."""
    # The view may omit the consumers, but it keeps what they last sent about the group.
    return RocketMqGroupState.OFFLINE if group.message_model is None else RocketMqGroupState.ONLINE


def consume_mode(group: GroupSnapshot) -> str:
    """Return `pull`, `push` or `pop`, RocketMQ's metric labels; "" if the group has no consumers."""
    return "" if group.consume_type is None else _MODES[group.consume_type]


def client_version(consumer: ConnectionSnapshot) -> str:
    """Return `JAVA 401`: the language and the client's version (an ordinal of RocketMQ's MQVersion)."""
    return f"{consumer.language} {consumer.client_version}"
