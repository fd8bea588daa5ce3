"""The target assignment: when it is computed, by which assignor, and from what. Rows TA1 to TA31.

The assignors of `assignors.kafka` go by topic name; a target goes by topic id. A topic that was deleted and
created again has another id, so the members' last target does not count for it. Source:
GroupMetadataManager.maybeUpdateTargetAssignment, TargetAssignmentBuilder.java, ModernGroup.java.
"""

from collections import Counter
from collections.abc import Mapping

from assignors.kafka import BROKER_ASSIGNORS
from assignors.kafka.api import MemberSubscription, Subscription, TopicPartition
from state.config import CoordinatorConfig
from state.kafka.consumer.session import settings_of
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.history import EntryType
from state.kafka.modern.epochs import is_due
from state.kafka.modern.room import assignable_topics
from state.kafka.modern.wording import counted, listed
from state.kafka.modern_group import Partitions
from state.kafka.snapshot import named


def maybe_update_target(context: StepContext) -> None:
    """Compute the target assignment if the group has changed since the last one and the assignment interval
    is over. The members are those of after the request.
    """
    group = context.group_of(ConsumerGroup)
    if group.assignment_epoch >= group.group_epoch:
        context.rule("TA1")
    elif not is_due(context, settings_of(context).assignment_interval_ms):
        context.rule("TA2")
    else:
        _compute(context, group)


def preferred_assignor(group: ConsumerGroup, config: CoordinatorConfig) -> str:
    """Return the name of the assignor that most members ask for (rows TA9 to TA13).

    A tie goes to the one that is configured first. Nobody asks for one: the first that is configured. A name
    that is not configured does not count.
    """
    votes = Counter(member.server_assignor for member in group.members.values())
    return max(config.group_consumer_assignors, key=lambda name: votes[name])


def _compute(context: StepContext, group: ConsumerGroup) -> None:
    last_epoch, last = group.assignment_epoch, group.target
    name = preferred_assignor(group, context.config)
    topics, left_out = assignable_topics(group, context.config.group_max_partitions)
    target = _assign(group, name, topics)
    group.target, group.target_assignor = target, name
    group.assignment_epoch, group.assignment_timestamp_ms = group.group_epoch, context.now_ms
    moved, new = _moves(last, target)
    names = group.names_by_id()
    reason = f"{name} computed the target of epoch {group.assignment_epoch} from that of {last_epoch}: "
    moves = "moves" if moved == 1 else "move"
    reason += f"{counted(moved, 'partition')} {moves} to another member, and {new} had no member"
    if left_out:
        context.rule("TA32")
        most = context.config.group_max_partitions
        reason += f"; topics beyond group.max.partitions={most} are left out: {listed(left_out, 'topic')}"
    context.record(
        context.rule("TA3"),
        EntryType.TARGET_ASSIGNMENT_COMPUTED,
        reason,
        assignor_name=name,
        moved_partitions=moved,
        targets={id_: named(has, names) for id_, has in target.items() if has != last.get(id_)},
    )


def _assign(group: ConsumerGroup, assignor: str, topics: Mapping[str, Topic]) -> dict[str, Partitions]:
    """Let the assignor assign by topic name, and return the target by topic id (rows TA14 to TA19, TA28,
    TA29). Each member has an entry.
    """
    counts = {name: topic.partitions for name, topic in topics.items()}
    names = {topic.topic_id: name for name, topic in topics.items()}
    subscriptions = {
        member.member_id: MemberSubscription(_subscription(group, member, topics, names), member.instance_id)
        for member in group.members.values()
    }
    dealt = BROKER_ASSIGNORS[assignor].assign(counts, subscriptions)
    target: dict[str, Partitions] = {}
    for member_id, partitions in dealt.items():
        of_member = target[member_id] = {}
        for name, number in partitions:
            of_member.setdefault(topics[name].topic_id, []).append(number)
    return target


def _subscription(
    group: ConsumerGroup, member: ConsumerMember, topics: Mapping[str, Topic], names: Mapping[bytes, str]
) -> Subscription:
    """The member's topics that exist, and its last target of them: it counts as what the member owns. A topic
    id that no topic of the member has any more does not.
    """
    subscribed = group.topics_of(member) & topics.keys()
    owned = [
        TopicPartition(name, number)
        for topic_id, numbers in group.target.get(member.member_id, {}).items()
        if (name := names.get(topic_id)) in subscribed
        for number in numbers
    ]
    return Subscription(
        tuple(sorted(subscribed)), owned_partitions=tuple(owned), generation_id=group.assignment_epoch
    )


def _moves(last: Mapping[str, Partitions], target: Mapping[str, Partitions]) -> tuple[int, int]:
    """The number of partitions that go from one member to another, and of those that had no member."""
    member_of = {
        (topic_id, number): member_id
        for member_id, partitions in last.items()
        for topic_id, numbers in partitions.items()
        for number in numbers
    }
    before = [
        (member_of.get((topic_id, number)), member_id)
        for member_id, partitions in target.items()
        for topic_id, numbers in partitions.items()
        for number in numbers
    ]
    new = sum(was is None for was, _ in before)
    return sum(was != now for was, now in before) - new, new
