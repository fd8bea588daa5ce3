"""The two most frequent requests to a Stable group, each decided in one pass: a member's heartbeat, and its
commit of one partition.

The general step decides the same (rows H8 and O8), and tests compare both over random logs. If another row
may apply, a function here changes nothing and returns None.
"""

from collections.abc import Mapping

from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.kafka.offsets import Offset, OffsetChange
from kafka_why.contract.kafka.requests import Heartbeat, OffsetCommit
from kafka_why.contract.kafka.responses import (
    HeartbeatResponse,
    OffsetCommitResponse,
    PartitionError,
    TopicErrors,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.commits import NAMES_MAX_CHARS, OWN_RETENTION_TIME, names_chars, topic_id_of
from state.kafka.context import Effects, Reply, position_of
from state.kafka.protocol import Renewal


def heartbeat(group: ClassicGroup, request: Heartbeat, request_id: str, now_ms: int) -> Effects | None:
    """Renew the session of a member by row H8."""
    member = _sender(group, request)
    if member is None:
        return None
    answer = HeartbeatResponse(
        group_id=request.group_id,
        correlation_id=request.correlation_id,
        request=request_id,
        error_code=ErrorCode.NONE,
        rule="H8",
    )
    deadline_ms = _renew_session(group, member, now_ms)
    return Effects(group, [Reply(request.reply_partition, answer)], [], [], ["H8"], deadline_ms)


def commit(group: ClassicGroup, request: OffsetCommit, request_id: str, now_ms: int) -> Effects | None:
    """Store a member's offset of one partition, without metadata and with the group's own retention, by row
    O8.
    """
    member = _sender(group, request)
    if member is None or len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    topic = request.topics[0]
    partition = topic.partitions[0]
    number = partition.partition_index
    may_expire = group.can_expire_offsets and not group.is_subscribed(topic.name)
    if (
        may_expire
        or partition.committed_metadata
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
    group.offsets.setdefault(topic.name, {})[number] = offset
    answer = OffsetCommitResponse(
        group_id=request.group_id,
        correlation_id=request.correlation_id,
        request=request_id,
        error_code=ErrorCode.NONE,
        rule="O8",
        topics=[TopicErrors(topic.name, [PartitionError(number, ErrorCode.NONE)])],
    )
    change = OffsetChange(topic.name, number, offset)
    deadline_ms = _renew_session(group, member, now_ms)
    return Effects(group, [Reply(request.reply_partition, answer)], [], [change], ["O8"], deadline_ms)


RENEWALS: Mapping[type, Renewal] = {Heartbeat: heartbeat, OffsetCommit: commit}


def _sender(group: ClassicGroup, request: Heartbeat | OffsetCommit) -> ClassicGroupMember | None:
    """Return the member that sent the request, or None if the group does not accept it at once."""
    if (
        group.state is not GroupState.STABLE
        or request.generation_id != group.generation
        or group.quarantined is not None
    ):
        return None
    instance_id = request.group_instance_id
    if instance_id is not None and group.static_members.get(instance_id) != request.member_id:
        return None
    return group.members.get(request.member_id)


def _renew_session(group: ClassicGroup, member: ClassicGroupMember, now_ms: int) -> int:
    """Set the group's clock, and return the new deadline of the member's session."""
    group.clock_ms = now_ms
    member.heartbeat_deadline_ms = now_ms + max(member.session_timeout_ms, 0)
    return member.heartbeat_deadline_ms
