"""The view of RocketMQ's groups, and the connections of a group as a broker shows them."""

from typing import Protocol

from kafka_why.contract.rocketmq.snapshot import GroupSnapshot
from kafka_why.remoting.answers import ClientConnection, ConsumerConnection, TopicSubscription


class RocketMqGroupsView(Protocol):
    """A view of RocketMQ's groups, which may be behind the coordinator. The time of `groups` grows with their
    number, so it must not run on the event loop.
    """

    def groups(self) -> list[GroupSnapshot]:
        """Return the existing groups by id."""

    def get(self, group_id: str) -> GroupSnapshot | None:
        """Return a group, or None if it is not known to exist."""

    async def reach_end(self, timeout_s: float) -> bool:
        """Wait until the view has all records that are on the topic now. Return False if the time is over
        first.
        """


def consumer_connection(group: GroupSnapshot, broker: str) -> ConsumerConnection | None:
    """Return the consumers at a broker address and what they subscribe to, or None if there are none."""
    connections = tuple(
        ClientConnection(
            client_id=it.client_id,
            client_addr=it.client_address,
            language=it.language,
            version=it.client_version,
        )
        for it in group.consumers
        if it.broker == broker
    )
    if not connections:
        return None
    return ConsumerConnection(
        connection_set=connections,
        subscription_table={
            topic: TopicSubscription(topic=topic, sub_string=text)
            for topic, text in group.subscriptions.items()
        },
        consume_type=group.consume_type,
        message_model=group.message_model,
        consume_from_where=group.consume_from_where,
    )
