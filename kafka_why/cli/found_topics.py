"""The topics that a long-running command reads: those of ours, or the cluster's own `__consumer_offsets`."""

from kafka_why.cli.output import tell
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import DEFAULT_PREFIX, KAFKAS_OFFSETS_TOPIC, TopicLayout
from kafka_why.topic_layout import TopicsMissing, layout_on
from kafka_why.why.offsets_topic import OffsetsTopic


def layout_if_any(client_config: ClientConfig, prefix: str) -> TopicLayout | None:
    """Return the layout of our topics, or None if `__consumer_offsets` is to be read.

    Raises TopicsMissing if `prefix` was given, HistoryUnavailable if that topic must not be read, KafkaError.
    """
    try:
        return layout_on(client_config, prefix)
    except TopicsMissing:
        if prefix != DEFAULT_PREFIX:
            raise
    with OffsetsTopic(client_config) as topic:
        tell(
            f"no topics of a coordinator or an observer: reading the brokers' own {KAFKAS_OFFSETS_TOPIC}, "
            f"{topic.partitions} partitions"
        )
    return None
