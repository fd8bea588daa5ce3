"""Conversions of groups with members: the upgrade of a classic group to a consumer group, and the downgrade
of a consumer group to a classic group.

A classic member is a member of a consumer group whose client uses the classic protocol.

A row, such as UP1, is a rule of docs/rules-consumer.md. `context.cite` records that a row was applied.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from assignors.kafka.server_side import is_for_coordinator
from kafka_why.contract.kafka.history import EntryType, GroupState
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat
from kafka_why.contract.kafka.responses import JoinGroupResponse, SyncGroupResponse
from kafka_why.contract.kafka.snapshot import Partitions, listed, named
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import (
    Assignment,
    ProtocolError,
    Subscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
)
from state.config import MigrationPolicy
from state.kafka.classic import assignment, rebalance
from state.kafka.classic.assignment import forget_unsubscribed_topics, record_topics
from state.kafka.classic.rebalance import arm_session as arm_classic_session
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.consumer.target import SETTINGS
from state.kafka.consumer_group import AssignedPartitions, ClassicMember, ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext
from state.kafka.group import Group, Topic
from state.kafka.modern import RequestRefused, fingerprint

# The allowed conversions of groups with members: `group.consumer.migration.policy`. Rows PO1 to PO4.
#
# Source: ConsumerGroupMigrationPolicy.java.


_ROWS_OF_POLICIES = {
    MigrationPolicy.BIDIRECTIONAL: "PO1",
    MigrationPolicy.UPGRADE: "PO2",
    MigrationPolicy.DOWNGRADE: "PO3",
    MigrationPolicy.DISABLED: "PO4",
}


def allows_classic_members(context: StepContext) -> bool:
    """Return True if classic members may join a consumer group that has members."""
    if context.config.group_consumer_migration_policy is not MigrationPolicy.DISABLED:
        return True
    context.cite("PO4")
    return False


def _cite_policy(context: StepContext) -> MigrationPolicy:
    """Return the migration policy, and record its row."""
    policy = context.config.group_consumer_migration_policy
    context.cite(_ROWS_OF_POLICIES[policy])
    return policy


# A classic member's subscription and assignment, which are bytes, identify topics by name. A consumer group
# identifies them by topic id.


def by_topic_id(
    partitions: Iterable[TopicPartition], topics: Mapping[str, Topic | None]
) -> tuple[Partitions, list[str]]:
    """Return the distinct partitions by topic id, and the sorted names that are not in `topics`.

    A topic that is None in `topics` does not exist and is left out.
    """
    numbers: dict[bytes, set[int]] = {}
    unknown = set()
    for name, number in partitions:
        topic = topics.get(name)
        if topic is not None:
            numbers.setdefault(topic.topic_id, set()).add(number)
        elif name not in topics:
            unknown.add(name)
    return {topic_id: sorted(numbers[topic_id]) for topic_id in sorted(numbers)}, sorted(unknown)


def assignment_bytes(
    partitions: AssignedPartitions | Partitions, names: Mapping[bytes, str], subscription: bytes
) -> bytes:
    """Encode the partitions as a classic member's assignment, in the version of its `subscription`.

    `names` are names of topics by id. A topic without a name is left out.
    """
    by_name = {
        names[topic_id]: sorted(numbers) for topic_id, numbers in partitions.items() if topic_id in names
    }
    named = tuple(TopicPartition(name, number) for name in sorted(by_name) for number in by_name[name])
    return encode_assignment(Assignment(named), _version_of(subscription))


def _version_of(subscription: bytes) -> int:
    """Return the version of a subscription, or the lowest version if it is unreadable."""
    # A JoinGroup is checked only by its first protocol, so the bytes of another one may be unreadable.
    try:
        return max(decode_version(subscription), 0)
    except ProtocolError:
        return 0


# The downgrade: a consumer group whose members all are on the classic protocol becomes a classic group.
# Rows DN1 to DN13.
#
# Source: GroupMetadataManager (validateOnlineDowngradeWithFencedMembers,
# validateOnlineDowngradeWithReplacedMember, convertToClassicGroup), ClassicGroup.fromConsumerGroup.


def maybe_downgrade(context: StepContext, group: ConsumerGroup, reason: str) -> bool:
    """Convert the group to a classic group and start a rebalance, if only classic members remain and the
    policy allows it.

    Return True if it was converted. `reason` is a sentence about the removed members.
    """
    if not group.members or any(member.classic is None for member in group.members.values()):
        return False
    if not _allows_downgrade(context, len(group.members)):
        return False
    row = context.cite("DN1")
    convert(context, row, reason)
    rebalance.prepare_rebalance(
        context, context.group_of(ClassicGroup), row, f"{reason}; the group became a classic group"
    )
    return True


def would_downgrade(context: StepContext, replaced: ConsumerMember) -> bool:
    """Row CV15: return True if `replaced` is the last member on the consumer protocol, and the group may
    become a classic group when a classic member replaces it.
    """
    members = context.group_of(ConsumerGroup).members.values()
    others = [member for member in members if member.member_id != replaced.member_id]
    if replaced.classic is not None or any(member.classic is None for member in others):
        return False
    return _allows_downgrade(context, len(others) + 1)


def _allows_downgrade(context: StepContext, member_count: int) -> bool:
    """Return True if the policy and `group.max.size` allow the downgrade of a group with this number of
    members.
    """
    if _cite_policy(context).allows_downgrade and member_count <= context.config.group_max_size:
        return True
    context.cite("DN13")
    return False


def convert(context: StepContext, rule: RuleId, reason: str) -> ClassicGroup:
    """Convert the consumer group to a Stable classic group. Each member's target becomes its assignment."""
    old = context.group_of(ConsumerGroup)
    group = _classic_group(context, old)
    context.replace_group(group)
    for member in group.members.values():
        arm_classic_session(context, member)
    names = old.names_by_id()
    context.record(
        rule,
        EntryType.GROUP_CONVERTED,
        f"{reason}; all members are on the classic protocol now, so the consumer group becomes a classic "
        f"group of generation {group.generation}, in which each member is assigned its target",
        members=list(group.members),
        leader_id=group.leader_id,
        protocol_name=group.protocol_name,
        targets={member_id: named(old.target.get(member_id, {}), names) for member_id in group.members},
    )
    return group


