"""The topics of a coordinator or an observer, found by their prefix."""

from enum import Enum

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import TopicReader


class ClientError(RuntimeError):
    """A request got no answer of its type. Each subclass is one reason."""


class TopicsMissing(ClientError):
    """The coordinator's topics do not exist, or their layout is unexpected."""


class BrokersOwn(Enum):
    """What is read where there are no topics of ours: `__consumer_offsets`, or where it must not be read what
    coordinators answer about their groups.
    """

    OFFSETS_TOPIC = 1
    POLLS = 2


def layout_on(client_config: ClientConfig, prefix: str) -> TopicLayout:
    """Return the layout of the coordinator, or the observer, whose topics have this prefix, with their actual
    partitions.

    Raises TopicsMissing if neither has created them, or if a gateway does not expose them.
    """
    names = TopicLayout.named(prefix)
    with TopicReader(client_config) as reader:
        requests = len(reader.partitions_of(names.requests_topic))
        observed = 0 if requests else len(reader.partitions_of(names.groups_topic))
        responses = len(reader.partitions_of(names.responses_topic))
        is_internal = bool(requests) and reader.is_internal(names.requests_topic)
    if observed:
        return TopicLayout.observed(prefix, observed)
    if not requests or not responses:
        missing = names.responses_topic if requests else names.requests_topic
        raise TopicsMissing(f"no topic {missing} on {client_config}: has the coordinator been started?")
    if is_internal:
        raise TopicsMissing(
            f"{client_config} is a gateway, whose clients may not write to {names.requests_topic}: "
            "give the brokers' address"
        )
    return TopicLayout.named(prefix, request_partitions=requests, reply_partitions=responses)
