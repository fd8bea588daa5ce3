"""OffsetCommit and TxnOffsetCommit, and the markers that end transactions. Rows O9, O12, TO1 to TO14.

`KafkaProtocol.check_commit` decides who may commit. Source: OffsetMetadataManager.commitOffset.

A row, such as TO6, is a rule of docs/rules.md. `context.cite` records that a row was applied.
"""

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType, LogPosition, MarkerOutcome, Offset, OffsetChange
from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommit,
    ReplyTo,
    TransactionMarker,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import (
    OffsetCommitResponse,
    PartitionError,
    TopicErrors,
    TransactionMarkerResponse,
    TxnOffsetCommitResponse,
)
from kafka_why.contract.messages import ErrorCode
from state.config import CoordinatorConfig
from state.kafka.context import (
    Effects,
    KafkaGroup,
    Reply,
    RuleAndError,
    RuleId,
    StepContext,
    position_of,
)
from state.kafka.group import EndedTransaction, Group, PendingOffsets

OWN_RETENTION_TIME = -1  # in a request: the coordinator's retention time applies

# The record of a committed offset has the names of its group and topic in its key and in its value. In a
# commit of 10,000 partitions, the two names may have 400 characters together.
NAMES_MAX_CHARS = 8 * 1024 * 1024

END_OF_TIME_MS = 253_402_300_799_999  # the year 9999, so that a deadline is a time that Spark can hold


def commit(context: StepContext, request: OffsetCommit, reply_to: ReplyTo, verdict: RuleAndError) -> None:
    """Store each offset whose metadata is not too long, if `verdict` accepts the committer."""
    row, error = verdict
    if error is not ErrorCode.NONE:
        context.reply(reply_to, OffsetCommitResponse, row, error)
        return
    if names_chars(request) > NAMES_MAX_CHARS:
        context.reply(
            reply_to, OffsetCommitResponse, context.cite("O12"), ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        )
        return
    position = context.position
    topics = partition_errors(
        request.topics, lambda topic, p: _store_committed_offset(context, request, topic, p, position)
    )
    context.reply(reply_to, OffsetCommitResponse, row, topics=topics)


def commit_one(
    group: KafkaGroup,
    request: OffsetCommit,
    request_id: str,
    now_ms: int,
    config: CoordinatorConfig,
    row: str,
    deadline_ms: int | None = None,
) -> Effects | None:
    """Store the offset of a commit of one partition, which `row` accepts. This is a faster `commit` with the
    same outcome.

    Change nothing and return None if the commit has several partitions, metadata or its own retention time,
    or if the offset may expire, because then a retention deadline has to be armed. `deadline_ms` is a
    deadline that the caller arms in this step, or None.
    """
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    topic = request.topics[0]
    partition = topic.partitions[0]
    number = partition.partition_index
    may_expire = group.can_expire_offsets and not group.is_subscribed(topic.name)
    if (
        may_expire
        or partition.committed_metadata
        or config.offset_metadata_max_bytes < 0  # then even empty metadata is too long
        or request.retention_time_ms != OWN_RETENTION_TIME
        or names_chars(request) > NAMES_MAX_CHARS
    ):
        return None
    offset = Offset(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata="",
        committed_at_ms=now_ms,
        expire_at_ms=None,
        topic_id=topic_id_of(group, topic, number),
        position=position_of(request_id),
    )
    answer = OffsetCommitResponse(
        group_id=request.group_id,
        correlation_id=request.correlation_id,
        request=request_id,
        error_code=ErrorCode.NONE,
        rule=row,
        topics=[TopicErrors(topic.name, [PartitionError(number, ErrorCode.NONE)])],
    )
    change = OffsetChange(topic.name, number, offset)
    effects = Effects(
        group,
        [Reply(request.reply_partition, answer)],
        history=[],
        offsets=[change],
        rules=[row],
        earliest_armed_ms=deadline_ms,
    )
    group.clock_ms = now_ms
    group.offsets.setdefault(topic.name, {})[number] = offset
    return effects


def partition_errors(
    topics: Iterable[CommittedTopic], error_of: Callable[[CommittedTopic, CommittedPartition], ErrorCode]
) -> list[TopicErrors]:
    """Return the error of each partition of a commit, as `error_of` decides, in the order of the request."""
    return [
        TopicErrors(
            topic.name, [PartitionError(p.partition_index, error_of(topic, p)) for p in topic.partitions]
        )
        for topic in topics
    ]


def names_chars(request: OffsetCommit | TxnOffsetCommit) -> int:
    """Row O12: return the number of characters of names in the commit's records (each name twice)."""
    return 2 * sum(
        len(topic.partitions) * (len(request.group_id) + len(topic.name)) for topic in request.topics
    )


