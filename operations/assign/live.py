"""A live group of the coordinator as the group of a question to `assign`."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import re2

from kafka_why.assign.model import GroupSpec, InputError, Member
from kafka_why.contract.kafka.responses import ConsumerGroupDescribeResponse, DescribedMember
from kafka_why.contract.kafka.states import DEAD, GroupState
from kafka_why.contract.protocols.consumer_protocol import ProtocolError, decode_subscription
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.describe import AnyMember, PartitionRow, assigned_partitions, instance_id
from kafka_why.groups.described import AnyDescribed, group_type
from records.topic_patterns import matching

_NO_ANSWER: Final[Mapping[str, str]] = MappingProxyType(
    {DEAD: "does not exist", GroupState.EMPTY: "has no members"}
)


def live_group(described: AnyDescribed, topics: Mapping[str, int], rows: Iterable[PartitionRow]) -> GroupSpec:
    """Return the group with its subscriptions and assignments; a partition's weight is its lag in records.

    `topics` are the existing topics that `subscribed_topics` names; members may subscribe to others, which
    are omitted. Racks are omitted too: members send theirs, but the racks of partitions are not read. Raises
    InputError for a group without members, and for a classic group that is not Stable, because only then does
    the coordinator return the members' subscriptions.
    """
    if (type_ := group_type(described)) in ("share", "streams"):
        raise InputError(
            f"group {described.group_id} is a {type_} group, whose assignors are of another kind"
        )
    is_of_consumers = isinstance(described, ConsumerGroupDescribeResponse)
    state = described.group_state
    if state in _NO_ANSWER or (not is_of_consumers and state != GroupState.STABLE):
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


def subscribed_topics(described: AnyDescribed, topics: Iterable[str]) -> set[str]:
    """Return all topics that members subscribe to, by name, existing or not, or by a pattern, of the
    existing `topics`. Raises InputError.
    """
    return {topic for member in described.members for topic in _subscribed(member, topics)}


def _member(member: AnyMember, topics: Mapping[str, int]) -> Member:
    existing = tuple(topic for topic in _subscribed(member, topics) if topic in topics)
    return Member(existing, instance_id(member))


def _subscribed(member: AnyMember, topics: Iterable[str]) -> tuple[str, ...]:
    if not isinstance(member, DescribedMember):
        pattern = member.subscribed_topic_regex
        try:
            matched = matching(pattern, topics) if pattern else []
        except re2.error as error:
            raise InputError(f"the pattern {pattern!r} of member {member.member_id} has no result") from error
        return tuple(sorted({*member.subscribed_topic_names, *matched}))
    if not member.member_metadata:
        return ()
    try:
        return decode_subscription(member.member_metadata).topics
    except ProtocolError as error:
        raise InputError(f"the subscription of member {member.member_id} cannot be read: {error}") from error
