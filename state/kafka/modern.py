"""The rules that consumer groups and share groups, the groups with epochs, have in common: their refusals,
their topics, their settings, their group epoch and their target assignment.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any, TypeVar
from uuid import UUID

from msgspec import Struct, msgpack

from kafka_why.contract.kafka.history import LEAVE_GROUP_STATIC_MEMBER_EPOCH, EntryType
from kafka_why.contract.kafka.requests import AnyAnswered, ConsumerGroupHeartbeat, ReplyTo
from kafka_why.contract.kafka.responses import AnyResponse, AssignedTopicPartitions
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat, TopicImages
from kafka_why.contract.kafka.snapshot import Partitions, counted, listed, named
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat
from kafka_why.contract.messages import ErrorCode, SettingValue
from kafka_why.contract.protocols.subscriptions import TopicPartition
from state.config import (
    CoordinatorConfig,
    GroupSetting,
    ModernGroupConfig,
    SettingBounds,
    values_in_force,
)
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext
from state.kafka.group import ModernGroup, Topic, Topics, reported, watched
from state.kafka.offsets import remember_deleted
from state.kafka.share_group import ShareGroup
from state.kafka.streams_group import StreamsGroup, StreamsGroupMember
from state.protocol import Handler, RequestRefusal, WhyRefused

# The refusal of a request to a group with epochs. The group may already be changed when it is raised: the
# handler undoes all changes (`StepContext.undo`).


# The characters that Java's String.trim removes.
_BLANKS = "".join(map(chr, range(33)))


def is_blank(text: str) -> bool:
    """Return True if the text is empty or blank, as Kafka sees it."""
    return not text.strip(_BLANKS)


class RequestRefused(Exception):
    """The refusal of a request: the row that decided it, the error and its message.

    `event` is the type of the refusal's history entry, or None. Only errors that an operator has to see have
    an entry, because a client that repeats its request adds to the history each time. `after` is called with
    the step's context when all changes are undone.
    """

    def __init__(
        self,
        rule: RuleId,
        error: ErrorCode,
        message: str,
        event: EntryType | None = None,
        after: Callable[[StepContext], None] | None = None,
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.error = error
        self.message = message
        self.event = event
        self.after = after


def no_member(context: StepContext, row: str, member_id: str) -> RequestRefused:
    """Return the refusal of a sender that is not a member."""
    message = f"Member {member_id} is not a member of group {context.group_id}."
    return RequestRefused(context.rule(row), ErrorCode.UNKNOWN_MEMBER_ID, message)


M = TypeVar("M")


def known_member(
    context: StepContext,
    request: ConsumerGroupHeartbeat | StreamsGroupHeartbeat,
    members: Mapping[str, M],
    static_members: Mapping[str, str],
    rows: tuple[str, str, str],
) -> M:
    """Return the member that sent the request. Raise RequestRefused, by one of these rows, if its instance id
    belongs to no member or to another one, or if the sender is not a member.
    """
    instance_id, member_id = request.instance_id, request.member_id
    if instance_id is not None:
        owner_id = static_members.get(instance_id)
        if owner_id is None:
            message = f"No member of group {context.group_id} has the instance id {instance_id}."
            raise RequestRefused(context.rule(rows[0]), ErrorCode.UNKNOWN_MEMBER_ID, message)
        if owner_id != member_id:
            message = f"Instance id {instance_id} belongs to member {owner_id}, not to {member_id!r}."
            error = ErrorCode.FENCED_INSTANCE_ID
            raise RequestRefused(context.rule(rows[1]), error, message, EntryType.MEMBER_FENCED)
    if member_id not in members:
        raise no_member(context, rows[2], member_id)
    return members[member_id]


def fenced(
    context: StepContext,
    received: int,
    member: ConsumerMember | StreamsGroupMember,
    rows: tuple[str, str],
    noun: str,
) -> RequestRefused:
    """Return the refusal of a member epoch above or below the member's, by one of these two rows. `noun` is
    what members have, in the plural.
    """
    if received < member.member_epoch:
        row, why = context.rule(rows[1]), f"it has to give up its {noun} and join again"
    elif member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        row, why = context.rule(rows[0]), "it has left for a while"
    else:
        row, why = context.rule(rows[0]), "the coordinator never gave it that epoch"
    message = (
        f"Member {member.member_id} is fenced: the request has member epoch {received}, "
        f"and the member is at {member.member_epoch}; {why}."
    )
    return RequestRefused(row, ErrorCode.FENCED_MEMBER_EPOCH, message, EntryType.MEMBER_FENCED)


RequestCheck = Callable[[StepContext, Any], None]
"""A step that may raise RequestRefused."""


class ClientIdentity(Struct, frozen=True):
    """The client id and host of a sender, in requests of any protocol."""

    client_id: str
    client_host: str
    instance_id: str | None = None


def client_of(
    request: ConsumerGroupHeartbeat | ShareGroupHeartbeat | StreamsGroupHeartbeat,
) -> ClientIdentity:
    """Return the sender of a heartbeat. Members of share groups are never static."""
    instance_id = None if isinstance(request, ShareGroupHeartbeat) else request.instance_id
    return ClientIdentity(request.client_id, request.client_host, instance_id)


def record_refusal(
    context: StepContext, refused: RequestRefused, member_id: str, client: ClientIdentity
) -> None:
    """Add the refusal's history entry, if it has one and the group exists."""
    if refused.event is None or not context.has_group:
        return
    context.record(
        refused.rule,
        refused.event,
        refused.message,
        member_id=member_id or None,
        group_instance_id=client.instance_id,
        client_id=client.client_id,
        client_host=client.client_host,
    )


