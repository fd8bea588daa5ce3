"""Decodes records of `__consumer_offsets` to what they say (`state.kafka.observed.records`)."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from records.consumer_offsets.schemas import RawRecord, read
from state.kafka.consumer_group import Partitions
from state.kafka.group import Offset
from state.kafka.observed import records
from state.kafka.observed.records import AnyRecord

_UNKNOWN = -1


class GroupRecord(NamedTuple):
    """A record of one group. `says` is None if it is of a group that is not observed: of a share or streams
    group.
    """

    group_id: str
    says: AnyRecord | None


def decode(key: bytes, value: bytes | None) -> GroupRecord:
    """Decode a record. Raises UnknownRecord, and ProtocolError if it is damaged."""
    raw = read(key, value)
    group_id = raw.key.group if raw.type in _WITH_GROUP else raw.key.group_id
    says = _SAYS.get(raw.type)
    return GroupRecord(group_id, None if says is None else says(raw))


def _offset(raw: RawRecord) -> AnyRecord:
    key, value = raw.key, raw.value
    if value is None:
        return records.OffsetCommitted(key.topic, key.partition, None)
    expire_at_ms = getattr(value, "expire_timestamp", _UNKNOWN)
    topic_id = getattr(value, "topic_id", None)
    offset = Offset(
        offset=value.offset,
        leader_epoch=getattr(value, "leader_epoch", _UNKNOWN),
        metadata=value.metadata,
        committed_at_ms=value.commit_timestamp,
        expire_at_ms=None if expire_at_ms == _UNKNOWN else expire_at_ms,
        topic_id=None if topic_id is None else topic_id.bytes,
    )
    return records.OffsetCommitted(key.topic, key.partition, offset)


def _generation(raw: RawRecord) -> AnyRecord:
    value = raw.value
    if value is None:
        return records.ClassicGroupRemoved()
    since_ms = value.current_state_timestamp
    return records.ClassicGeneration(
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol_name=value.protocol,
        leader_id=value.leader,
        since_ms=None if since_ms < 0 else since_ms,
        members=tuple(map(_classic_member, value.members)),
    )


def _classic_member(member: Any) -> records.ClassicMember:
    return records.ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout,
        # Version 0 had one timeout for both.
        rebalance_timeout_ms=(
            member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout
        ),
        subscription=member.subscription,
        assignment=member.assignment,
    )


def _epoch(raw: RawRecord) -> AnyRecord:
    if raw.value is None:
        return records.GroupEpochRemoved()
    return records.GroupEpoch(raw.value.epoch, raw.value.metadata_hash)


def _topics(raw: RawRecord) -> AnyRecord:
    topics = () if raw.value is None else raw.value.topics
    return records.SubscribedTopics(
        {topic.topic_id.bytes: (topic.topic_name, topic.num_partitions) for topic in topics if topic.topic_id}
    )


def _subscription(raw: RawRecord) -> AnyRecord:
    value = raw.value
    if value is None:
        return records.MemberSubscribed(raw.key.member_id, None)
    classic = value.classic_member_metadata
    subscription = records.MemberSubscription(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=tuple(value.subscribed_topic_names),
        topic_regex=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        is_classic=classic is not None,
        session_timeout_ms=0 if classic is None else classic.session_timeout_ms,
    )
    return records.MemberSubscribed(raw.key.member_id, subscription)


def _regex(raw: RawRecord) -> AnyRecord:
    topics = None if raw.value is None else tuple(raw.value.topics)
    return records.RegexResolved(raw.key.regular_expression, topics)


def _target_epoch(raw: RawRecord) -> AnyRecord:
    if raw.value is None:
        return records.TargetEpoch(None, None)
    return records.TargetEpoch(raw.value.assignment_epoch, raw.value.assignment_timestamp or None)


def _target(raw: RawRecord) -> AnyRecord:
    partitions = None if raw.value is None else _partitions(raw.value.topic_partitions)
    return records.MemberTarget(raw.key.member_id, partitions)


def _assignment(raw: RawRecord) -> AnyRecord:
    value = raw.value
    if value is None:
        return records.MemberAssigned(raw.key.member_id, None)
    assignment = records.MemberAssignment(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=value.state,
        assigned=_partitions(value.assigned_partitions),
        revoking=_partitions(value.partitions_pending_revocation),
    )
    return records.MemberAssigned(raw.key.member_id, assignment)


def _partitions(topics: Iterable[Any]) -> Partitions:
    """Partitions by topic id. Kafka writes no topic without an id, and none twice."""
    return {topic.topic_id.bytes: sorted(topic.partitions) for topic in topics if topic.topic_id is not None}


_WITH_GROUP = (0, 1, 2)  # the keys of these types call the group id `group`
# By the type of the record: CoordinatorRecordType.java.
_SAYS: dict[int, Callable[[RawRecord], AnyRecord]] = {
    0: _offset,
    1: _offset,
    2: _generation,
    3: _epoch,
    4: _topics,
    5: _subscription,
    6: _target_epoch,
    7: _target,
    8: _assignment,
    16: _regex,
}
OBSERVED_TYPES = frozenset(_SAYS)
"""The types of records that are of observed groups."""
