"""The downgrade: a consumer group whose members all are on the classic protocol becomes a classic group. Rows
DN1 to DN13.

Source: GroupMetadataManager (validateOnlineDowngradeWithFencedMembers,
validateOnlineDowngradeWithReplacedMember, convertToClassicGroup), ClassicGroup.fromConsumerGroup.
"""

from collections import Counter
from collections.abc import Mapping

from assignors.kafka.server_side import is_for_coordinator
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.snapshot import named
from kafka_why.contract.kafka.states import GroupState
from state.kafka.classic import rebalance, subscription
from state.kafka.classic.reported_topics import settle_topics
from state.kafka.classic.session import arm_session
from state.kafka.classic_group import ClassicGroup, Member
from state.kafka.consumer.classic_bytes import assignment_bytes
from state.kafka.consumer.migration_policy import allows_downgrade
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext
from state.kafka.group import Group


def maybe_downgrade(context: StepContext, reason: str) -> bool:
    """Convert the group to a classic group and start a rebalance, if the members that remain after a removal
    allow it. Return whether it was converted. `reason` says who was removed and why.
    """
    group = context.group_of(ConsumerGroup)
    if not group.members or any(member.classic is None for member in group.members.values()):
        return False
    if not _is_allowed(context, len(group.members)):
        return False
    row = context.rule("DN1")
    convert(context, row, reason)
    rebalance.prepare(context, row, f"{reason}; the group became a classic group")
    return True


def can_replace(context: StepContext, replaced: ConsumerMember) -> bool:
    """Row CV15: whether the group is downgraded if a classic member takes the place of this static one."""
    members = context.group_of(ConsumerGroup).members.values()
    others = [member for member in members if member.member_id != replaced.member_id]
    if replaced.classic is not None or any(member.classic is None for member in others):
        return False
    return _is_allowed(context, len(others) + 1)


def _is_allowed(context: StepContext, members: int) -> bool:
    if allows_downgrade(context) and members <= context.config.group_max_size:
        return True
    context.rule("DN13")
    return False


def convert(context: StepContext, rule: RuleId, reason: str) -> ClassicGroup:
    """Make the group a Stable classic group. Each member has its target as its assignment."""
    old = context.group_of(ConsumerGroup)
    group = _classic_group(context, old)
    context.become(group)
    for member in group.members.values():
        arm_session(context, member)
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
    """Rows DN2 to DN5 and DN11."""
    group = ClassicGroup(
        **{name: getattr(old, name) for name in Group.__struct_fields__},
        state=GroupState.STABLE,
        previous_state=GroupState.COMPLETING_REBALANCE,
        generation=old.group_epoch,
        topics=old.topics,
    )
    group.state_timestamp_ms = context.now_ms
    for member in old.members.values():
        group.add(_member(member), old.protocol_type)
    group.protocol_name = group.select_protocol()
    names = old.names_by_id()
    for one in group.members.values():
        target = old.target.get(one.member_id, {})
        one.assignment = assignment_bytes(target, names, one.metadata(group.protocol_name))
    if is_for_coordinator(group.protocol_name):
        group.partitions_per_topic = _partitions_per_topic(old, names)
    group.subscribed_topics = subscription.all_topics(subscription.subscriptions(group))
    settle_topics(group)
    return group


def _partitions_per_topic(old: ConsumerGroup, names: Mapping[bytes, str]) -> dict[str, int]:
    """The partition counts of the generation, for an assignor of the coordinator: those of the target."""
    counts = Counter[str]()
    for target in old.target.values():
        for topic_id, numbers in target.items():
            if topic_id in names:
                counts[names[topic_id]] += len(numbers)
    return dict(sorted(counts.items()))


def _member(member: ConsumerMember) -> Member:
    assert member.classic is not None, "a classic group has members on the classic protocol alone"
    return Member(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.classic.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=member.classic.protocols,
    )