def answer_refused(
    context: StepContext, request: AnyAnswered, reply_to: ReplyTo, refused: RequestRefused
) -> None:
    """Answer a refused request whose answer has a field for the error text."""
    message = refused.message
    context.reply(reply_to, request.answer, refused.rule, refused.error, error_message=message)


def heartbeat_handler(
    check: RequestCheck, get_or_create: RequestCheck, leave: Handler, stay: Handler
) -> Handler:
    """Return the handler of a protocol's heartbeats. Each of these steps may raise RequestRefused, and a
    refused request changes nothing. `get_or_create` is called if the request is well-formed, then `leave` if
    the member leaves, else `stay`.
    """

    def heartbeat(context: StepContext, request: Any, reply_to: ReplyTo) -> None:
        try:
            check(context, request)
            get_or_create(context, request)
            handle = leave if request.member_epoch < 0 else stay
            handle(context, request, reply_to)
        except RequestRefused as refused:
            context.undo()
            if refused.after is not None:
                refused.after(context)
            record_refusal(context, refused, request.member_id, client_of(request))
            answer_refused(context, request, reply_to, refused)

    return heartbeat


# Requests to a group id without a group, or with one of another protocol, are answered alike.
#
# Source: GroupMetadataManager (consumerGroup, shareGroup).


def is_not(group_id: str, kind: str) -> str:
    """Return the error text, for example "Group g is not a consumer group", for a group of another kind."""
    return f"Group {group_id} is not a {kind}."


def not_found(row: str, kind: str, response: type[AnyResponse]) -> Handler:
    """Return a handler that answers by this row that the group id has no group of this kind."""

    def answer(context: StepContext, _: Any, reply_to: ReplyTo) -> None:
        missing = f"Group {context.group_id} not found."
        message = is_not(context.group_id, kind) if context.has_group else missing
        error = ErrorCode.GROUP_ID_NOT_FOUND
        context.reply(reply_to, response, context.rule(row), error, error_message=message)

    return answer


def refusal(row: str, kind: str, check: RequestCheck | None = None) -> WhyRefused:
    """Return the function that refuses a request to a group that is not a Kafka group.

    `row` decides the refusal if the request passes its own `check`.
    """

    def refuse(group_id: str, request: Any, request_id: str, config: CoordinatorConfig) -> RequestRefusal:
        try:
            if check is not None:
                check(StepContext(None, group_id, request_id, 0, config), request)
        except RequestRefused as refused:
            return refused.rule, refused.error, refused.message
        return row, ErrorCode.GROUP_ID_NOT_FOUND, is_not(group_id, kind)

    return refuse