def _store_committed_offset(
    context: StepContext,
    request: OffsetCommit,
    topic: CommittedTopic,
    partition: CommittedPartition,
    position: LogPosition,
) -> ErrorCode:
    """Store one committed offset unless its metadata is too long. Return the error of its partition."""
    if is_metadata_too_long(context, partition):
        context.cite("O9")
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    retention_ms = request.retention_time_ms
    expire_at_ms = (
        None if retention_ms == OWN_RETENTION_TIME else min(context.now_ms + retention_ms, END_OF_TIME_MS)
    )
    offset = _new_offset(context, topic, partition, position, expire_at_ms)
    context.store_offset(topic.name, partition.partition_index, offset)
    return ErrorCode.NONE


def _new_offset(
    context: StepContext,
    topic: CommittedTopic,
    partition: CommittedPartition,
    position: LogPosition,
    expire_at_ms: int | None = None,
) -> Offset:
    return Offset(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        committed_at_ms=context.now_ms,
        expire_at_ms=expire_at_ms,
        topic_id=topic_id_of(context.group, topic, partition.partition_index),
        position=position,
    )


def topic_id_of(group: Group, topic: CommittedTopic, partition: int) -> bytes | None:
    """Return the topic id that the request names. If it names none, return the topic id of the offset that
    the commit replaces, because both are for the same topic, or None if that is unknown, too.
    """
    if topic.topic_id is not None:
        return topic.topic_id.bytes
    replaced = group.offsets.get(topic.name, {}).get(partition)
    return None if replaced is None else replaced.topic_id


def is_metadata_too_long(context: StepContext, partition: CommittedPartition) -> bool:
    """Return True if the metadata of an offset is longer than `offset.metadata.max.bytes`."""
    text = partition.committed_metadata or ""
    # Kafka uses String.length, so UTF-16 units are counted, not bytes.
    length = len(text) + sum(character > "\uffff" for character in text)
    return length > context.config.offset_metadata_max_bytes


# Offsets in transactions: they are pending until the marker of their transaction. Rows TO1 to TO14.
#
# The brokers' transaction coordinator decides the outcome. It writes a marker into a partition of the markers
# topic, and the coordinator service brings it here as a TransactionMarker. Positions in that partition decide
# which marker ends an entry's transaction: the producer's earlier markers are below the position that the
# entry's request read, and its own marker is at or above it. Producer epochs cannot decide it, because in
# transactions of version 1 the epoch stays.
#
# Source: OffsetMetadataManager.commitTransactionalOffset and completeTransaction,
# ClassicGroup.validateOffsetCommit.


# The outcome of a marker for a pending offset. Rows TO10, TO11.
#
# The core uses this function, and so does the part of the service that reads the markers topic, so they
# cannot disagree.


def outcome_of(txn_version: int, producer_epoch: int, marker_epoch: int, committed: bool) -> MarkerOutcome:
    """Return the outcome of a marker for pending offsets at or below its position.

    `txn_version` and `producer_epoch` are those of the TxnOffsetCommit. `committed` is True if the marker
    commits its transaction.
    """
    # In version 2 the end of a transaction raises the epoch by one, and the marker has the raised epoch. In
    # version 1 the marker of a client's EndTxn has the producer's epoch. A higher epoch is the transaction
    # coordinator's own: the producer was fenced, or the transaction took too long.
    own_epoch = producer_epoch + 1 if txn_version > 1 else producer_epoch
    if marker_epoch < own_epoch:
        return MarkerOutcome.IGNORED
    if marker_epoch > own_epoch:
        return MarkerOutcome.DROPPED
    return MarkerOutcome.COMMIT if committed else MarkerOutcome.ABORT


# An ended transaction is remembered for this time, so that a late TxnOffsetCommit of it is refused. A client
# gives up a request much earlier. The offsets of an even later request would be pending until the next marker
# of its producer, so a sender must not write a request so late.
ENDED_KEPT_MS = 15 * 60_000

_FIRST_VERSION_WITH_TRANSACTION_ABORTABLE = 4
_FIRST_VERSION_WITH_EPOCH_OF_EACH_TRANSACTION = 5
FIRST_VERSION_WITH_MEMBER_EPOCH = 9  # of OffsetCommit
# of TxnOffsetCommit: the errors GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-1319)
FIRST_VERSION_WITH_ERRORS_OF_GROUPS = 6