def _classic_group(context: StepContext, old: ConsumerGroup) -> ClassicGroup:
    """Rows DN2 to DN5 and DN11: build the classic group from the consumer group."""
    group = ClassicGroup(
        **{name: getattr(old, name) for name in Group.__struct_fields__},
        state=GroupState.STABLE,
        previous_state=GroupState.COMPLETING_REBALANCE,
        generation=old.group_epoch,
        topics=old.topics,
    )
    group.state_timestamp_ms = context.now_ms
    for consumer_member in old.members.values():
        group.add(_classic_member(consumer_member), old.protocol_type)
    group.protocol_name = group.select_protocol()
    names = old.names_by_id()
    for member in group.members.values():
        target = old.target.get(member.member_id, {})
        member.assignment = assignment_bytes(target, names, member.metadata(group.protocol_name))
    if is_for_coordinator(group.protocol_name):
        group.partitions_per_topic = _partitions_per_topic(old, names)
    group.subscribed_topics = assignment.all_topics(assignment.subscriptions(group))
    forget_unsubscribed_topics(group)
    return group


def _partitions_per_topic(old: ConsumerGroup, names: Mapping[bytes, str]) -> dict[str, int]:
    """Return the number of partitions of each topic, by name, that the last target of the group `old`
    assigned. A classic group needs these counts if its protocol is a `coordinator:` protocol.
    """
    counts = Counter[str]()
    for target in old.target.values():
        for topic_id, numbers in target.items():
            if topic_id in names:
                counts[names[topic_id]] += len(numbers)
    return dict(sorted(counts.items()))


def _classic_member(member: ConsumerMember) -> ClassicGroupMember:
    assert member.classic is not None, "a classic group has members on the classic protocol alone"
    return ClassicGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.classic.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=member.classic.protocols,
    )


# The upgrade: a classic group with members becomes a group of the consumer protocol, because a member joins
# it with a ConsumerGroupHeartbeat. Rows UP1 to UP10, MI14.
#
# Source: GroupMetadataManager (validateOnlineUpgrade, convertToConsumerGroup),
# ConsumerGroup.fromClassicGroup.


# The epoch of a group that never formed a generation, as of a new consumer group.
FIRST_EPOCH = 1

# The maximum number of topics that a group requests from the topic watcher at a time, because the request is
# a part of the group's view, which must fit into a record.
WANTED_TOPICS_MAX = 1_000


class _ParsedMember(Struct, frozen=True):
    """A member of the classic group, with its subscription and the partitions that it keeps."""

    member: ClassicGroupMember
    subscription: Subscription
    partitions: tuple[TopicPartition, ...]


