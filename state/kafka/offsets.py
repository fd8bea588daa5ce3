"""Committed offsets: fetch, deletion, expiry, and topics that are deleted. Rows Q1 to Q5, D1 to D9, Z1 to Z7,
TO17.

Source: OffsetMetadataManager.java.
"""

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from uuid import UUID

from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType, LogPosition, Offset
from kafka_why.contract.kafka.requests import (
    OffsetDelete,
    OffsetFetch,
    ReplyTo,
    TopicMetadata,
    TopicPartitions,
)
from kafka_why.contract.kafka.responses import (
    FetchedPartition,
    FetchedTopic,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    PartitionError,
    TopicErrors,
)
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.messages import ErrorCode
from state.config import CoordinatorConfig
from state.kafka.context import (
    KafkaGroup,
    RuleAndError,
    RuleId,
    StepContext,
    TransactionChange,
    deciding_rule,
)
from state.kafka.group import Group, PendingOffsets

# OffsetFetch. Rows Q1 to Q5.
#
# Source: OffsetMetadataManager.fetchOffsets, fetchAllOffsets, isMismatchedTopicId.


_NOTHING = Offset(
    offset=-1, leader_epoch=-1, metadata="", committed_at_ms=-1, expire_at_ms=None, topic_id=None
)

CommittedOffsets = Mapping[str, Mapping[int, Offset]]
PartitionsOfTopics = Mapping[str, Container[int]]


def fetch(context: StepContext, request: OffsetFetch, reply_to: ReplyTo) -> None:
    """Answer with the committed offsets of a group. The group's protocol has already checked who
    may fetch.
    """
    group = context.group
    unstable = group.pending_partitions() if request.require_stable else {}
    answer_fetch(context, request, reply_to, group.offsets, unstable)


def answer_fetch(
    context: StepContext,
    request: OffsetFetch,
    reply_to: ReplyTo,
    offsets: CommittedOffsets,
    unstable: PartitionsOfTopics,
    decided: RuleId | None = None,
) -> None:
    """Answer with these offsets. A missing offset is not an error. `decided` replaces Q2 or Q3 as the row of
    the answer.
    """
    if request.topics is None:
        row = context.rule("Q2")
        topics = [
            FetchedTopic(
                name,
                [
                    _fetched_partition(context, p, offset, unstable.get(name, ()))
                    for p, offset in partitions.items()
                ],
            )
            for name, partitions in offsets.items()
        ]
    else:
        topics = [
            _fetched_topic(context, topic, offsets.get(topic.name, {}), unstable.get(topic.name, ()))
            for topic in _each_once(request.topics)
        ]
        row = context.rule("Q3")
    context.reply(reply_to, OffsetFetchResponse, decided or row, topics=topics)


def _each_once(topics: Sequence[TopicPartitions]) -> list[TopicPartitions]:
    # A small request could otherwise fetch a large metadata text many thousand times.
    partitions: dict[tuple[str, UUID | None], dict[int, None]] = {}
    for topic in topics:
        partitions.setdefault((topic.name, topic.topic_id), {}).update(dict.fromkeys(topic.partition_indexes))
    return [
        TopicPartitions(name=name, partition_indexes=list(numbers), topic_id=topic_id)
        for (name, topic_id), numbers in partitions.items()
    ]


def _fetched_topic(
    context: StepContext, topic: TopicPartitions, offsets: Mapping[int, Offset], unstable: Container[int]
) -> FetchedTopic:
    topic_id = None if topic.topic_id is None else topic.topic_id.bytes
    partitions = []
    for partition in topic.partition_indexes:
        offset = offsets.get(partition, _NOTHING)
        if is_of_another_topic(offset, topic_id):
            context.rule("Q5")
            offset = _NOTHING
        partitions.append(_fetched_partition(context, partition, offset, unstable))
    return FetchedTopic(topic.name, partitions)


def is_of_another_topic(offset: Offset, topic_id: bytes | None) -> bool:
    """Return True if the offset was committed for another topic of the same name. An unknown topic id counts
    as the same.
    """
    return offset.topic_id is not None and topic_id is not None and offset.topic_id != topic_id