def txn_commit(
    context: StepContext, request: TxnOffsetCommit, reply_to: ReplyTo, verdict: RuleAndError
) -> None:
    """Add each offset whose metadata is not too long to the pending offsets, if `verdict` accepts the
    committer.
    """
    _prune_ended_transactions(context)
    row, error = verdict
    is_abandoned = is_transaction_over(context.group, request) or is_overtaken(context.group, request)
    if error is ErrorCode.NONE and is_abandoned:
        row, error = context.cite("TO6"), error_of_an_ended_transaction(request.api_version)
    if error is ErrorCode.NONE and names_chars(request) > NAMES_MAX_CHARS:
        row, error = context.cite("O12"), ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if error is not ErrorCode.NONE:
        context.reply(reply_to, TxnOffsetCommitResponse, row, error)
        return
    position = context.position
    offsets: dict[str, dict[int, Offset]] = {}
    topics = partition_errors(
        request.topics, lambda topic, p: _add_pending_offset(context, offsets, topic, p, position)
    )
    row = context.cite("TO8")
    if offsets:
        context.add_pending(_pending_entry(context, request, offsets))
    context.reply(reply_to, TxnOffsetCommitResponse, row, topics=topics)


def is_transaction_over(group: Group, request: TxnOffsetCommit) -> bool:
    """Row TO6: return True if a marker has already ended the request's transaction. The client has then
    abandoned the request.
    """
    ended = group.ended.get(request.producer_id)
    return (
        ended is not None
        and _is_of_same_markers_partition(request, ended)
        and request.txn_position <= ended.txn_position
    )


def is_overtaken(group: Group, request: TxnOffsetCommit) -> bool:
    """Row TO6: return True if a later request of the producer is already pending.

    The client has then abandoned this one: it sends its requests one after the other, so a later request
    never has a lower position.
    """
    return any(
        entry.producer_id == request.producer_id
        and _is_of_same_markers_partition(request, entry)
        and request.txn_position < entry.txn_position
        for entry in group.pending
    )


def _is_of_same_markers_partition(
    request: TxnOffsetCommit | TransactionMarker, stored: EndedTransaction | PendingOffsets
) -> bool:
    """Return True if both positions are of the same partition of the same markers topic. An unknown topic id
    matches every topic.
    """
    topic_id = _markers_topic_id(request)
    is_same_topic = topic_id == stored.txn_topic_id or None in (topic_id, stored.txn_topic_id)
    return stored.txn_partition == request.txn_partition and is_same_topic


def error_of_an_ended_transaction(api_version: int) -> ErrorCode:
    """Return the error of a TxnOffsetCommit of this version whose transaction has ended."""
    if api_version >= _FIRST_VERSION_WITH_EPOCH_OF_EACH_TRANSACTION:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if api_version >= _FIRST_VERSION_WITH_TRANSACTION_ABORTABLE:
        return ErrorCode.TRANSACTION_ABORTABLE
    return ErrorCode.INVALID_TXN_STATE


def _add_pending_offset(
    context: StepContext,
    offsets: dict[str, dict[int, Offset]],
    topic: CommittedTopic,
    partition: CommittedPartition,
    position: LogPosition,
) -> ErrorCode:
    """Add one offset to `offsets`, which will be pending, unless its metadata is too long. Return the error
    of its partition.
    """
    if is_metadata_too_long(context, partition):
        context.cite("TO7")
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    offset = _new_offset(context, topic, partition, position)
    offsets.setdefault(topic.name, {})[partition.partition_index] = offset
    return ErrorCode.NONE


def _pending_entry(
    context: StepContext, request: TxnOffsetCommit, offsets: dict[str, dict[int, Offset]]
) -> PendingOffsets:
    return PendingOffsets(
        request=context.cause,
        position=context.position,
        at_ms=context.now_ms,
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        txn_version=request.txn_version,
        txn_partition=request.txn_partition,
        txn_position=request.txn_position,
        txn_topic_id=_markers_topic_id(request),
        offsets=offsets,
    )


def _markers_topic_id(request: TxnOffsetCommit | TransactionMarker) -> bytes | None:
    """Return the id of the markers topic in the form of the stored state, or None if it is unknown."""
    return None if request.txn_topic_id is None else request.txn_topic_id.bytes


def transaction_marker(context: StepContext, marker: TransactionMarker, reply_to: ReplyTo) -> None:
    """Commit or drop the pending offsets whose transaction this marker ends. This is never an error and
    creates no group.
    """
    row = None
    if context.has_group:
        _prune_ended_transactions(context)
        row = _apply_marker(context, marker)
    context.reply(reply_to, TransactionMarkerResponse, row or context.cite("TO9"))