def upgrade(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """Convert the classic group that `request` joins to a consumer group.

    The group's members continue as classic members and keep their partitions. Raises RequestRefused if the
    group cannot be upgraded.
    """
    group = context.group_of(ClassicGroup)
    _check_can_upgrade(context, group)
    parsed = _parse_members(context, group)
    record_topics(group, request.topics)
    record_topics(group, None if request.regex is None else dict(request.regex.topics))
    assigned = _assigned_by_member(context, group, parsed)
    if group.generation == 0:  # the members of the first rebalance have no assignment yet
        context.cite("UP8")
    elif group.state is not GroupState.STABLE:
        context.cite("UP9")
    _answer_parked(context, group)
    _convert(context, group, parsed, assigned, request)


def _check_can_upgrade(context: StepContext, group: ClassicGroup) -> None:
    """Row UP1: raise RequestRefused if the policy, the protocol type or the number of members forbids the
    upgrade.
    """
    if not _cite_policy(context).allows_upgrade:
        policy = context.config.group_consumer_migration_policy
        raise _refused(context, context.cite("UP1"), f"group.consumer.migration.policy is {policy}")
    if not group.uses_consumer_group_protocol():
        raise _refused(context, context.cite("UP1"), f"its protocol type is {group.protocol_type}")
    max_size = context.config.group_consumer_max_size
    if len(group.members) > max_size:
        why = f"it has {len(group.members)} members, and group.consumer.max.size is {max_size}"
        raise _refused(context, context.cite("UP1"), why)


def _parse_members(context: StepContext, group: ClassicGroup) -> list[_ParsedMember]:
    """Row UP2: decode the members' subscriptions and assignments.

    Raise RequestRefused if one is unreadable, if an assignment has an assignor's own data, or if two members
    have the same partition.
    """
    parsed: dict[str, _ParsedMember] = {}
    owners: dict[TopicPartition, str] = {}
    # Members without an assignment come last, because they keep only partitions that no other member has.
    for member in sorted(group.members.values(), key=lambda member: not member.assignment):
        try:
            subscription = decode_subscription(_subscription_bytes(group, member))
            assigned = decode_assignment(member.assignment) if member.assignment else None
        except ProtocolError as error:
            why = f"the bytes of member {member.member_id} are unreadable: {error}"
            raise _refused(context, context.cite("UP2"), why) from None
        if assigned is None:
            # A rebalance took the member's assignment away. The member keeps the partitions of its
            # JoinGroup, which a cooperative client uses until it syncs. In Kafka it keeps nothing (row UP9).
            free = tuple(p for p in subscription.owned_partitions if p not in owners)
            assigned = Assignment(free)
        if assigned.user_data:
            why = f"the assignment of member {member.member_id} has data of its assignor"
            raise _refused(context, context.cite("UP2"), why)
        for partition in assigned.partitions:
            owner_id = owners.setdefault(partition, member.member_id)
            if owner_id != member.member_id:
                both = f"members {owner_id} and {member.member_id}"
                why = f"{both} were both assigned {partition.topic}-{partition.partition}"
                raise _refused(context, context.cite("UP2"), why)
        parsed[member.member_id] = _ParsedMember(member, subscription, assigned.partitions)
    return [parsed[member_id] for member_id in group.members]


def _subscription_bytes(group: ClassicGroup, member: ClassicGroupMember) -> bytes:
    """Return the member's subscription for the group's protocol.

    Before the first generation, or if the member no longer offers that protocol, return the subscription for
    its first protocol.
    """
    # Of two protocols with one name, the first counts.
    offered = {protocol.name: protocol.metadata for protocol in reversed(member.protocols)}
    return offered.get(group.protocol_name or "", member.protocols[0].metadata)


def _assigned_by_member(
    context: StepContext, group: ClassicGroup, parsed: list[_ParsedMember]
) -> dict[str, Partitions]:
    """Row UP5: return each member's partitions by topic id, by member id. Raise RequestRefused if a topic's
    id is not known (row MI14), and request the unknown topics from the topic watcher.
    """
    assigned, unknown_topics = {}, set[str]()
    for parsed_member in parsed:
        partitions, unknown = by_topic_id(parsed_member.partitions, group.topics)
        assigned[parsed_member.member.member_id] = partitions
        unknown_topics.update(unknown)
    wanted_topics = sorted(unknown_topics)[:WANTED_TOPICS_MAX]
    if not wanted_topics:
        return assigned
    names = listed(sorted(unknown_topics), "topic")
    message = f"Group {context.group_id} cannot be upgraded yet: the ids of its topics {names} are not known."
    is_repeated = wanted_topics == group.wanted_topics  # the earlier refusal has a history entry
    # Without the ids, members would lose partitions that they use.
    raise RequestRefused(
        context.cite("MI14"),
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        message,
        None if is_repeated else EntryType.JOIN_REFUSED,
        after=lambda context: _request_topics(context, wanted_topics),
    )


def _request_topics(context: StepContext, topics: list[str]) -> None:
    """Request these topics from the topic watcher, which reads their names from the group's view."""
    context.group_of(ClassicGroup).wanted_topics = topics


def _refused(context: StepContext, rule: RuleId, why: str) -> RequestRefused:
    """Return the refusal of the request because the classic group cannot be upgraded."""
    message = f"Group {context.group_id} is a classic group, which cannot be upgraded: {why}."
    return RequestRefused(rule, ErrorCode.GROUP_ID_NOT_FOUND, message, EntryType.JOIN_REFUSED)


def _answer_parked(context: StepContext, group: ClassicGroup) -> None:
    """Row UP3: answer the parked requests of members that wait for the rebalance. They have to join again."""
    error = ErrorCode.REBALANCE_IN_PROGRESS
    for member in group.members.values():
        if member.parked_join is not None:
            row = context.cite("UP3")
            context.reply(member.parked_join, JoinGroupResponse, row, error, member_id=member.member_id)
        if member.parked_sync is not None:
            context.reply(member.parked_sync, SyncGroupResponse, context.cite("UP3"), error)


def _convert(
    context: StepContext,
    old: ClassicGroup,
    parsed: list[_ParsedMember],
    assigned: dict[str, Partitions],
    request: ConsumerGroupHeartbeat,
) -> None:
    """Rows UP4 to UP6: replace the classic group with a consumer group. `assigned` has the partitions that
    each member keeps.
    """
    epoch = old.generation or FIRST_EPOCH
    group = ConsumerGroup(
        **{name: getattr(old, name) for name in Group.__struct_fields__},
        group_epoch=epoch,
        assignment_epoch=epoch,
        members={
            parsed_member.member.member_id: _consumer_member(parsed_member, assigned, epoch)
            for parsed_member in parsed
        },
        static_members=dict(old.static_members),
        target=assigned,
        topics=old.topics,
    )
    # The last assignment may lack a partition, because not every member has synced or a topic has grown. Then
    # the group gets no fingerprint of its topics, so the joiner's heartbeat raises the epoch and a target is
    # computed. In Kafka the partition stays without a member if the joiner replaces a static member with the
    # same topics.
    follow_up = "; a target follows, because not all partitions are assigned"
    if _is_complete(group):
        group.metadata_hash, follow_up = fingerprint(group), ""
    group.state_timestamp_ms = context.now_ms
    context.replace_group(group)
    for member in group.members.values():
        SETTINGS.arm_session(context, member)
    joiner = f"member {request.member_id}" if request.member_id else f"client {request.client_id}"
    names = group.names_by_id()
    context.record(
        context.cite("UP4"),
        EntryType.GROUP_CONVERTED,
        f"{joiner} joined with the consumer protocol, so the classic group becomes a consumer group of epoch "
        f"{epoch}; its members keep their last assignment and go on as classic members{follow_up}",
        members=list(group.members),
        protocol_name=old.protocol_name,
        targets={member_id: named(partitions, names) for member_id, partitions in assigned.items()},
    )


def _is_complete(group: ConsumerGroup) -> bool:
    """Return True if each partition of the subscribed topics is in the target of a member."""
    assigned: dict[bytes, int] = {}
    for target in group.target.values():
        for topic_id, numbers in target.items():
            assigned[topic_id] = assigned.get(topic_id, 0) + len(numbers)
    topics = (group.topics.get(name) for name in group.subscribed())
    return all(topic is None or assigned.get(topic.topic_id, 0) >= topic.partitions for topic in topics)


def _consumer_member(
    parsed_member: _ParsedMember, assigned: dict[str, Partitions], epoch: int
) -> ConsumerMember:
    """Return the classic member of the consumer group. It is at `epoch`, and so are its partitions."""
    member, subscription = parsed_member.member, parsed_member.subscription
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscribed_topic_names=sorted(set(subscription.topics)),
        member_epoch=epoch,
        previous_epoch=epoch,
        assigned={
            topic_id: dict.fromkeys(numbers, epoch)
            for topic_id, numbers in assigned[member.member_id].items()
        },
        classic=ClassicMember(member.session_timeout_ms, member.protocols),
    )
