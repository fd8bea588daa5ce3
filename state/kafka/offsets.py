"""Committed offsets: fetch, deletion, expiry, and topics that are deleted. Rows Q1 to Q5, D1 to D9, Z1 to Z7,
TO17.

Source: OffsetMetadataManager.java.

A row, such as Q2, is a rule of docs/rules.md. `context.cite` records that a row was applied.
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


_NO_OFFSET = Offset(
    offset=-1, leader_epoch=-1, metadata="", committed_at_ms=-1, expire_at_ms=None, topic_id=None
)

CommittedOffsets = Mapping[str, Mapping[int, Offset]]
PartitionsOfTopics = Mapping[str, Container[int]]


def fetch(context: StepContext, request: OffsetFetch, reply_to: ReplyTo) -> None:
    """Answer with the committed offsets of a group. The group's protocol has already checked that the sender
    may fetch them.
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
    row: RuleId | None = None,
) -> None:
    """Answer with `offsets`, for all topics or for those that the request names. A missing offset is not an
    error.

    The partitions in `unstable` have offsets that are pending in a transaction, and get the error
    UNSTABLE_OFFSET_COMMIT (row Q4). The row of the answer is `row`, by default Q2 or Q3.
    """
    if request.topics is None:
        default_row = context.cite("Q2")
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
            for topic in _without_duplicates(request.topics)
        ]
        default_row = context.cite("Q3")
    context.reply(reply_to, OffsetFetchResponse, row or default_row, topics=topics)


def fetch_nothing(context: StepContext, request: OffsetFetch, reply_to: ReplyTo, row: str) -> None:
    """Answer that nothing is committed."""
    answer_fetch(context, request, reply_to, offsets={}, unstable={}, row=context.cite(row))


def _without_duplicates(topics: Sequence[TopicPartitions]) -> list[TopicPartitions]:
    """Return each requested topic once, and each of its requested partitions once."""
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
    """Return the committed offsets of the requested partitions of one topic. An offset that was committed for
    another topic of the same name counts as missing (row Q5).
    """
    topic_id = None if topic.topic_id is None else topic.topic_id.bytes
    partitions = []
    for partition in topic.partition_indexes:
        offset = offsets.get(partition, _NO_OFFSET)
        if is_of_another_topic(offset, topic_id):
            context.cite("Q5")
            offset = _NO_OFFSET
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
        context.cite("Q4")
        return FetchedPartition(
            partition,
            committed_offset=-1,
            committed_leader_epoch=-1,
            metadata="",
            error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
        )
    topic_id = None if offset.topic_id is None else UUID(bytes=offset.topic_id)
    return FetchedPartition(partition, offset.offset, offset.leader_epoch, offset.metadata, topic_id)


# OffsetDelete: removal of offsets by request (KIP-496). Rows D1 to D5.
#
# Source: OffsetMetadataManager.deleteOffsets, ClassicGroup.validateOffsetDelete.


def delete_offsets(context: StepContext, request: OffsetDelete, reply_to: ReplyTo) -> None:
    """Remove offsets of topics that no member of the group subscribes to."""
    group = context.group
    if not group.allows_offset_delete:
        context.reply(reply_to, OffsetDeleteResponse, context.cite("D2"), ErrorCode.NON_EMPTY_GROUP)
        return
    subscribed = group.subscribed_of(topic.name for topic in request.topics)
    deleted: dict[str, set[int]] = {}  # partitions with an offset to delete, by topic
    deletion_row: RuleId | None = None  # None if there is nothing to delete
    verdicts: list[RuleAndError] = []
    topics = []
    pending = group.pending_partitions()
    for topic in request.topics:
        partitions = _partitions_to_delete(group, topic, deleted, pending.get(topic.name, ()))
        if topic.name in subscribed:
            verdict = context.cite("D3"), ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        elif partitions:
            deletion_row = context.cite("D4")
            verdict = deletion_row, ErrorCode.NONE
            deleted.setdefault(topic.name, set()).update(partitions)
        else:
            verdict = context.cite("D5"), ErrorCode.NONE
        verdicts.append(verdict)
        topics.append(
            TopicErrors(topic.name, [PartitionError(p, verdict[1]) for p in topic.partition_indexes])
        )
    if deletion_row is not None:
        remove_pending_offsets(context, lambda topic, partition, _: partition in deleted.get(topic, ()))
        partitions_by_topic = {topic: sorted(partitions) for topic, partitions in deleted.items()}
        # Some of the partitions may have had only a pending offset.
        committed = {
            topic: [p for p in partitions if p in group.offsets[topic]]
            for topic, partitions in partitions_by_topic.items()
            if topic in group.offsets
        }
        context.remove_offsets(committed)
        context.record(
            deletion_row, EntryType.OFFSETS_DELETED, "deleted by request", partitions=partitions_by_topic
        )
    context.reply(reply_to, OffsetDeleteResponse, deciding_rule(verdicts), topics=topics)


