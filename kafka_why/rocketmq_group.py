"""The state of a RocketMQ group as the operators' tools report it, from the group's view."""

from enum import StrEnum

from kafka_why.contract.rocketmq.requests import ConsumeType, SubscriptionData
from kafka_why.contract.rocketmq.snapshot import ConnectionSnapshot, GroupSnapshot


class RocketMqGroupState(StrEnum):
    """The state that RocketMQ's tools report: online or offline. Its groups have no states of their own."""

    ONLINE = "Online"
    OFFLINE = "Offline"


_MODES = {
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_POP: "pop",
}


def group_state(group: GroupSnapshot) -> RocketMqGroupState:
    """Return ONLINE if a consumer is connected, else OFFLINE.

    An offline group has only producers, queue locks or request modes.
    """
    # The view may omit the consumers, but it keeps what they last sent about the group.
    return RocketMqGroupState.OFFLINE if group.message_model is None else RocketMqGroupState.ONLINE


def consume_mode(group: GroupSnapshot) -> str:
    """Return `pull`, `push` or `pop`, which are RocketMQ's metric labels, or "" without consumers."""
    return "" if group.consume_type is None else _MODES[group.consume_type]


def client_version(consumer: ConnectionSnapshot) -> str:
    """Return the language and version of a client: `JAVA 401` (an ordinal of RocketMQ's MQVersion)."""
    return f"{consumer.language} {consumer.client_version}"


def subscription_text(subscription: SubscriptionData) -> str:
    """Return a topic and its filter, if it has one: `orders`, `orders (paid || sent)`, `jobs (SQL92: a > 1)`.

    Equal filters have equal texts, whatever the order of their tags.
    """
    expression = " || ".join(sorted(subscription.tags_set)) or subscription.sub_string
    if subscription.expression_type != "TAG":
        expression = f"{subscription.expression_type}: {subscription.sub_string}"
    return subscription.topic if expression in ("*", "") else f"{subscription.topic} ({expression})"
