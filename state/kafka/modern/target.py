"""The target assignment of a group with epochs: when it is computed, and what the history says of it. Rows
TA1 to TA3, TA32, ST1 to ST3.

The assignors go by topic name; a target goes by topic id. A topic that was deleted and created again has
another id, so the members' last target does not count for it. Source:
GroupMetadataManager.maybeUpdateTargetAssignment.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.kafka.snapshot import Partitions, named
from kafka_why.contract.kafka.wording import counted, listed
from kafka_why.contract.messages import SettingValue
from kafka_why.contract.protocols.subscriptions import TopicPartition
from state.config import CoordinatorConfig
from state.kafka.context import RuleId, StepContext
from state.kafka.group import Topic
from state.kafka.modern.topics import AnyModernGroup
from state.kafka.modern_group import ModernGroup
from state.kafka.settings import GroupSetting, SettingBounds, values_in_force

# The bound on partitions that the coordinator assigns to one group. Rows TA31, TA32.


def has_room(
    config: CoordinatorConfig,
    group: AnyModernGroup | None,
    member_id: str,
    topics: Collection[str],
    reported: TopicImages | None,
) -> bool:
    """Row TA31: whether a member, new or not, may subscribe to these topics without more than
    `group.max.partitions` partitions in the group.

    `reported` is what the request says of the topics. A member that adds no topic to the group's topics has
    room, although they may have grown above the limit.
    """
    known = {} if group is None else group.topics
    counts = {name: topic.partitions for name, topic in known.items() if topic is not None}
    for name, image in (reported or {}).items():
        topic = known.get(name)
        if image is not None and (topic is None or topic.topic_id == image.id.bytes):
            counts[name] = max(image.partitions, counts.get(name, 0))
    most = config.group_max_partitions
    if sum(counts.values()) <= most:
        return True
    # Counts are also known of topics that no member subscribes to.
    if group is None:
        return sum(counts.get(name, 0) for name in topics) <= most
    members: Mapping[str, Any] = group.members
    others = (member for member in members.values() if member.member_id != member_id)
    wanted = {topic for member in others for topic in group.topics_of(member)}.union(topics)
    return wanted <= group.subscribed() or sum(counts.get(name, 0) for name in wanted) <= most


def assignable_topics(group: AnyModernGroup, most: int) -> tuple[dict[str, Topic], list[str]]:
    """Return the topics to assign by name, and those that are left out, because the partitions of the others
    leave no room for theirs (row TA32).
    """
    topics, left_out = {}, []
    for name in sorted(group.subscribed()):
        topic = group.topics.get(name)
        if topic is None:
            continue
        if topic.partitions > most:
            left_out.append(name)
        else:
            topics[name] = topic
            most -= topic.partitions
    return topics, left_out


# The settings that a group with epochs can have of its own: of both protocols under like names. Rows CF19
# to CF21, SN14, SN22.


class GroupSettings(Struct, frozen=True):
    """The values in force for a group, in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


