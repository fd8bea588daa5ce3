"""How a member joins and goes on, by a ConsumerGroupHeartbeat or by a JoinGroup. Rows HB20, HB44, CV4, TA31.

What differs between both is who the sender is, and what its request says of the member: `identity`,
`heartbeat` and `classic_join`. Source: GroupMetadataManager.consumerGroupHeartbeat,
classicGroupJoinToConsumerGroup, replaceMember.
"""

from collections.abc import Collection

from msgspec import Struct

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.topic_images import TopicImages
from state.kafka.consumer.member_update import Update, update_member
from state.kafka.consumer.reconcile import Owned, reconcile
from state.kafka.consumer.target import maybe_update_target
from state.kafka.consumer.topics import forget_unused
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext
from state.kafka.member_id import new_member_id
from state.kafka.modern.epochs import bump
from state.kafka.modern.refusal import Client, Refused
from state.kafka.modern.room import has_room
from state.kafka.modern.topics import look


class Sender(Struct, frozen=True):
    """Who joins or goes on: the member id, and the member, None if it is new. `replaced` is the member of the
    sender's instance id if the sender takes its place. `rule` is the row that says so.
    """

    rule: RuleId
    member_id: str
    member: ConsumerMember | None = None
    replaced: ConsumerMember | None = None

    @property
    def predecessor(self) -> ConsumerMember | None:
        """The member that had the sender's place so far."""
        return self.member or self.replaced


def made_id(context: StepContext, client_id: str, instance_id: str | None) -> str:
    """Return the member id that the coordinator gives to the sender of the request."""
    prefix = client_id if instance_id is None else instance_id
    return new_member_id(prefix, context.cause, context.config.member_id_namespace)


def is_full(context: StepContext, member_id: str) -> bool:
    """Whether the group has no room for another member, and this one is not in it."""
    members = context.group_of(ConsumerGroup).members
    return len(members) >= context.config.group_consumer_max_size and member_id not in members


def check_room(
    context: StepContext,
    sender: Sender,
    topics: Collection[str],
    reported: TopicImages | None,
    message: str,
    event: EntryType | None,
) -> None:
    """Row TA31: raise Refused if the group would have more partitions than the coordinator assigns to one
    group. `reported` is what the request says of the topics. `message` and `event` are of the refusal.
    """
    before = sender.predecessor
    member_id = sender.member_id if before is None else before.member_id
    group = context.group_of(ConsumerGroup)
    if not has_room(context.config, group, member_id, topics, reported):
        raise Refused(context.rule("TA31"), ErrorCode.GROUP_MAX_SIZE_REACHED, message, event)


def admit(
    context: StepContext, sender: Sender, client: Client, reason: str, *, client_reason: str | None = None
) -> ConsumerMember:
    """Add the sender, which is new, to the members, or put it in the place of the member that it replaces.
    `reason` says that it is new.
    """
    if sender.replaced is not None:
        return _replace_member(context, sender.rule, sender.replaced, sender.member_id, client)
    member = ConsumerMember(
        member_id=sender.member_id,
        instance_id=client.instance_id,
        client_id=client.client_id,
        client_host=client.client_host,
    )
    group = context.group_of(ConsumerGroup)
    group.add(member)
    if client.instance_id is not None:
        group.static_members[client.instance_id] = member.member_id
    context.record_member(sender.rule, EntryType.MEMBER_ADDED, member, reason, client_reason=client_reason)
    return member


def go_on(context: StepContext, member: ConsumerMember, update: Update, owned: Owned | None) -> None:
    """Update the member and the group epoch, compute a due target, and take the member one step towards it.

    `owned` is what the client has by its request, None if it says nothing. Raise Refused for an invalid
    pattern.
    """
    subscription_changed = update_member(context, member, update)
    maybe_update_target(context)
    reconcile(context, member, owned, subscription_changed)


def _replace_member(
    context: StepContext, rule: RuleId, old: ConsumerMember, member_id: str, client: Client
) -> ConsumerMember:
    """Put a copy of a static member under a new member id in its place. The old member's timers go with it.
    The new member is at epoch 0, with the old one's partitions, subscription and target. A member that has
    the new id already loses its own: the group needs another target.
    """
    group = context.group_of(ConsumerGroup)
    target = group.target.get(old.member_id)
    member = ConsumerMember(
        member_id=member_id,
        instance_id=old.instance_id,
        rack_id=old.rack_id,
        client_id=client.client_id,
        client_host=client.client_host,
        rebalance_timeout_ms=old.rebalance_timeout_ms,
        server_assignor=old.server_assignor,
        subscribed_topic_names=old.subscribed_topic_names,
        subscribed_topic_regex=old.subscribed_topic_regex,
        previous_epoch=0,
        state=old.state,
        classic=old.classic,
        revoking_since_ms=old.revoking_since_ms,
    )
    assigned, pending = old.assigned, old.pending_revocation
    remove_member(group, old)
    other = group.members.get(member_id)
    if other is not None:
        remove_member(group, other)
    group.add(member)
    group.assign(member, assigned, pending)
    if target is not None:
        group.target[member_id] = target
    if member.instance_id is not None:
        group.static_members[member.instance_id] = member_id
    context.record_member(
        rule,
        EntryType.MEMBER_REPLACED,
        member,
        f"the static member came back, {old.member_id} is fenced",
        replaced_member_id=old.member_id,
    )
    if other is not None:
        forget_unused(context)
        look(group)
        reason = f"member {member_id} gave up its own place for that of instance {member.instance_id}"
        bump(context, rule, reason, member_id=member_id)
    return member


def remove_member(group: ConsumerGroup, member: ConsumerMember) -> None:
    """Remove a member with its partitions, which are free from now on, its target, its instance id, and its
    timers (row HB44).
    """
    group.assign(member, {}, {})
    group.remove(member)
    group.target.pop(member.member_id, None)
    if member.instance_id is not None:
        del group.static_members[member.instance_id]
