"""The topics of a group: what it knows of them, and the fingerprint that shows a change. Rows MD9 to MI15.

Source: ModernGroup.computeMetadataHash, GroupMetadataManager.onMetadataUpdate. Kafka's coordinator reads the
cluster's metadata. Here requests and the topic watcher report it (`state.kafka.group`).
"""

from collections.abc import Collection, Mapping
from hashlib import blake2b

from msgspec import msgpack

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.kafka.wording import counted
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import StepContext
from state.kafka.group import Topic, Topics, reported, watched
from state.kafka.offsets.topic_metadata import remember_deleted
from state.kafka.share_group import ShareGroup

_FINGERPRINT_BYTES = 16


AnyModernGroup = ConsumerGroup | ShareGroup
"""A group whose members subscribe to topics. `topics` are those that it knows."""


def fingerprint(group: AnyModernGroup) -> bytes:
    """Return the fingerprint of the existing topics that members subscribe to, b"" without any.

    Racks are no part of it, because no assignor of the coordinator looks at them.
    """
    subscribed = group.subscribed()
    topics = sorted(
        (name, topic.topic_id, topic.partitions)
        for name, topic in group.topics.items()
        if topic is not None and name in subscribed
    )
    return blake2b(msgpack.encode(topics), digest_size=_FINGERPRINT_BYTES).digest() if topics else b""


def look(group: AnyModernGroup) -> bool:
    """Keep the fingerprint, and return whether it differs from the one before (rows MD9, MD10)."""
    before, group.metadata_hash = group.metadata_hash, fingerprint(group)
    group.metadata_stale = False
    return group.metadata_hash != before


def merge_reported(context: StepContext, group: AnyModernGroup, images: TopicImages | None) -> None:
    """Keep what a request reports of the topics (row MI7), None if its sender could not learn them."""
    found = reported(group.topics, images or {}, context.group.deleted_topic_ids)
    if not found:
        return
    awaited = {*group.topics, *group.unknown_topics()}
    changed = {name: topic for name, topic in found.items() if name in awaited}
    row = context.rule("MI7")
    why = _in_words(group.topics, changed)
    _add(group, found)
    if changed:
        context.record(row, EntryType.TOPICS_CHANGED, f"a request reports: {why}", topics=sorted(changed))


def store_watched(
    context: StepContext, group: AnyModernGroup, images: TopicImages, names: Collection[str]
) -> Topics:
    """Keep what the topic watcher reports of the topics with these names. Return the topics that changed.

    It changes no epoch: the next heartbeat or JoinGroup finds another fingerprint (row MI9).
    """
    images = {name: images[name] for name in sorted(images) if name in names}
    found = watched(group.topics, images, context.group.deleted_topic_ids)
    if not found:
        return {}
    why = _in_words(group.topics, found)
    for name, topic in found.items():
        before = group.topics.get(name)
        if before is not None and (topic is None or topic.topic_id != before.topic_id):
            context.rule("MI11" if topic is None else "MI10")
            remember_deleted(context.group, [before.topic_id])
    _add(group, found)
    context.record(
        context.rule("MI9"), EntryType.TOPICS_CHANGED, f"in the cluster: {why}", topics=sorted(found)
    )
    return found


def _add(group: AnyModernGroup, found: Topics) -> None:
    group.topics = dict(sorted({**group.topics, **found}.items()))
    group.metadata_stale = True


def unused_topics(group: AnyModernGroup) -> set[str]:
    """Return the topics that the group knows, and to which no member subscribes."""
    return group.topics.keys() - group.subscribed()


def forget_topics(context: StepContext, group: AnyModernGroup, used_ids: Collection[bytes]) -> None:
    """Forget the topics to which no member subscribes, and to whose ids nothing of the group refers (row
    MI15).
    """
    gone = {
        name
        for name in unused_topics(group)
        if (topic := group.topics[name]) is None or topic.topic_id not in used_ids
    }
    if gone:
        context.rule("MI15")
        group.topics = {name: topic for name, topic in group.topics.items() if name not in gone}


def _in_words(before: Mapping[str, Topic | None], found: Mapping[str, Topic | None]) -> str:
    """Say for each topic, of at most three, what changed."""
    shown = [_one_in_words(name, before, topic) for name, topic in sorted(found.items())[:3]]
    left_out = len(found) - len(shown)
    more = [counted(left_out, "more topic")] if left_out else []
    return ", ".join(shown + more)


def _one_in_words(name: str, before: Mapping[str, Topic | None], topic: Topic | None) -> str:
    known = before.get(name)
    if topic is None:
        return f"{name} was deleted" if known is not None else f"{name} does not exist"
    count = counted(topic.partitions, "partition")
    if known is None:
        return f"{name} exists with {count}"
    if known.topic_id != topic.topic_id:
        return f"{name} was deleted and created again with {count}"
    return f"{name} has {count} instead of {known.partitions}"
