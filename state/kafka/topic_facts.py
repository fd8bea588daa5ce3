"""What a group knows of the cluster's topics: what a request reports (row MI7), and what the topic watcher
reports (row MI8).

The operator sees no cluster. A gateway may look at an older broker or an older cache than the watcher, so a
request only adds to what is known. The watcher alone replaces and removes.
"""

from collections.abc import Collection, Mapping

from kafka_why.contract.kafka.topic_images import TopicImage, TopicImages
from state.kafka.group import Topic

Topics = dict[str, Topic | None]
"""Topics by name, None if no topic has the name."""


def topic_of(image: TopicImage | None) -> Topic | None:
    return None if image is None else Topic(image.id.bytes, image.partitions)


def reported(known: Mapping[str, Topic | None], images: TopicImages, deleted: Collection[bytes]) -> Topics:
    """Return the topics, by name, about which a request reports more than is known.

    It is a name that was not known, a topic where none was known, or more partitions of the same topic.
    `deleted` are ids of deleted topics, which a request may still report.
    """
    found: Topics = {}
    for name, image in images.items():
        topic, before = topic_of(image), known.get(name)
        if topic is not None and topic.topic_id in deleted:
            topic = None
        grows = topic is not None and before is not None and is_more_of(topic, before)
        if name not in known or (before is None and topic is not None) or grows:
            found[name] = topic
    return found


def watched(known: Mapping[str, Topic | None], images: TopicImages, deleted: Collection[bytes]) -> Topics:
    """Return the topics, by name, about which the watcher reports something else than is known.

    A lower count of the same topic and a deleted topic are ignored: both come from a broker that lags.
    """
    found: Topics = {}
    for name, image in images.items():
        topic, before = topic_of(image), known.get(name)
        if topic is not None and topic.topic_id in deleted:
            continue
        lags = topic is not None and before is not None and is_more_of(before, topic)
        if name not in known or (topic != before and not lags):
            found[name] = topic
    return found


def is_more_of(topic: Topic, before: Topic) -> bool:
    """Whether it is the same topic with more partitions."""
    return topic.topic_id == before.topic_id and topic.partitions > before.partitions