def _apply_marker(context: StepContext, marker: TransactionMarker) -> RuleId | None:
    """Commit or drop the pending offsets whose transaction the marker ends. Return the row of the answer, or
    None if the marker reaches no pending offsets (`is_reached`).
    """
    row = None
    outcomes: list[tuple[PendingOffsets, MarkerOutcome, RuleId]] = []
    for entry in context.group.pending:
        if is_reached(entry, marker):
            row = context.cite("TO10" if entry.txn_version > 1 else "TO11")
            outcome = outcome_of(
                entry.txn_version, entry.producer_epoch, marker.producer_epoch, marker.committed
            )
            if outcome is not MarkerOutcome.IGNORED:
                outcomes.append((entry, outcome, row))
    if not outcomes:
        return row
    entries = [entry for entry, _, _ in outcomes]
    context.remove_pending(entries)
    for entry, outcome, deciding_row in outcomes:
        _end_entry(context, entry, outcome, deciding_row, marker)
    _store_ended_transaction(context, entries, marker)
    return context.cite("TO14")


def is_reached(entry: PendingOffsets, marker: TransactionMarker) -> bool:
    """Row TO9: return True if the entry is of the marker's producer, and its position is in the marker's
    range.
    """
    return (
        entry.producer_id == marker.producer_id
        and _is_of_same_markers_partition(marker, entry)
        and marker.first_position <= entry.txn_position <= marker.txn_position
    )


def _end_entry(
    context: StepContext,
    entry: PendingOffsets,
    outcome: MarkerOutcome,
    deciding_row: RuleId,
    marker: TransactionMarker,
) -> None:
    """Rows TO12 and TO13: commit or drop the offsets of an entry.

    `deciding_row` is the row that compared the epochs. It is also the row of the history entry if they show
    that the transaction ended without a marker.
    """
    if outcome is MarkerOutcome.COMMIT:
        context.cite("TO12")
        _commit_pending(context, entry)
        return
    if outcome is MarkerOutcome.ABORT:
        row, reason = context.cite("TO13"), "the transaction was aborted"
    else:
        row = deciding_row
        reason = f"the transaction was not committed: a marker of epoch {marker.producer_epoch} ended it"
    context.record(
        row,
        EntryType.TRANSACTION_DROPPED,
        reason,
        transactional_id=entry.transactional_id,
        producer_id=entry.producer_id,
        partitions={topic: sorted(offsets) for topic, offsets in entry.offsets.items()},
    )


def _commit_pending(context: StepContext, entry: PendingOffsets) -> None:
    """Commit each pending offset unless the committed offset's request is later in the log."""
    for topic, offsets in entry.offsets.items():
        for partition, offset in offsets.items():
            committed = context.group.offsets.get(topic, {}).get(partition)
            if committed is None:
                context.store_offset(topic, partition, offset)
            elif is_later_in_log(offset, committed):
                topic_id = offset.topic_id if offset.topic_id is not None else committed.topic_id
                context.store_offset(topic, partition, replace(offset, topic_id=topic_id))


def is_later_in_log(offset: Offset, committed: Offset) -> bool:
    """Row TO12: return True if the request of the pending `offset` is later in the log than the request of
    the `committed` offset.
    """
    return offset.position > committed.position


def _store_ended_transaction(
    context: StepContext, entries: list[PendingOffsets], marker: TransactionMarker
) -> None:
    """Row TO14: store the position up to which the producer's transactions have ended. The position of the
    same partition of the markers topic is never lowered.
    """
    stored = context.group.ended.get(marker.producer_id)
    position, topic_id = marker.txn_position, entries[-1].txn_topic_id
    if stored is not None and (stored.txn_partition, stored.txn_topic_id) == (marker.txn_partition, topic_id):
        position = max(position, stored.txn_position)
    context.group.ended[marker.producer_id] = EndedTransaction(
        marker.txn_partition, position, topic_id, context.now_ms
    )


def _prune_ended_transactions(context: StepContext) -> None:
    """Forget ended transactions that are too old to matter to a late request."""
    group, since_ms = context.group, context.now_ms - ENDED_KEPT_MS
    if any(ended.at_ms < since_ms for ended in group.ended.values()):
        group.ended = {p: ended for p, ended in group.ended.items() if ended.at_ms >= since_ms}


def extend_ended_retention(context: StepContext, by_ms: int) -> None:
    """Row TO18: extend the retention of ended transactions by the length of an outage.

    A request that was written during the outage is handled only now, and has to find its ended transaction.
    """
    group = context.group
    if group.ended:
        context.cite("TO18")
        group.ended = {p: replace(ended, at_ms=ended.at_ms + by_ms) for p, ended in group.ended.items()}
