"""The target assignment of a group with epochs: when it is computed, and what the history says of it. Rows
TA1 to TA3, TA32, ST1 to ST3.

The assignors go by topic name; a target goes by topic id. A topic that was deleted and created again has
another id, so the members' last target does not count for it. Source:
GroupMetadataManager.maybeUpdateTargetAssignment.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.snapshot import Partitions, named
from kafka_why.contract.kafka.wording import counted, listed
from kafka_why.contract.protocols.subscriptions import TopicPartition
from state.kafka.context import RuleId, StepContext
from state.kafka.group import Topic
from state.kafka.modern.epochs import is_due
from state.kafka.modern.room import assignable_topics
from state.kafka.modern.settings import ModernSettings
from state.kafka.modern.topics import KnowsTopics
from state.kafka.modern_group import ModernGroup

Targets = dict[str, Partitions]
"""A target assignment by member id."""
_Place = tuple[bytes, int]
"""A partition."""


class HasTarget(KnowsTopics, Protocol):
    """A group with epochs and a target."""

    group_epoch: int
    assignment_epoch: int
    assignment_timestamp_ms: int
    target: Targets

    def names_by_id(self) -> dict[bytes, str]: ...


def is_wanted(context: StepContext, settings: ModernSettings, *, current: str, too_early: str) -> bool:
    """Whether the group has changed since the last target, and the assignment interval is over. The rows are
    those of a group that has not changed, and of an interval that is not over.
    """
    group = context.group_of(ModernGroup)
    if group.assignment_epoch >= group.group_epoch:
        context.rule(current)
        return False
    if not is_due(context, settings.of(context).assignment_interval_ms):
        context.rule(too_early)
        return False
    return True


def topics_of_target(context: StepContext, group: KnowsTopics) -> tuple[dict[str, Topic], list[str]]:
    """Return the topics to assign by name, and those that are left out (row TA32)."""
    topics, left_out = assignable_topics(group, context.config.group_max_partitions)
    if left_out:
        context.rule("TA32")
    return topics, left_out


def by_topic_id(dealt: Mapping[str, Iterable[TopicPartition]], topics: Mapping[str, Topic]) -> Targets:
    """Return what an assignor dealt to each member by topic id. Each member has an entry."""
    target: Targets = {}
    for member_id, partitions in dealt.items():
        of_member = target[member_id] = {}
        for name, number in partitions:
            of_member.setdefault(topics[name].topic_id, []).append(number)
    return target


def note_target(
    context: StepContext, group: HasTarget, rule: RuleId, assignor: str, last: Targets, left_out: list[str]
) -> None:
    """Note that the group's target is of its epoch now. `last` is the target before, and `left_out` are the
    topics that the target is without.
    """
    last_epoch, target, names = group.assignment_epoch, group.target, group.names_by_id()
    group.assignment_epoch, group.assignment_timestamp_ms = group.group_epoch, context.now_ms
    moved, new = _moves(last, target)
    moves = "moves" if moved == 1 else "move"
    reason = f"{assignor} computed the target of epoch {group.assignment_epoch} from that of {last_epoch}: "
    reason += f"{counted(moved, 'partition')} {moves} to another member, and {new} had no member"
    if left_out:
        most = context.config.group_max_partitions
        reason += f"; topics beyond group.max.partitions={most} are left out: {listed(left_out, 'topic')}"
    context.record(
        rule,
        EntryType.TARGET_ASSIGNMENT_COMPUTED,
        reason,
        assignor_name=assignor,
        moved_partitions=moved,
        targets={id_: named(has, names) for id_, has in target.items() if has != last.get(id_)},
    )


def _moves(last: Targets, target: Targets) -> tuple[int, int]:
    """The number of partitions that one member loses and another gets, and of those that had no member."""
    had, lost, got = set[_Place](), set[_Place](), set[_Place]()
    for member_id in last.keys() | target.keys():
        before, after = _flat(last.get(member_id, {})), _flat(target.get(member_id, {}))
        had |= before
        lost |= before - after
        got |= after - before
    return len(lost & got), len(got - had)


def _flat(partitions: Partitions) -> set[_Place]:
    return {(topic_id, number) for topic_id, numbers in partitions.items() for number in numbers}