def assigned_partitions(assigned: Mapping[bytes, Collection[int]]) -> list[AssignedTopicPartitions]:
    """Return the partitions by topic id, in the form of a heartbeat response."""
    return [
        AssignedTopicPartitions(UUID(bytes=topic_id), sorted(numbers))
        for topic_id, numbers in sorted(assigned.items())
    ]


def described_partitions(
    partitions: Mapping[bytes, Collection[int]], names: Mapping[bytes, str]
) -> list[AssignedTopicPartitions]:
    """Return the partitions by topic name (row AD5). Topics that no longer exist are left out."""
    return [
        AssignedTopicPartitions(UUID(bytes=topic_id), sorted(numbers), names[topic_id])
        for topic_id, numbers in sorted(partitions.items(), key=lambda item: names.get(item[0], ""))
        if topic_id in names
    ]


# The topics of a group, and the fingerprint that shows a change. Rows MD9 to MI15.
#
# Source: ModernGroup.computeMetadataHash, GroupMetadataManager.onMetadataUpdate. Kafka's coordinator reads
# the cluster's metadata. Here requests and the topic watcher report it (`state.kafka.group`).


_FINGERPRINT_BYTES = 16


AnyModernGroup = ConsumerGroup | ShareGroup
"""A group whose members subscribe to topics. `topics` are the known ones."""
_GroupWithTopics = AnyModernGroup | StreamsGroup


def fingerprint(group: _GroupWithTopics) -> bytes:
    """Return the fingerprint of the existing topics that the group requires, b"" without any.

    Racks are not included, because no server-side assignor uses them.
    """
    required = group.required_topics()
    topics = sorted(
        (name, topic.topic_id, topic.partitions)
        for name, topic in group.topics.items()
        if topic is not None and name in required
    )
    return blake2b(msgpack.encode(topics), digest_size=_FINGERPRINT_BYTES).digest() if topics else b""


def refresh_fingerprint(group: _GroupWithTopics) -> bool:
    """Recompute the fingerprint of the group's topics, and return True if it has changed (rows MD9, MD10)."""
    before, group.metadata_hash = group.metadata_hash, fingerprint(group)
    group.metadata_stale = False
    return group.metadata_hash != before


def merge_reported(context: StepContext, group: _GroupWithTopics, images: TopicImages | None) -> None:
    """Add the topics that a request reports to the known ones (row MI7). `images` is None if the sender could
    not read the topics.
    """
    found = reported(group.topics, images or {}, context.group.deleted_topic_ids)
    if found:
        add_reported(context, group, found)


def add_reported(context: StepContext, group: _GroupWithTopics, found: Topics) -> None:
    """Add the topics that a request reports and that the group does not know (row MI7)."""
    awaited = {*group.topics, *group.unknown_topics()}
    changed = {name: topic for name, topic in found.items() if name in awaited}
    row = context.rule("MI7")
    why = _in_words(group.topics, changed)
    _add(group, found)
    if changed:
        context.record(row, EntryType.TOPICS_CHANGED, f"a request reports: {why}", topics=sorted(changed))


def store_watched(
    context: StepContext, group: _GroupWithTopics, images: TopicImages, names: Collection[str]
) -> Topics:
    """Store the topic watcher's reports of the topics in `names`, and return the topics that changed.

    No epoch changes: the next heartbeat or JoinGroup finds another fingerprint (row MI9).
    """
    images = {name: images[name] for name in sorted(images) if name in names}
    found = watched(group.topics, images, context.group.deleted_topic_ids)
    if not found:
        return {}
    why = _in_words(group.topics, found)
    for name, topic in found.items():
        before = group.topics.get(name)
        if before is not None and (topic is None or topic.topic_id != before.topic_id):
            context.rule("MI11" if topic is None else "MI10")
            remember_deleted(context.group, [before.topic_id])
    _add(group, found)
    context.record(
        context.rule("MI9"), EntryType.TOPICS_CHANGED, f"in the cluster: {why}", topics=sorted(found)
    )
    return found


def _add(group: _GroupWithTopics, found: Topics) -> None:
    group.topics = dict(sorted({**group.topics, **found}.items()))
    group.metadata_stale = True


def unused_topics(group: AnyModernGroup) -> set[str]:
    """Return the known topics to which no member subscribes."""
    return group.topics.keys() - group.subscribed()


