"""The topics of a consumer group: what it knows of them, and the fingerprint that shows a change.

Source: ModernGroup.computeMetadataHash, GroupMetadataManager.onMetadataUpdate. Kafka's coordinator reads the
cluster's metadata. Here requests and the topic watcher report it (`state.kafka.topic_facts`).
"""

from collections.abc import Mapping
from hashlib import blake2b

from msgspec import msgpack
from msgspec.structs import replace

from state.kafka.consumer.wording import counted
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.history import EntryType
from state.kafka.offsets.topic_metadata import remember_deleted
from state.kafka.requests import TopicImages, TopicMetadata
from state.kafka.topic_facts import reported, watched

_FINGERPRINT_BYTES = 16


def fingerprint(group: ConsumerGroup) -> bytes:
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


def look(context: StepContext) -> bool:
    """Keep the fingerprint, and return whether it differs from the one before (rows MD9, MD10)."""
    group = context.group_of(ConsumerGroup)
    before, group.metadata_hash = group.metadata_hash, fingerprint(group)
    group.metadata_stale = False
    return group.metadata_hash != before


def merge_reported(context: StepContext, images: TopicImages | None) -> None:
    """Keep what a request reports of the topics (row MI7), None if its sender could not learn them."""
    group = context.group_of(ConsumerGroup)
    found = reported(group.topics, images or {}, group.deleted_topic_ids)
    if not found:
        return
    awaited = {*group.topics, *group.unknown_topics()}
    changed = {name: topic for name, topic in found.items() if name in awaited}
    row = context.rule("MI7")
    why = _in_words(group.topics, changed)
    group.topics = dict(sorted({**group.topics, **found}.items()))
    group.metadata_stale = True
    if changed:
        context.record(row, EntryType.TOPICS_CHANGED, f"a request reports: {why}", topics=sorted(changed))


def topic_metadata(context: StepContext, request: TopicMetadata) -> None:
    """Keep what the topic watcher reports of the topics that the group knows or subscribes to (row MI8).

    It changes no epoch: the next heartbeat or JoinGroup finds another fingerprint (row MI9).
    """
    group = context.group_of(ConsumerGroup)
    store_topic_images(context, request.topics, {*group.topics, *group.subscribed()})


def store_topic_images(context: StepContext, images: TopicImages, names: set[str]) -> None:
    """Keep what the topic watcher reports of the topics with these names."""
    group = context.group_of(ConsumerGroup)
    images = {name: images[name] for name in sorted(images) if name in names}
    found = watched(group.topics, images, group.deleted_topic_ids)
    if not found:
        return
    why = _in_words(group.topics, found)
    for name, topic in found.items():
        before = group.topics.get(name)
        if before is not None and (topic is None or topic.topic_id != before.topic_id):
            context.rule("MI11" if topic is None else "MI10")
            remember_deleted(group, [before.topic_id])
        if topic is None and context.config.regex_resolve_at_once:
            _leave_out_of_results(group, name)
            context.retention_is_stale = True
    group.topics = dict(sorted({**group.topics, **found}.items()))
    group.metadata_stale = True
    context.record(
        context.rule("MI9"), EntryType.TOPICS_CHANGED, f"in the cluster: {why}", topics=sorted(found)
    )
    forget_unused(context)


def _leave_out_of_results(group: ConsumerGroup, name: str) -> None:
    """Leave a deleted topic out of what patterns matched, so that one new epoch covers both."""
    group.resolved_regexes = {
        pattern: replace(resolved, topics=[topic for topic in resolved.topics if topic != name])
        for pattern, resolved in group.resolved_regexes.items()
    }


def forget_unused(context: StepContext) -> None:
    """Forget the results of patterns that no member has (row HB45), and the topics that no subscription, no
    member's partitions and no target assignment refers to (row MI15).
    """
    group = context.group_of(ConsumerGroup)
    if group.resolved_regexes or group.checked_regexes:
        patterns = {member.subscribed_topic_regex for member in group.members.values()}
        group.resolved_regexes = {p: r for p, r in group.resolved_regexes.items() if p in patterns}
        group.checked_regexes = {p: c for p, c in group.checked_regexes.items() if p in patterns}
    unused = group.topics.keys() - group.subscribed()
    if not unused:
        return
    used = {id_ for target in group.target.values() for id_ in target}
    for member in group.members.values():
        used.update(member.assigned, member.pending_revocation)
    gone = {name for name in unused if (topic := group.topics[name]) is None or topic.topic_id not in used}
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
