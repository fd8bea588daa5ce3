"""The size limits of existing topics. The coordinator and every gateway read them at their start, so that
all use the same limits.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import structlog
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import (
    LEAST_REQUESTS_TOPIC_BYTES,
    LEAST_RESPONSES_TOPIC_BYTES,
    NEW_TOPIC_LIMITS,
    SizeLimits,
    TopicLayout,
    size_limits,
)

MAX_MESSAGE_BYTES = "max.message.bytes"

log = structlog.get_logger()


def topic_settings(admin: KafkaAdminClient, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return all settings of each topic, including the brokers' defaults. Raises KafkaError.

    A topic that does not exist, or whose settings may not be read, gets an empty dict.
    """
    resources = [ConfigResource(ConfigResourceType.TOPIC, topic) for topic in topics]
    answer: dict[str, Any] = admin.describe_configs(resources, config_filter="all")
    by_topic = next(iter(answer.values()))  # by topic and name; the only key of `answer` is the resource type
    return {
        topic: {name: str(config["value"]) for name, config in by_topic[topic].items()} for topic in topics
    }


def with_topic_sizes(client_config: ClientConfig, layout: TopicLayout) -> TopicLayout:
    """Return the layout with the limits of the existing topics, and log them. Raises KafkaError.

    Without permission to DESCRIBE_CONFIGS of a topic, its limit is taken to be the smallest permitted one.
    """
    topics = layout.requests_topic, layout.responses_topic
    with closing(kafka_clients.admin(client_config)) as admin:
        settings = topic_settings(admin, topics)
    unread = [topic for topic in topics if MAX_MESSAGE_BYTES not in settings[topic]]
    if unread:
        log.warning(
            f"{MAX_MESSAGE_BYTES} of topics cannot be read, so the least is assumed: allow DESCRIBE_CONFIGS",
            topics=unread,
        )
    minimums = LEAST_REQUESTS_TOPIC_BYTES, LEAST_RESPONSES_TOPIC_BYTES
    sizes = size_limits(
        *(
            int(settings[topic].get(MAX_MESSAGE_BYTES, min_bytes))
            for topic, min_bytes in zip(topics, minimums, strict=True)
        )
    )
    _log_sizes(layout, sizes)
    return layout.with_sizes(sizes)


def _log_sizes(layout: TopicLayout, sizes: SizeLimits) -> None:
    """Log the limits. Warn of a topic with lower limits than this project gives a new topic."""
    log.info("limits on sizes", **sizes._asdict())
    for topic, max_bytes, new_max_bytes in (
        (layout.requests_topic, sizes.request_max_bytes, NEW_TOPIC_LIMITS.request_max_bytes),
        (layout.responses_topic, sizes.response_max_bytes, NEW_TOPIC_LIMITS.response_max_bytes),
    ):
        if max_bytes < new_max_bytes:
            log.warning(
                "a topic carries smaller records than a new one would",
                topic=topic,
                max_bytes=max_bytes,
                new_max_bytes=new_max_bytes,
                remedy=f"raise {MAX_MESSAGE_BYTES}, then restart the coordinator and its gateways",
            )
