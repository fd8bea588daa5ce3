"""The state of a RocketMQ group as the operators' tools report it.

The source is the group's view, its latest record on the groups topic.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

from kafka_why.contract.rocketmq.history import ConnectionSnapshot, GroupSnapshot
from kafka_why.contract.rocketmq.requests import RETRY_GROUP_TOPIC_PREFIX, ConsumeType, SubscriptionData

TO_DO_DUPLICATE = "stop one of them, or give it a client id of its own (RocketMQ's instanceName, clientIP)"
FILTERS_EFFECT = (
    "A broker keeps only the topics and filters of the last heartbeat, so messages for other filters are "
    "skipped"
)
SUBSCRIPTIONS_EFFECT = (
    f"{FILTERS_EFFECT}. Each client takes its share of a topic as if all clients subscribed to it, so nobody "
    "reads the shares of clients that do not"
)
TO_DO_SUBSCRIPTIONS = "give all clients of the group the same topics and filters, or a group of their own"


class RocketMqGroupState(StrEnum):
    """The state that RocketMQ's tools report. The groups themselves have no states in RocketMQ."""

    ONLINE = "Online"
    OFFLINE = "Offline"


# RocketMQ's metric labels.
_MODES = {
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_POP: "pop",
}


def group_state(group: GroupSnapshot) -> RocketMqGroupState:
    """Return ONLINE if a consumer is connected, else OFFLINE."""
    # An offline group has only producers, queue locks or request modes. The view of a large group may omit
    # its consumers, but it keeps the message model, which is set while the group has consumers.
    is_online = group.message_model is not None or group.consumers
    return RocketMqGroupState.ONLINE if is_online else RocketMqGroupState.OFFLINE


def consume_mode(group: GroupSnapshot) -> str:
    """Return RocketMQ's metric label `pull`, `push` or `pop`, or "" without consumers."""
    return "" if group.consume_type is None else _MODES[group.consume_type]


def client_version(consumer: ConnectionSnapshot) -> str:
    """Return a client's language and version, such as `JAVA 401` (an ordinal of MQVersion)."""
    return f"{consumer.language} {consumer.client_version}"


def filter_text(subscription: SubscriptionData) -> str:
    """Return a filter such as `*`, `paid || sent` or `SQL92: a > 1`. Tags are sorted."""
    if subscription.expression_type != "TAG":
        return f"{subscription.expression_type}: {subscription.sub_string}"
    return " || ".join(sorted(subscription.tags_set)) or subscription.sub_string or "*"


def subscription_text(topic: str, expression: str) -> str:
    """Return a topic with its filter, such as `orders` or `orders (paid || sent)`."""
    return topic if expression == "*" else f"{topic} ({expression})"


def shown_subscriptions(own: Sequence[str], every: Iterable[Sequence[str]]) -> list[str]:
    """Return a client's subscriptions without the group's retry topic, if all clients have it.

    `every` has the subscriptions of all clients.
    """
    common = set(own).intersection(*every)
    return [text for text in own if not (text.startswith(RETRY_GROUP_TOPIC_PREFIX) and text in common)]


def duplicate_places(group: GroupSnapshot) -> dict[str, list[str]]:
    """Return the addresses of the clients that share an id, by client id."""
    places = {}
    for client_id in group.duplicate_client_ids:
        consumers = [consumer for consumer in group.consumers if consumer.client_id == client_id]
        # Clients with the same id at one broker are different clients. The same client at several brokers is
        # no duplicate, so the addresses are from one broker, which has the most clients with this id.
        main_broker = dict(Counter(consumer.broker for consumer in consumers).most_common(1))
        places[client_id] = [place(consumer) for consumer in consumers if consumer.broker in main_broker]
    return places


def different_subscribers(group: GroupSnapshot) -> dict[tuple[str, ...], list[str]]:
    """Return the clients by subscriptions if the subscriptions differ within the group, else {}.

    A client is a text such as `worker-1 (10.0.0.1:5)`.
    """
    clients_by_subscriptions: dict[tuple[str, ...], dict[str, str]] = {}
    for consumer in group.consumers:
        subscriptions = group.different_subscriptions.get(consumer.connection)
        if subscriptions is not None:
            text = f"{consumer.client_id} ({place(consumer)})"
            # A client is listed once, even if it is connected to several brokers.
            clients = clients_by_subscriptions.setdefault(tuple(subscriptions), {})
            clients.setdefault(consumer.client_id, text)
    return {
        tuple(shown_subscriptions(subscriptions, clients_by_subscriptions)): list(clients.values())
        for subscriptions, clients in sorted(clients_by_subscriptions.items())
    }


def place(consumer: ConnectionSnapshot) -> str:
    """Return the client's address, or its connection if the address is unknown."""
    return consumer.client_address or consumer.connection
