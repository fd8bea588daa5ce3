"""Who may commit to a group of the consumer protocol and fetch from it, by member epoch. Rows OF3 to OF23.

A member whose epoch has moved on may still commit the partitions that it had at the epoch of its commit
(KIP-1251). No commit extends a session, and the state of the member does not matter (rows OF15, OF17).
Source: ConsumerGroup.validateOffsetCommit, ConsumerGroup.validateOffsetFetch.
"""

from collections.abc import Iterable

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import CommittedTopic, OffsetCommit, OffsetFetch, TxnOffsetCommit
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import StepContext, Verdict
from state.kafka.offsets.transactions import FIRST_VERSION_WITH_ERRORS_OF_GROUPS

FIRST_VERSION_WITH_MEMBER_EPOCH = 9


def check_commit(context: StepContext, request: OffsetCommit) -> Verdict:
    """Rows OF3, OF5 to OF13 for an OffsetCommit."""
    group = context.group_of(ConsumerGroup)
    if request.generation_id < 0 and group.is_empty:
        return context.rule("OF3"), ErrorCode.NONE
    member = group.members.get(request.member_id)
    if member is None:
        return context.rule("OF5"), ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None and request.api_version < FIRST_VERSION_WITH_MEMBER_EPOCH:
        return context.rule("OF6"), ErrorCode.UNSUPPORTED_VERSION
    return _validate_epoch(context, member, request.generation_id, request.topics)


def check_txn_commit(context: StepContext, request: TxnOffsetCommit) -> Verdict:
    """Rows OF3 to OF5, OF7 to OF13 and OF18 for a TxnOffsetCommit."""
    group = context.group_of(ConsumerGroup)
    has_no_epoch = request.generation_id < 0
    if has_no_epoch and group.is_empty:
        return context.rule("OF3"), ErrorCode.NONE
    if has_no_epoch and not request.member_id and request.group_instance_id is None:
        return context.rule("OF4"), ErrorCode.NONE
    member = group.members.get(request.member_id)
    if member is None:
        return context.rule("OF5"), ErrorCode.UNKNOWN_MEMBER_ID
    row, error = _validate_epoch(context, member, request.generation_id, request.topics)
    knows_error = request.api_version >= FIRST_VERSION_WITH_ERRORS_OF_GROUPS
    if error is ErrorCode.STALE_MEMBER_EPOCH and not knows_error:
        context.rule("OF18")
        error = ErrorCode.ILLEGAL_GENERATION
    return row, error


def check_fetch(context: StepContext, request: OffsetFetch) -> Verdict | None:
    """Rows OF21 to OF23. Return the row that refuses the request, None if none does."""
    if request.member_id is None and request.member_epoch < 0:
        context.rule("OF21")
        return None
    members = context.group_of(ConsumerGroup).members
    member = None if request.member_id is None else members.get(request.member_id)
    if member is None:
        return context.rule("OF22"), ErrorCode.UNKNOWN_MEMBER_ID
    row = context.rule("OF23")
    return None if request.member_epoch == member.member_epoch else (row, _stale(member))


def _validate_epoch(
    context: StepContext, member: ConsumerMember, epoch: int, topics: Iterable[CommittedTopic]
) -> Verdict:
    """Rows OF7 to OF13. One partition that may not be committed refuses the whole request."""
    if epoch == member.member_epoch:
        return context.rule("OF7"), ErrorCode.NONE
    if epoch > member.member_epoch:
        return context.rule("OF8"), _stale(member)
    context.rule("OF9")
    for topic in topics:
        topic_id = _topic_id(context.group_of(ConsumerGroup), topic)
        for partition in topic.partitions:
            since = _assignment_epoch(member, topic_id, partition.partition_index)
            if since is None or epoch < since:
                row = context.rule("OF11" if since is None else "OF12")
                context.rule("OF13")
                return row, _stale(member)
    return context.rule("OF10"), ErrorCode.NONE


def _topic_id(group: ConsumerGroup, topic: CommittedTopic) -> bytes | None:
    """The topic id of the request, else the one that the group knows by the topic's name."""
    if topic.topic_id is not None:
        return topic.topic_id.bytes
    known = group.topics.get(topic.name)
    return None if known is None else known.topic_id


def _assignment_epoch(member: ConsumerMember, topic_id: bytes | None, partition: int) -> int | None:
    """The epoch at which the member got the partition, None if it neither has it nor has to give it up."""
    if topic_id is None:
        return None
    assigned = member.assigned.get(topic_id, {})
    return assigned.get(partition, member.pending_revocation.get(topic_id, {}).get(partition))


def _stale(member: ConsumerMember) -> ErrorCode:
    """The error in the member's own protocol."""
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
