"""The source that a long-running command reads: a coordinator's topics, the cluster's `__consumer_offsets`,
or polls of the brokers.
"""

from contextlib import closing

from kafka_why.cli.output import show_stderr
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import DEFAULT_PREFIX, KAFKAS_OFFSETS_TOPIC, TopicLayout
from kafka_why.topic_reader import BrokersOwn, TopicsMissing, layout_on
from kafka_why.why.history import HistoryUnavailable
from kafka_why.why.offsets_topic import OffsetsTopic, OffsetsUnreadable
from kafka_why.why.polls import polling_client


def find_source(client_config: ClientConfig, prefix: str) -> TopicLayout | BrokersOwn:
    """Return the layout of the coordinator's topics, or the source that replaces them, and name it on stderr.

    Raises TopicsMissing if `prefix` was given, HistoryUnavailable if this principal may neither read
    `__consumer_offsets` nor describe a group, or KafkaError.
    """
    try:
        return layout_on(client_config, prefix)
    except TopicsMissing:
        if prefix != DEFAULT_PREFIX:
            raise
    nothing = "no topics of a coordinator or an observer"
    try:
        with OffsetsTopic(client_config) as topic:
            read = f"the brokers' own {KAFKAS_OFFSETS_TOPIC}, {topic.partitions} partitions"
    except OffsetsUnreadable as error:
        with closing(polling_client(client_config)) as admin:
            if not admin.list_groups():
                raise HistoryUnavailable(f"{error}; nor may it describe a group, which polls need") from error
        show_stderr(f"{nothing}: polling the groups, because {error}")
        return BrokersOwn.POLLS
    show_stderr(f"{nothing}: reading {read}")
    return BrokersOwn.OFFSETS_TOPIC