def _partitions_to_delete(
    group: Group, topic: TopicPartitions, deleted: Mapping[str, set[int]], pending: Container[int]
) -> set[int]:
    """Return the requested partitions of `topic` that have a committed or pending offset and are not yet in
    `deleted`.
    """
    offsets, already_deleted = group.offsets.get(topic.name, {}), deleted.get(topic.name, ())
    # A request may name a topic many times, so the work depends on the requested partitions, not on the
    # group's.
    return {p for p in topic.partition_indexes if (p in offsets or p in pending) and p not in already_deleted}


# Retention: unused offsets expire. A group without members and offsets is deleted. Rows Z1 to Z7.
#
# A retention pass checks all offsets of a group. It is due at a multiple of
# `offsets.retention.check.interval.ms`. Only the first pass that could expire an offset is armed, so an idle
# group takes no work. Source: OffsetMetadataManager.cleanupExpiredOffsets,
# ClassicGroup.offsetExpirationCondition, GroupMetadataManager.maybeDeleteGroup.


def retention_pass(context: StepContext) -> None:
    """Remove expired offsets. Delete the group if it has no members and no offsets, and none is pending."""
    group, config = context.group, context.config
    group.retention_deadline_ms = None
    expired: dict[str, list[int]] = {}
    # True if an offset has expired at a time that its committer chose, or else by the retention time.
    has_chosen_expiry = has_retention_expiry = False
    pending = group.pending_partitions()
    for topic, partition, offset in _expirable_offsets(context):
        if _expires_at_ms(group, offset, config) <= context.now_ms:
            if partition in pending.get(topic, ()):
                context.cite("Z7")
                continue
            if offset.expire_at_ms is not None:
                has_chosen_expiry = True
            else:
                has_retention_expiry = True
            expired.setdefault(topic, []).append(partition)
    if expired:
        row_id, condition = group.why_expired
        row, reason = context.cite(row_id), f"{condition} for {config.offsets_retention_minutes} minutes"
        if has_chosen_expiry:
            chosen_expiry_row = context.cite("Z4")
            row = row if has_retention_expiry else chosen_expiry_row
            reason += ", or for as long as the committer chose"
        context.remove_offsets(expired)
        context.record(row, EntryType.OFFSETS_EXPIRED, reason, partitions=expired)
    if group.is_over():
        context.delete_group(context.cite("Z6"), "it has no members and no offsets")
    else:
        context.retention_is_stale = True


def arm_retention(context: StepContext, group: KafkaGroup) -> None:
    """At the end of a step, arm the first retention pass that could expire an offset. Usually only the
    offsets that the step has stored matter.
    """
    if context.retention_is_stale:
        _arm_for_all_offsets(context, group)
        return
    if not context.offset_changes or not group.can_expire_offsets:
        return
    topics = dict.fromkeys(change.topic for change in context.offset_changes)
    subscribed = {topic for topic in topics if group.is_subscribed(topic)}
    for change in context.offset_changes:
        if change.offset is not None and change.topic not in subscribed:
            _arm_pass(context, _expires_at_ms(group, change.offset, context.config))


