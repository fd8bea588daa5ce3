"""Decodes records of `__consumer_offsets` to the classes of `kafka_why.observed.records`."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from kafka_why.contract.kafka.history import CONSUMER, SHARE, STREAMS, Offset
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.observed import records
from kafka_why.observed.consumer_offsets.schemas import RawRecord, read
from kafka_why.observed.group import ACTIVE, STANDBY, WARM_UP, task_key
from kafka_why.observed.records import AnyRecord

_UNKNOWN = -1  # Kafka's default of fields that a version lacks


class GroupRecord(NamedTuple):
    """The group of a record, and its content."""

    group_id: str
    content: AnyRecord


def decode(key: bytes, value: bytes | None) -> GroupRecord:
    """Decode a record. Raises UnknownRecord, and ProtocolError if it is damaged."""
    raw = read(key, value)
    group_id = raw.key.group if raw.type in _TYPES_WITH_GROUP else raw.key.group_id
    return GroupRecord(group_id, _DECODERS[raw.type](raw))


def _decode_offset(raw: RawRecord) -> AnyRecord:
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


def _decode_generation(raw: RawRecord) -> AnyRecord:
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
        # Version 0 has only the session timeout.
        rebalance_timeout_ms=(
            member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout
        ),
        subscription=member.subscription,
        assignment=member.assignment,
    )


def _decode_epoch(kind: str, raw: RawRecord) -> AnyRecord:
    value = raw.value
    if value is None:
        return records.GroupEpochRemoved()
    if kind != STREAMS:
        return records.GroupEpoch(value.epoch, value.metadata_hash, kind)
    configs = {config.key: config.value for config in value.last_assignment_configs or ()}
    return records.GroupEpoch(value.epoch, value.metadata_hash, kind, value.validated_topology_epoch, configs)


def _decode_topics(raw: RawRecord) -> AnyRecord:
    topics = () if raw.value is None else raw.value.topics
    return records.SubscribedTopics(
        {topic.topic_id.bytes: (topic.topic_name, topic.num_partitions) for topic in topics if topic.topic_id}
    )


def _decode_member_record(
    record_class: Callable[[str, Any, str], AnyRecord],
    decode_value: Callable[[Any, str], Any],
    kind: str,
    raw: RawRecord,
) -> AnyRecord:
    """Decode a record about one member to `record_class`. The value of a tombstone is None."""
    value = None if raw.value is None else decode_value(raw.value, kind)
    return record_class(raw.key.member_id, value, kind)


def subscription_of(sent: Any, kind: str) -> records.MemberSubscription:
    """Return the subscription of a member.

    `sent` is a record's value, or a member in a group's description.
    """
    # Set if a consumer group's member uses the classic protocol.
    classic = getattr(sent, "classic_member_metadata", None)
    return records.MemberSubscription(
        instance_id=getattr(sent, "instance_id", None),
        rack_id=sent.rack_id,
        client_id=sent.client_id,
        client_host=sent.client_host,
        topic_names=tuple(getattr(sent, "subscribed_topic_names", ())),
        topic_regex=getattr(sent, "subscribed_topic_regex", None) or "",
        rebalance_timeout_ms=getattr(sent, "rebalance_timeout_ms", _UNKNOWN),
        server_assignor=getattr(sent, "server_assignor", None),
        is_classic=classic is not None,
        session_timeout_ms=0 if classic is None else classic.session_timeout_ms,
        streams=_streams_member(sent) if kind == STREAMS else None,
    )


def _streams_member(sent: Any) -> records.StreamsMember:
    endpoint = sent.user_endpoint
    return records.StreamsMember(
        topology_epoch=sent.topology_epoch,
        process_id=sent.process_id,
        user_endpoint=None if endpoint is None else f"{endpoint.host}:{endpoint.port}",
        client_tags={tag.key: tag.value for tag in sent.client_tags},
    )


def _decode_regex(raw: RawRecord) -> AnyRecord:
    topics = None if raw.value is None else tuple(raw.value.topics)
    return records.RegexResolved(raw.key.regular_expression, topics)


def _decode_target_epoch(kind: str, raw: RawRecord) -> AnyRecord:
    return records.TargetEpoch(None if raw.value is None else raw.value.assignment_epoch, kind)


def _target_of(value: Any, kind: str) -> Partitions:
    return tasks_of(value) if kind == STREAMS else partitions_of(value.topic_partitions)


def _assignment_of(value: Any, kind: str) -> records.MemberAssignment:
    if kind == STREAMS:  # states are numbered from 1, but from 0 in the other kinds of groups
        state, assigned, revoking = value.state - 1, tasks_of(value), tasks_of(value, "_pending_revocation")
    else:
        state, assigned = value.state, partitions_of(value.assigned_partitions)
        revoking = partitions_of(getattr(value, "partitions_pending_revocation", ()))
    return records.MemberAssignment(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=state,
        assigned=assigned,
        revoking=revoking,
    )


def _decode_share_partitions(raw: RawRecord) -> AnyRecord:
    value = raw.value
    if value is None:
        return records.SharePartitions(initializing={}, initialized={}, deleting=(), names={})
    topics = [*value.initializing_topics, *value.initialized_topics, *value.deleting_topics]
    return records.SharePartitions(
        initializing=partitions_of(value.initializing_topics),
        initialized=partitions_of(value.initialized_topics),
        deleting=tuple(topic.topic_id.bytes for topic in value.deleting_topics if topic.topic_id is not None),
        names={topic.topic_id.bytes: topic.topic_name for topic in topics if topic.topic_id is not None},
    )


def _decode_topology(raw: RawRecord) -> AnyRecord:
    return records.TopologySent(None, {}) if raw.value is None else topology_of(raw.value)


def topology_of(sent: Any) -> records.TopologySent:
    """Return the topology of a streams group. `sent` is a record's value, or part of a description."""
    topics = {
        subtopology.subtopology_id: (
            *subtopology.source_topics,
            *(f"/{regex}/" for regex in getattr(subtopology, "source_topic_regex", ())),
            *(topic.name for topic in subtopology.repartition_source_topics),
        )
        for subtopology in sent.subtopologies or ()
    }
    return records.TopologySent(sent.epoch, topics)