def forget_topics(context: StepContext, group: AnyModernGroup, used_ids: Collection[bytes]) -> None:
    """Forget the topics that no member subscribes to and whose ids the group no longer uses (row MI15)."""
    gone = {
        name
        for name in unused_topics(group)
        if (topic := group.topics[name]) is None or topic.topic_id not in used_ids
    }
    if gone:
        context.rule("MI15")
        group.topics = {name: topic for name, topic in group.topics.items() if name not in gone}


def _in_words(before: Mapping[str, Topic | None], found: Mapping[str, Topic | None]) -> str:
    """Return the changes of at most three topics in words."""
    shown = [_one_in_words(name, before, topic) for name, topic in sorted(found.items())[:3]]
    left_out = len(found) - len(shown)
    more = [counted(left_out, "more topic")] if left_out else []
    return ", ".join(shown + more)


def _one_in_words(name: str, before: Mapping[str, Topic | None], topic: Topic | None) -> str:
    known = before.get(name)
    if topic is None:
        return f"{name} was deleted" if known is not None else f"{name} does not exist"
    count = counted(topic.partitions, "partition")
    if known is None:
        return f"{name} exists with {count}"
    if known.topic_id != topic.topic_id:
        return f"{name} was deleted and created again with {count}"
    return f"{name} has {count} instead of {known.partitions}"


# The target assignment of a group with epochs: when it is computed, and its history entries. Rows TA1 to TA3,
# TA32, ST1 to ST3.
#
# Assignors use topic names, a target topic ids. A topic that was deleted and created again has another id, so
# the members' last target does not apply to it. Source: GroupMetadataManager.maybeUpdateTargetAssignment.


# The bound on partitions that the coordinator assigns to one group. Rows TA31, TA32.


def has_capacity(
    config: CoordinatorConfig,
    group: AnyModernGroup,
    member_id: str,
    topics: Collection[str],
    reported: TopicImages | None,
) -> bool:
    """Row TA31: return True if a member, new or not, may subscribe to `topics`.

    The limit is `group.max.partitions` partitions in the group. `reported` are the topics that the request
    reports. A member that adds no topic is always allowed, although the group's topics may have grown above
    the limit.
    """
    counts = {name: topic.partitions for name, topic in group.topics.items() if topic is not None}
    for name, image in (reported or {}).items():
        topic = group.topics.get(name)
        if image is not None and (topic is None or topic.topic_id == image.id.bytes):
            counts[name] = max(image.partitions, counts.get(name, 0))
    most = config.group_max_partitions
    if sum(counts.values()) <= most:
        return True
    # Some counts are of topics that no member subscribes to.
    members: Mapping[str, Any] = group.members
    others = (member for member in members.values() if member.member_id != member_id)
    wanted = {topic for member in others for topic in group.topics_of(member)}.union(topics)
    return wanted <= group.subscribed() or sum(counts.get(name, 0) for name in wanted) <= most


def assignable_topics(group: AnyModernGroup, most: int) -> tuple[dict[str, Topic], list[str]]:
    """Return the topics to assign by name, and those left out because the group would have too many
    partitions (row TA32).
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


# A group's own settings: both protocols with epochs have them under similar names. Rows CF19 to CF21, SN14,
# SN22.


class ModernSettings:
    """The group settings of one protocol. `prefix` starts their names: `consumer`, `share`. The rows are
    those that refuse a value.
    """

    def __init__(self, prefix: str, *, session: str, heartbeat: str, assignment: str) -> None:
        self._field = f"group_{prefix}"
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
        names = [f"{bound}{what}_ms" for bound in ("", "min_", "max_")]
        return lambda config: SettingBounds(*(getattr(self._of_coordinator(config), name) for name in names))

    def conflict_of(self, values: Mapping[str, int]) -> tuple[str, str] | None:
        """Return the row and a message if these effective values contradict each other, else None."""
        session_ms, interval_ms = values[self.session_timeout], values[self.heartbeat_interval]
        if session_ms > interval_ms:
            return None
        message = (
            f"{self.session_timeout} ({session_ms}) must be above {self.heartbeat_interval} ({interval_ms})"
        )
        return self._session_row, message

    def of(self, context: StepContext) -> ModernGroupConfig:
        """Return the settings in force for the group: its own, else the coordinator's."""
        return self.in_force(context.group.configs, context.config)

    def in_force(self, configs: Mapping[str, SettingValue], config: CoordinatorConfig) -> ModernGroupConfig:
        """Return the settings in force for a group whose own settings are `configs`."""
        coordinators = self._of_coordinator(config)
        if not configs:  # called at each heartbeat, and few groups have their own settings
            return coordinators
        values = values_in_force(self.settings, configs, config)
        return replace(
            coordinators,
            session_timeout_ms=values[self.session_timeout],
            heartbeat_interval_ms=values[self.heartbeat_interval],
            assignment_interval_ms=values[self.assignment_interval],
        )

    def _of_coordinator(self, config: CoordinatorConfig) -> ModernGroupConfig:
        settings: ModernGroupConfig = getattr(config, self._field)
        return settings