class ModernSettings:
    """The settings of the groups of one protocol. `prefix` is that of their names: `consumer`, `share`. The
    rows are those that refuse a value.
    """

    def __init__(self, prefix: str, *, session: str, heartbeat: str, assignment: str) -> None:
        self._prefix = prefix
        self.session_timeout = f"{prefix}.session.timeout.ms"
        self.heartbeat_interval = f"{prefix}.heartbeat.interval.ms"
        self.assignment_interval = f"{prefix}.assignment.interval.ms"
        self._session_row = session
        self.settings = (
            GroupSetting(self.assignment_interval, assignment, self._bounds_of("assignment_interval")),
            GroupSetting(self.heartbeat_interval, heartbeat, self._bounds_of("heartbeat_interval")),
            GroupSetting(self.session_timeout, session, self._bounds_of("session_timeout")),
        )

    def _bounds_of(self, what: str) -> Callable[[CoordinatorConfig], SettingBounds]:
        names = [f"group_{self._prefix}_{bound}{what}_ms" for bound in ("", "min_", "max_")]
        return lambda config: SettingBounds(*(getattr(config, name) for name in names))

    def conflict_of(self, values: Mapping[str, int]) -> tuple[str, str] | None:
        """Return the row and a sentence if these values in force do not go together, else None."""
        session_ms, interval_ms = values[self.session_timeout], values[self.heartbeat_interval]
        if session_ms > interval_ms:
            return None
        message = (
            f"{self.session_timeout} ({session_ms}) must be above {self.heartbeat_interval} ({interval_ms})"
        )
        return self._session_row, message

    def of(self, context: StepContext) -> GroupSettings:
        """Return the settings in force for the group: its own, else the coordinator's."""
        return self.in_force(context.group.configs, context.config)

    def in_force(self, configs: Mapping[str, SettingValue], config: CoordinatorConfig) -> GroupSettings:
        """Return the settings in force for a group with these settings of its own."""
        if not configs:  # each heartbeat asks, and few groups have settings of their own
            return self._of_coordinator(config)
        values = values_in_force(self.settings, configs, config)
        return GroupSettings(
            values[self.session_timeout], values[self.heartbeat_interval], values[self.assignment_interval]
        )

    def _of_coordinator(self, config: CoordinatorConfig) -> GroupSettings:
        names = ("session_timeout", "heartbeat_interval", "assignment_interval")
        return GroupSettings(*(getattr(config, f"group_{self._prefix}_{name}_ms") for name in names))


# The group epoch: what raises it, and when the next target assignment is due. Rows HB49 to HB55, TA3, SH21
# to SH24, ST2, ST3.
#
# Source: GroupMetadataManager (consumerGroupHeartbeat, shareGroupHeartbeat, maybeUpdateTargetAssignment).


def bump(context: StepContext, rule: RuleId, reason: str, **details: object) -> None:
    """Raise the group epoch by one. A rebalance begins with it unless one is running already."""
    group = context.group_of(ModernGroup)
    was_rebalancing = group.is_rebalancing
    group.group_epoch += 1
    if not was_rebalancing:
        group.last_rebalance_at_ms, group.last_rebalance_reason = context.now_ms, reason
    context.record(rule, EntryType.GROUP_EPOCH_BUMPED, reason, **details)


def is_due(context: StepContext, interval_ms: int) -> bool:
    """Whether the assignment interval since the last computation is over."""
    return due_in_ms(context, interval_ms) == 0


def due_in_ms(context: StepContext, interval_ms: int) -> int:
    """The rest of the assignment interval since the last computation."""
    computed_ms = context.group_of(ModernGroup).assignment_timestamp_ms
    return 0 if computed_ms == 0 else max(0, computed_ms + interval_ms - context.now_ms)


def come_to_rest(context: StepContext) -> None:
    """The last member is gone: the next one to join gets its partitions at once (KAFKA-20442)."""
    group = context.group_of(ModernGroup)
    group.assignment_epoch, group.assignment_timestamp_ms = group.group_epoch, 0


# The history says when every member has its target assignment. Rows GS4, SP25.


def record_stable(
    context: StepContext, rule: RuleId, members: Iterable[str], *, has_rebalanced: bool
) -> None:
    """Record that every member has its target, with the time since the rebalance began if it was one."""
    group = context.group_of(ModernGroup)
    began_ms = group.last_rebalance_at_ms
    context.record(
        rule,
        EntryType.STABLE,
        "every member has its target assignment",
        members=list(members),
        took_ms=context.now_ms - began_ms if has_rebalanced and began_ms is not None else None,
    )


Targets = dict[str, Partitions]
"""A target assignment by member id."""
_Place = tuple[bytes, int]
"""A partition."""


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


def topics_of_target(context: StepContext, group: AnyModernGroup) -> tuple[dict[str, Topic], list[str]]:
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
    context: StepContext,
    group: AnyModernGroup,
    rule: RuleId,
    assignor: str,
    last: Targets,
    left_out: list[str],
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
