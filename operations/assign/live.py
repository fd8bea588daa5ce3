"""Conversion of a live group of the coordinator to the input of `assign`."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import re2

from kafka_why.assign.model import GroupSpec, InputError, Member
from kafka_why.contract.kafka.history import DEAD, GroupState
from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot
from kafka_why.contract.protocols.subscriptions import ProtocolError, TopicPartition, decode_subscription
from kafka_why.groups.describe import PartitionRow, assigned_partitions
from records.topic_patterns import matching

_NO_ANSWER: Final[Mapping[str, str]] = MappingProxyType(
    {DEAD: "does not exist", GroupState.EMPTY: "has no members"}
)


def live_group(
    described: GroupSnapshot, topics: Mapping[str, int], rows: Iterable[PartitionRow]
) -> GroupSpec:
    """Return the group with its subscriptions and assignments; a partition's weight is its lag in records.

    `topics` are the existing topics that `subscribed_topics` names; members may subscribe to others, which
    are omitted. Racks are omitted too: members send theirs, but the racks of partitions are not read. Raises
    InputError for a group without members, and for a classic group that is not Stable, because only then does
    the coordinator return the members' subscriptions.
    """
    if (type_ := described.group_type) in ("share", "streams"):
        raise InputError(
            f"group {described.group_id} is a {type_} group, whose assignors are of another kind"
        )
    state = described.state
    if state in _NO_ANSWER or (not described.consumer and state != GroupState.STABLE):
        reason = _NO_ANSWER.get(state, f"is {state}: retry when it is Stable")
        raise InputError(f"group {described.group_id} {reason}")
    members = {member.member_id: _member(member, topics) for member in described.members}
    wanted = {topic for member in members.values() for topic in member.topics}
    existing = {topic: topics[topic] for topic in sorted(wanted)}
    there = frozenset(TopicPartition(topic, n) for topic, count in existing.items() for n in range(count))
    lags = {TopicPartition(row.topic, row.partition): row.lag for row in rows}
    return GroupSpec(
        topics=existing,
        members=members,
        current={m.member_id: there.intersection(assigned_partitions(m) or ()) for m in described.members},
        weights={p: lag for p in there if (lag := lags.get(p)) is not None and lag > 0},
    )


def subscribed_topics(described: GroupSnapshot, topics: Iterable[str]) -> set[str]:
    """Return the topics that members subscribe to: those that they name, existing or not, and those of the
    existing `topics` that match their patterns. Raises InputError.
    """
    return {topic for member in described.members for topic in _subscribed(member, topics)}


def _member(member: MemberSnapshot, topics: Mapping[str, int]) -> Member:
    existing = tuple(topic for topic in _subscribed(member, topics) if topic in topics)
    return Member(existing, member.group_instance_id)


def _subscribed(member: MemberSnapshot, topics: Iterable[str]) -> tuple[str, ...]:
    if (has := member.consumer) is not None:
        pattern = has.subscribed_topic_regex
        try:
            matched = matching(pattern, topics) if pattern else []
        except re2.error as error:
            raise InputError(f"the pattern {pattern!r} of member {member.member_id} has no result") from error
        return tuple(sorted({*has.subscribed_topic_names, *matched}))
    if not member.metadata:
        return ()
    try:
        return decode_subscription(member.metadata).topics
    except ProtocolError as error:
        raise InputError(f"the subscription of member {member.member_id} cannot be read: {error}") from error