def tasks_of(value: Any, suffix: str = "") -> Partitions:
    """Return a member's tasks by role and subtopology, from the fields whose names end with `suffix`."""
    return {
        task_key(role, tasks.subtopology_id): sorted(tasks.partitions)
        for role, name in _ROLES
        for tasks in getattr(value, f"{name}_tasks{suffix}")
        if tasks.partitions
    }


def partitions_of(topics: Iterable[Any]) -> Partitions:
    """Return the partitions by topic id. Kafka writes each topic once, and always with an id."""
    return {topic.topic_id.bytes: sorted(topic.partitions) for topic in topics if topic.topic_id is not None}


_ROLES = ((ACTIVE, "active"), (STANDBY, "standby"), (WARM_UP, "warmup"))
_decode_subscribed = partial(_decode_member_record, records.MemberSubscribed, subscription_of)
_decode_target = partial(_decode_member_record, records.MemberTarget, _target_of)
_decode_assigned = partial(_decode_member_record, records.MemberAssigned, _assignment_of)
_TYPES_WITH_GROUP = (0, 1, 2)  # the keys of these types call the group id `group`
# By the type of the record: CoordinatorRecordType.java.
_DECODERS: dict[int, Callable[[RawRecord], AnyRecord]] = {
    0: _decode_offset,
    1: _decode_offset,
    2: _decode_generation,
    3: partial(_decode_epoch, CONSUMER),
    4: _decode_topics,
    5: partial(_decode_subscribed, CONSUMER),
    6: partial(_decode_target_epoch, CONSUMER),
    7: partial(_decode_target, CONSUMER),
    8: partial(_decode_assigned, CONSUMER),
    10: partial(_decode_subscribed, SHARE),
    11: partial(_decode_epoch, SHARE),
    12: partial(_decode_target_epoch, SHARE),
    13: partial(_decode_target, SHARE),
    14: partial(_decode_assigned, SHARE),
    15: _decode_share_partitions,
    16: _decode_regex,
    17: partial(_decode_epoch, STREAMS),
    19: partial(_decode_subscribed, STREAMS),
    20: partial(_decode_target_epoch, STREAMS),
    21: partial(_decode_target, STREAMS),
    22: partial(_decode_assigned, STREAMS),
    23: _decode_topology,
}