def _fetched_partition(
    context: StepContext, partition: int, offset: Offset, unstable: Container[int]
) -> FetchedPartition:
    if partition in unstable:
        context.rule("Q4")
        return FetchedPartition(partition, -1, -1, "", error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    topic_id = None if offset.topic_id is None else UUID(bytes=offset.topic_id)
    return FetchedPartition(partition, offset.offset, offset.leader_epoch, offset.metadata, topic_id)


# OffsetDelete: removal of offsets by request (KIP-496). Rows D1 to D5.
#
# Source: OffsetMetadataManager.deleteOffsets, ClassicGroup.validateOffsetDelete.


def delete_offsets(context: StepContext, request: OffsetDelete, reply_to: ReplyTo) -> None:
    """Remove offsets of topics that no member of the group subscribes to."""
    group = context.group
    if not group.is_empty and not group.is_consumer_group():
        context.reply(reply_to, OffsetDeleteResponse, context.rule("D2"), ErrorCode.NON_EMPTY_GROUP)
        return
    subscribed = group.subscribed_of(topic.name for topic in request.topics)
    gone: dict[str, set[int]] = {}
    deleted: RuleId | None = None
    verdicts: list[RuleAndError] = []
    topics = []
    pending = group.pending_partitions()
    for topic in request.topics:
        found = _present_partitions(group, topic, gone, pending.get(topic.name, ()))
        if topic.name in subscribed:
            verdict = context.rule("D3"), ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        elif found:
            deleted = context.rule("D4")
            verdict = deleted, ErrorCode.NONE
            gone.setdefault(topic.name, set()).update(found)
        else:
            verdict = context.rule("D5"), ErrorCode.NONE
        verdicts.append(verdict)
        topics.append(
            TopicErrors(topic.name, [PartitionError(p, verdict[1]) for p in topic.partition_indexes])
        )
    if deleted is not None:
        forget_pending(context, lambda topic, partition, _: partition in gone.get(topic, ()))
        partitions = {topic: sorted(numbers) for topic, numbers in gone.items()}
        context.forget(
            {
                topic: [p for p in numbers if p in group.offsets[topic]]
                for topic, numbers in partitions.items()
                if topic in group.offsets
            }
        )
        context.record(deleted, EntryType.OFFSETS_DELETED, "deleted by request", partitions=partitions)
    context.reply(reply_to, OffsetDeleteResponse, deciding_rule(verdicts), topics=topics)


def _present_partitions(
    group: Group, topic: TopicPartitions, gone: Mapping[str, set[int]], pending: Container[int]
) -> set[int]:
    """Return the requested partitions that have a committed or pending offset and are not yet in `gone`."""
    offsets, seen = group.offsets.get(topic.name, {}), gone.get(topic.name, ())
    # A request may name a topic many times, so the work depends on the requested partitions, not on the
    # group's.
    return {p for p in topic.partition_indexes if (p in offsets or p in pending) and p not in seen}


# Retention: unused offsets expire. A group without members and offsets is deleted. Rows Z1 to Z7.
#
# A pass is due at a multiple of `offsets.retention.check.interval.ms`. Only the first pass that could expire
# an offset is armed, so an idle group takes no work. Source: OffsetMetadataManager.cleanupExpiredOffsets,
# ClassicGroup.offsetExpirationCondition, GroupMetadataManager.maybeDeleteGroup.


def retention_pass(context: StepContext) -> None:
    """Remove expired offsets. Delete the group if it has no members and no offsets, and none is pending."""
    group, config = context.group, context.config
    group.retention_deadline_ms = None
    expired: dict[str, list[int]] = {}
    own_times = set()
    pending = group.pending_partitions()
    for topic, partition, offset in _expirable(context):
        if _due_ms(group, offset, config) <= context.now_ms:
            if partition in pending.get(topic, ()):
                context.rule("Z7")
                continue
            own_times.add(offset.expire_at_ms is not None)
            expired.setdefault(topic, []).append(partition)
    if expired:
        by, since = group.why_expired()
        row, reason = context.rule(by), f"{since} for {config.offsets_retention_minutes} minutes"
        if True in own_times:
            by_committer = context.rule("Z4")
            row = row if False in own_times else by_committer
            reason += ", or for as long as the committer chose"
        context.forget(expired)
        context.record(row, EntryType.OFFSETS_EXPIRED, reason, partitions=expired)
    if group.is_over():
        context.delete_group(context.rule("Z6"), "it has no members and no offsets")
    else:
        context.retention_is_stale = True


def arm_retention(context: StepContext, group: KafkaGroup) -> None:
    """At the end of a step, arm the first pass that could expire an offset."""
    if context.retention_is_stale:
        _arm_for_all(context, group)
        return
    if not context.offset_changes or not group.can_expire_offsets:
        return
    topics = dict.fromkeys(change.topic for change in context.offset_changes)
    subscribed = {topic for topic in topics if group.is_subscribed(topic)}
    for change in context.offset_changes:
        if change.offset is not None and change.topic not in subscribed:
            _arm_by(context, _due_ms(group, change.offset, context.config))


def _arm_for_all(context: StepContext, group: KafkaGroup) -> None:
    group.retention_deadline_ms = None
    if group.is_over():
        _arm_by(context, context.now_ms)
        return
    if group.offsets and not group.can_expire_offsets:
        context.rule("Z5")
        return
    # A partition with a pending offset does not expire. This runs again when none is pending.
    pending = group.pending_partitions()
    due_ms = min(
        (
            _due_ms(group, offset, context.config)
            for topic, partition, offset in _expirable(context)
            if partition not in pending.get(topic, ())
        ),
        default=None,
    )
    if due_ms is not None:
        _arm_by(context, due_ms)


def _arm_by(context: StepContext, due_ms: int) -> None:
    """Arm the first pass after now that is not before `due_ms`, unless an earlier pass is armed."""
    interval_ms = context.config.offsets_retention_check_interval_ms
    pass_ms = max(-(-due_ms // interval_ms), context.now_ms // interval_ms + 1) * interval_ms
    armed_ms = context.group.retention_deadline_ms
    if armed_ms is None or pass_ms < armed_ms:
        context.group.retention_deadline_ms = context.deadline_at(pass_ms)


def _expirable(context: StepContext) -> Iterator[tuple[str, int, Offset]]:
    group = context.group
    subscribed = group.subscribed()
    for topic, partitions in group.offsets.items():
        if topic not in subscribed:
            for partition, offset in partitions.items():
                yield topic, partition, offset


def _due_ms(group: KafkaGroup, offset: Offset, config: CoordinatorConfig) -> int:
    if offset.expire_at_ms is not None:
        return offset.expire_at_ms
    abandoned_ms = group.abandoned_since_ms
    base_ms = offset.committed_at_ms if abandoned_ms is None else abandoned_ms
    return base_ms + config.offsets_retention_ms


# TopicMetadata: offsets of deleted topics are removed. Rows D6 to D9.
#
# Source: OffsetMetadataManager.onTopicsDeleted. Kafka's coordinator receives the ids of deleted topics.
# This coordinator receives the existing topics from a watcher, whose broker may lag.


# The number of deleted topic ids that a group remembers.
DELETED_IDS_MAX = 64


def topic_metadata(context: StepContext, request: TopicMetadata) -> None:
    """Remove the offsets of deleted topics, and store the topic ids of the others. Known metadata changes
    nothing.
    """
    pending = context.group.pending_partitions()
    for name, image in request.topics.items():
        if name not in context.group.offsets and name not in pending:
            continue
        offsets = _offsets_of(context, name)
        if image is None:
            _forget(context, context.rule("D6"), name, lambda _: True, "the topic was deleted")
        elif image.id.bytes in context.group.deleted_topic_ids:
            context.rule("D9")
        else:
            _update_topic_id(context, name, image, offsets)


def _offsets_of(context: StepContext, name: str) -> list[Offset]:
    """Return the offsets of a topic, both committed and pending in transactions."""
    group = context.group
    offsets = list(group.offsets.get(name, {}).values())
    for entry in group.pending:
        offsets += entry.offsets.get(name, {}).values()
    return offsets


def _update_topic_id(context: StepContext, name: str, image: TopicImage, offsets: list[Offset]) -> None:
    topic_id = image.id.bytes
    if any(is_of_another_topic(offset, topic_id) for offset in offsets):
        why = "the topic was deleted and made again"
        _forget(context, context.rule("D7"), name, lambda offset: offset.topic_id != topic_id, why)
    elif any(offset.topic_id is None for offset in offsets):
        context.rule("D8")
        for partition, offset in list(context.group.offsets.get(name, {}).items()):
            if offset.topic_id is None:
                context.commit(name, partition, replace(offset, topic_id=topic_id))
        set_topic_id(context, name, topic_id)


def _forget(
    context: StepContext, rule: RuleId, name: str, is_gone: Callable[[Offset], bool], why: str
) -> None:
    group = context.group
    ids = dict.fromkeys(
        offset.topic_id
        for offset in _offsets_of(context, name)
        if offset.topic_id is not None and is_gone(offset)
    )
    remember_deleted(group, ids)
    committed = {p for p, offset in group.offsets.get(name, {}).items() if is_gone(offset)}
    pending = forget_pending(context, lambda topic, _, offset: topic == name and is_gone(offset))
    if committed:
        context.forget({name: sorted(committed)})
    partitions = {name: sorted(committed | pending.get(name, set()))}
    context.record(rule, EntryType.OFFSETS_DELETED, why, partitions=partitions)


def remember_deleted(group: Group, ids: Collection[bytes]) -> None:
    """Remember these topic ids as the latest that were deleted or replaced."""
    deleted = [*(known for known in group.deleted_topic_ids if known not in ids), *ids]
    group.deleted_topic_ids = deleted[-DELETED_IDS_MAX:]


# Pending offsets of deleted partitions, and their topic ids. Row TO17.


def forget_pending(context: StepContext, is_gone: Callable[[str, int, Offset], bool]) -> dict[str, set[int]]:
    """Remove the pending offsets for which `is_gone(topic, partition, offset)` is true.

    Return the partitions of the removed offsets by topic.
    """
    gone: dict[str, set[int]] = {}
    kept: list[PendingOffsets] = []
    for entry in context.group.pending:
        left, is_changed = _remaining_offsets(entry, is_gone, gone)
        changed = replace(entry, offsets=left) if left else None
        if changed is not None:
            kept.append(changed)
        if is_changed:
            change = TransactionChange(entry.producer_id, entry.request, changed)
            context.transaction_changes.append(change)
    if gone:
        context.rule("TO17")
        context.retention_is_stale = True
        context.group.pending = kept
    return gone


def _remaining_offsets(
    entry: PendingOffsets, is_gone: Callable[[str, int, Offset], bool], gone: dict[str, set[int]]
) -> tuple[dict[str, dict[int, Offset]], bool]:
    """Return the remaining offsets of an entry, and True if any was removed. The removed ones are added to
    `gone`.
    """
    left: dict[str, dict[int, Offset]] = {}
    is_changed = False
    for topic, offsets in entry.offsets.items():
        out = {p for p, offset in offsets.items() if is_gone(topic, p, offset)}
        if out:
            gone.setdefault(topic, set()).update(out)
            is_changed = True
        if rest := {p: offset for p, offset in offsets.items() if p not in out}:
            left[topic] = rest
    return left, is_changed


def set_topic_id(context: StepContext, topic: str, topic_id: bytes) -> None:
    """Set the topic id of the topic's pending offsets that have none."""
    pending = context.group.pending
    for n, entry in enumerate(pending):
        known = entry.offsets.get(topic, {})
        if any(offset.topic_id is None for offset in known.values()):
            named = {
                p: offset if offset.topic_id is not None else replace(offset, topic_id=topic_id)
                for p, offset in known.items()
            }
            pending[n] = replace(entry, offsets=entry.offsets | {topic: named})


def pending_offsets(group: Group) -> dict[str, dict[int, int]]:
    """Return the offsets that are pending in transactions, by topic and partition. The last one of a
    partition counts.
    """
    found: dict[str, dict[int, int]] = {}
    for entry in group.pending:
        for topic, offsets in entry.offsets.items():
            found.setdefault(topic, {}).update({p: offset.offset for p, offset in offsets.items()})
    return found


# The positions of offsets when a group moves to another requests topic.


def precede_other_log(group: Group) -> None:
    """Renumber the positions of the group's offsets. They keep their order, and precede every request of
    another log, which starts at position 0.
    """
    committed = [offset.position for offsets in group.offsets.values() for offset in offsets.values()]
    ordered = sorted({*committed, *(entry.position for entry in group.pending)})
    renumbered = {position: (n - len(ordered), 0) for n, position in enumerate(ordered)}
    group.offsets = {topic: _moved(offsets, renumbered) for topic, offsets in group.offsets.items()}
    group.pending = [
        replace(
            entry,
            position=renumbered[entry.position],
            offsets={topic: _moved(offsets, renumbered) for topic, offsets in entry.offsets.items()},
        )
        for entry in group.pending
    ]


def _moved(offsets: dict[int, Offset], renumbered: dict[LogPosition, LogPosition]) -> dict[int, Offset]:
    return {p: replace(offset, position=renumbered[offset.position]) for p, offset in offsets.items()}