# The group epoch: what raises it, and when the next target assignment is due. Rows HB49 to HB55, TA3, SH21
# to SH24, ST2, ST3.
#
# Source: GroupMetadataManager (consumerGroupHeartbeat, shareGroupHeartbeat, maybeUpdateTargetAssignment).


def bump(context: StepContext, rule: RuleId, reason: str, **details: object) -> None:
    """Raise the group epoch by one. This starts a rebalance unless one is already running."""
    group = context.group_of(ModernGroup)
    was_rebalancing = group.is_rebalancing
    group.group_epoch += 1
    if not was_rebalancing:
        group.last_rebalance_at_ms, group.last_rebalance_reason = context.now_ms, reason
    context.record(rule, EntryType.GROUP_EPOCH_BUMPED, reason, **details)


def due_in_ms(context: StepContext, interval_ms: int) -> int:
    """Return the remaining time of the assignment interval in ms, 0 if it is over."""
    computed_ms = context.group_of(ModernGroup).assignment_timestamp_ms
    return 0 if computed_ms == 0 else max(0, computed_ms + interval_ms - context.now_ms)


def settle_emptied(context: StepContext) -> None:
    """Settle a group whose last member is gone.

    Its target counts as current, and no assignment interval runs, so the next member to join gets its
    partitions at once (KAFKA-20442).
    """
    group = context.group_of(ModernGroup)
    group.assignment_epoch, group.assignment_timestamp_ms = group.group_epoch, 0


# The history records when every member has its target assignment. Rows GS4, SP25.


def record_stable(
    context: StepContext, group: ModernGroup, rule: RuleId, members: Iterable[str], *, has_rebalanced: bool
) -> None:
    """Record that every member has its target, with the duration of the rebalance, if any."""
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
_TopicIdPartition = tuple[bytes, int]
"""A partition."""


def is_target_due(context: StepContext, settings: ModernSettings, *, current: str, too_early: str) -> bool:
    """Return True if the group has changed since the last target, and the assignment interval is over.

    `current` and `too_early` are the rows of the two other cases.
    """
    group = context.group_of(ModernGroup)
    if group.assignment_epoch >= group.group_epoch:
        context.rule(current)
        return False
    if due_in_ms(context, settings.of(context).assignment_interval_ms):
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
    """Convert an assignor's result from topic names to topic ids. Each member has an entry."""
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
    """Record that the target of the group epoch is computed.

    `last` is the previous target, and `left_out` are the topics that are not in the new one.
    """
    last_epoch, target, names = group.assignment_epoch, group.target, group.names_by_id()
    group.assignment_epoch, group.assignment_timestamp_ms = group.group_epoch, context.now_ms
    moved, new = _count_moves(last, target)
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


def _count_moves(last: Targets, target: Targets) -> tuple[int, int]:
    """Return how many partitions moved to another member, and how many had no member before."""
    had, lost, got = set[_TopicIdPartition](), set[_TopicIdPartition](), set[_TopicIdPartition]()
    for member_id in last.keys() | target.keys():
        before, after = _flat(last.get(member_id, {})), _flat(target.get(member_id, {}))
        had |= before
        lost |= before - after
        got |= after - before
    return len(lost & got), len(got - had)


def _flat(partitions: Partitions) -> set[_TopicIdPartition]:
    return {(topic_id, number) for topic_id, numbers in partitions.items() for number in numbers}