def _arm_for_all_offsets(context: StepContext, group: KafkaGroup) -> None:
    """Arm the first pass that could expire any offset of the group, or that deletes the group."""
    group.retention_deadline_ms = None
    if group.is_over():
        _arm_pass(context, context.now_ms)
        return
    if group.offsets and not group.can_expire_offsets:
        context.cite("Z5")
        return
    # A partition with a pending offset does not expire. This runs again when none is pending.
    pending = group.pending_partitions()
    due_ms = min(
        (
            _expires_at_ms(group, offset, context.config)
            for topic, partition, offset in _expirable_offsets(context)
            if partition not in pending.get(topic, ())
        ),
        default=None,
    )
    if due_ms is not None:
        _arm_pass(context, due_ms)


def _arm_pass(context: StepContext, due_ms: int) -> None:
    """Arm the first pass after now that is not before `due_ms`, unless an earlier pass is armed."""
    interval_ms = context.config.offsets_retention_check_interval_ms
    # Passes are at the multiples of the interval.
    due_multiple = -(-due_ms // interval_ms)  # the negations round up
    next_multiple = context.now_ms // interval_ms + 1
    pass_ms = max(due_multiple, next_multiple) * interval_ms
    armed_ms = context.group.retention_deadline_ms
    if armed_ms is None or pass_ms < armed_ms:
        context.group.retention_deadline_ms = context.deadline_at(pass_ms)


def _expirable_offsets(context: StepContext) -> Iterator[tuple[str, int, Offset]]:
    """Yield the topic, the partition and the committed offset of each topic without a subscriber."""
    group = context.group
    subscribed = group.subscribed()
    for topic, partitions in group.offsets.items():
        if topic not in subscribed:
            for partition, offset in partitions.items():
                yield topic, partition, offset


def _expires_at_ms(group: KafkaGroup, offset: Offset, config: CoordinatorConfig) -> int:
    """Return the time in ms at which the offset expires. Unless the committer chose it, the retention time
    counts from the loss of the group's last member, or from the commit (`Group.abandoned_since_ms`).
    """
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
    """Remove the offsets of deleted topics, and store the topic ids of the others. A report that the group
    has already applied changes nothing.
    """
    pending = context.group.pending_partitions()
    for name, image in request.topics.items():
        if name not in context.group.offsets and name not in pending:
            continue
        offsets = _offsets_of(context, name)
        if image is None:
            _delete_topic_offsets(context, context.cite("D6"), name, lambda _: True, "the topic was deleted")
        elif image.id.bytes in context.group.deleted_topic_ids:
            context.cite("D9")
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
    """Rows D7 and D8: remove the offsets of an earlier topic of this name. If there are none, give the
    offsets without a topic id the id of the topic.
    """
    topic_id = image.id.bytes
    if any(is_of_another_topic(offset, topic_id) for offset in offsets):
        reason = "the topic was deleted and made again"
        _delete_topic_offsets(
            context, context.cite("D7"), name, lambda offset: offset.topic_id != topic_id, reason
        )
    elif any(offset.topic_id is None for offset in offsets):
        context.cite("D8")
        for partition, offset in list(context.group.offsets.get(name, {}).items()):
            if offset.topic_id is None:
                context.store_offset(name, partition, replace(offset, topic_id=topic_id))
        set_topic_id_of_pending(context, name, topic_id)


def _delete_topic_offsets(
    context: StepContext, rule: RuleId, name: str, is_deleted: Callable[[Offset], bool], reason: str
) -> None:
    """Remove the topic's offsets for which `is_deleted` is true, and remember their topic ids."""
    group = context.group
    ids = dict.fromkeys(
        offset.topic_id
        for offset in _offsets_of(context, name)
        if offset.topic_id is not None and is_deleted(offset)
    )
    remember_deleted(group, ids)
    committed = {p for p, offset in group.offsets.get(name, {}).items() if is_deleted(offset)}
    pending = remove_pending_offsets(context, lambda topic, _, offset: topic == name and is_deleted(offset))
    if committed:
        context.remove_offsets({name: sorted(committed)})
    partitions = {name: sorted(committed | pending.get(name, set()))}
    context.record(rule, EntryType.OFFSETS_DELETED, reason, partitions=partitions)


def remember_deleted(group: Group, ids: Collection[bytes]) -> None:
    """Remember these topic ids as the latest that were deleted or replaced."""
    earlier_ids = [topic_id for topic_id in group.deleted_topic_ids if topic_id not in ids]
    group.deleted_topic_ids = [*earlier_ids, *ids][-DELETED_IDS_MAX:]


# Pending offsets of deleted partitions, and their topic ids. Row TO17.


def remove_pending_offsets(
    context: StepContext, is_deleted: Callable[[str, int, Offset], bool]
) -> dict[str, set[int]]:
    """Remove the pending offsets for which `is_deleted(topic, partition, offset)` is true.

    Return the partitions of the removed offsets by topic.
    """
    removed: dict[str, set[int]] = {}
    pending: list[PendingOffsets] = []
    for entry in context.group.pending:
        remaining, is_changed = _remaining_offsets(entry, is_deleted, removed)
        remaining_entry = replace(entry, offsets=remaining) if remaining else None
        if remaining_entry is not None:
            pending.append(remaining_entry)
        if is_changed:
            change = TransactionChange(entry.producer_id, entry.request, remaining_entry)
            context.transaction_changes.append(change)
    if removed:
        context.cite("TO17")
        context.retention_is_stale = True
        context.group.pending = pending
    return removed


def _remaining_offsets(
    entry: PendingOffsets, is_deleted: Callable[[str, int, Offset], bool], removed: dict[str, set[int]]
) -> tuple[dict[str, dict[int, Offset]], bool]:
    """Return the remaining offsets of an entry, and True if any was removed. The partitions of removed
    offsets are added to `removed`.
    """
    remaining: dict[str, dict[int, Offset]] = {}
    is_changed = False
    for topic, offsets in entry.offsets.items():
        deleted = {p for p, offset in offsets.items() if is_deleted(topic, p, offset)}
        if deleted:
            removed.setdefault(topic, set()).update(deleted)
            is_changed = True
        if remaining_of_topic := {p: offset for p, offset in offsets.items() if p not in deleted}:
            remaining[topic] = remaining_of_topic
    return remaining, is_changed


def set_topic_id_of_pending(context: StepContext, topic: str, topic_id: bytes) -> None:
    """Set the topic id of the topic's pending offsets that have none."""
    pending = context.group.pending
    for index, entry in enumerate(pending):
        offsets = entry.offsets.get(topic, {})
        if any(offset.topic_id is None for offset in offsets.values()):
            identified = {
                p: offset if offset.topic_id is not None else replace(offset, topic_id=topic_id)
                for p, offset in offsets.items()
            }
            pending[index] = replace(entry, offsets=entry.offsets | {topic: identified})


def pending_offsets(group: Group) -> dict[str, dict[int, int]]:
    """Return the offsets that are pending in transactions, by topic and partition. If a partition has
    several, the latest request's offset counts.
    """
    by_topic: dict[str, dict[int, int]] = {}
    for entry in group.pending:
        for topic, offsets in entry.offsets.items():
            by_topic.setdefault(topic, {}).update({p: offset.offset for p, offset in offsets.items()})
    return by_topic


# The positions of offsets when a group moves to another requests topic.


def precede_other_log(group: Group) -> None:
    """Renumber the positions of the group's offsets, in the same order, so that the last one is -1.

    They then precede every request of another log, which starts at position 0.
    """
    committed = [offset.position for offsets in group.offsets.values() for offset in offsets.values()]
    ordered = sorted({*committed, *(entry.position for entry in group.pending)})
    renumbered = {position: (index - len(ordered), 0) for index, position in enumerate(ordered)}
    group.offsets = {topic: _renumbered(offsets, renumbered) for topic, offsets in group.offsets.items()}
    group.pending = [
        replace(
            entry,
            position=renumbered[entry.position],
            offsets={topic: _renumbered(offsets, renumbered) for topic, offsets in entry.offsets.items()},
        )
        for entry in group.pending
    ]


def _renumbered(offsets: dict[int, Offset], renumbered: dict[LogPosition, LogPosition]) -> dict[int, Offset]:
    return {p: replace(offset, position=renumbered[offset.position]) for p, offset in offsets.items()}
