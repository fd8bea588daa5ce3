"""OffsetCommit: a member, or anyone while a group has no members, says how far it has read. Rows O1 to O9.

Source: OffsetMetadataManager.commitOffset, ClassicGroup.validateOffsetCommit.
"""

from state.errors import ErrorCode
from state.kafka.context import Turn
from state.kafka.group import GroupState, Offset
from state.kafka.requests import CommittedPartition, OffsetCommit, ReplyTo
from state.kafka.responses import OffsetCommitResponse, PartitionError, TopicErrors

FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 9  # KIP-848
OWN_RETENTION_TIME = -1  # the coordinator's, not the request's

END_OF_TIME_MS = 253_402_300_799_999  # the year 9999, so that a deadline is a time that Spark can hold


def commit(turn: Turn, request: OffsetCommit, reply_to: ReplyTo) -> None:
    """Keep each offset whose metadata is not too long, if the committer may commit at all."""
    error = _validate(turn, request)
    if error is not ErrorCode.NONE:
        turn.reply(reply_to, OffsetCommitResponse, error)
        return
    topics = [
        TopicErrors(
            topic.name,
            [
                PartitionError(p.partition_index, _keep(turn, request, topic.name, p))
                for p in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    turn.reply(reply_to, OffsetCommitResponse, topics=topics)


def _validate(turn: Turn, request: OffsetCommit) -> ErrorCode:
    """Rows O1 to O7, the first that applies."""
    if not turn.has_group:
        if request.generation_id >= 0:
            turn.rule("O1")
            knows_error = request.api_version >= FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND
            return ErrorCode.GROUP_ID_NOT_FOUND if knows_error else ErrorCode.ILLEGAL_GENERATION
        turn.rule("O2")
        turn.create_group("first OffsetCommit for this group id, by no member")
    group = turn.group
    if request.generation_id < 0 and group.state is GroupState.EMPTY:
        turn.rule("O3")
        return ErrorCode.NONE
    return _validate_member(turn, request)


def _validate_member(turn: Turn, request: OffsetCommit) -> ErrorCode:
    group = turn.group
    if request.generation_id < 0 and not request.member_id and request.group_instance_id is None:
        turn.rule("O4")
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        turn.rule("O5")
        return error
    if request.generation_id != group.generation:
        turn.rule("O6")
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        turn.rule("O7")
        return ErrorCode.REBALANCE_IN_PROGRESS
    turn.rule("O8")
    turn.arm_session(group.members[request.member_id])
    return ErrorCode.NONE


def _keep(turn: Turn, request: OffsetCommit, topic: str, partition: CommittedPartition) -> ErrorCode:
    metadata = partition.committed_metadata or ""
    if _java_length(metadata) > turn.config.offset_metadata_max_bytes:
        turn.rule("O9")
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    kept_for_ms = request.retention_time_ms
    offset = Offset(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=metadata,
        committed_at_ms=turn.now_ms,
        expire_at_ms=None if kept_for_ms == OWN_RETENTION_TIME else _end(turn.now_ms, kept_for_ms),
    )
    turn.commit(topic, partition.partition_index, offset)
    return ErrorCode.NONE


def _end(now_ms: int, kept_for_ms: int) -> int:
    return min(now_ms + kept_for_ms, END_OF_TIME_MS)


def _java_length(text: str) -> int:
    """What String.length() says: the setting is called bytes, and Kafka counts UTF-16 units."""
    return len(text) + sum(character > "\uffff" for character in text)
