"""The rules that groups with epochs have in common: their refusals, their topics, their settings, their group
epoch and their target assignment.

A row, such as TA1, is a rule of docs/rules-consumer.md. `context.cite` records that a row was applied.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Struct, msgpack

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import AnyAnsweredRequest, ConsumerGroupHeartbeat, ReplyTo
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
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import KafkaGroup, RuleId, StepContext, restart_group
from state.kafka.group import Topic, Topics, topics_from_request, topics_from_watcher
from state.kafka.modern_group import EpochMember, ModernGroup
from state.kafka.offsets import remember_deleted
from state.kafka.share_group import ShareGroup, ShareMember
from state.protocol import Handler, RequestRefusal, WhyRefused

# The refusal of a request to a group with epochs: a consumer, share or streams group. The group may already
# be changed when the refusal is raised: the handler undoes all changes (`StepContext.undo`).


# The characters that Java's String.trim removes.
_BLANKS = "".join(map(chr, range(33)))


def is_blank(text: str) -> bool:
    """Return True if the text is empty or blank by Java's rules."""
    return not text.strip(_BLANKS)


class RequestRefused(Exception):
    """The refusal of a request: the row that decided it, the error and its message.

    `event` is the type of the refusal's history entry, or None. Only errors that an operator has to see have
    an entry, because a client that repeats its request adds to the history each time. If `after` is not None,
    it is called with the step's context when all changes are undone.
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


def malformed(
    context: StepContext, row: str, message: str, error: ErrorCode = ErrorCode.INVALID_REQUEST
) -> RequestRefused:
    """Return the refusal of a malformed request."""
    return RequestRefused(context.cite(row), error, message)


def check_not_blank(context: StepContext, *fields: tuple[str, str | None, str]) -> None:
    """Raise RequestRefused for the first of these fields that is blank. A field is a tuple: its name, its
    value, which is None if the request does not have it, and the row that refuses it.
    """
    for name, value, row in fields:
        # Every heartbeat comes here: a call of `is_blank` would take longer than the rest.
        if value is not None and not value.strip(_BLANKS):
            raise malformed(context, row, f"{name} can't be empty.")


RequestCheck = Callable[[StepContext, Any], None]
"""A part of the handling of a request. It takes the context and the request, and may raise RequestRefused."""


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


def event_of_refusal(
    request: ConsumerGroupHeartbeat | ShareGroupHeartbeat | StreamsGroupHeartbeat,
) -> EntryType | None:
    """Return the type of the history entry of a refusal, or None. Only the refusal of a request that joins
    has an entry.
    """
    return EntryType.JOIN_REFUSED if request.member_epoch == 0 else None


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
    context: StepContext, request: AnyAnsweredRequest, reply_to: ReplyTo, refused: RequestRefused
) -> None:
    """Answer a refused request whose answer has a field for the error text."""
    message = refused.message
    context.reply(reply_to, request.response_type, refused.rule, refused.error, error_message=message)


def heartbeat_handler(
    check: RequestCheck, get_or_create: RequestCheck, leave: Handler, stay: Handler
) -> Handler:
    """Return the handler of a protocol's heartbeats. It calls `check`, which needs no group, then
    `get_or_create`, which ensures that the group exists, and then `leave` if the member leaves, else `stay`.

    Each of these may raise RequestRefused. A refused request changes nothing.
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


# Requests to a group id without a group, or with a group of another protocol. All protocols with epochs
# answer them in the same way.
#
# Source: GroupMetadataManager (consumerGroup, shareGroup).


def wrong_type_message(group_id: str, kind: str) -> str:
    """Return the error text, for example "Group g is not a consumer group", for a group of another kind."""
    return f"Group {group_id} is not a {kind}."


class CreationRows(NamedTuple):
    """The rows of a heartbeat to a group id with no group, with an Empty classic group, with another classic
    group, and with a group of another type. `leaves` is the row of all these cases if the sender leaves.
    """

    missing: str
    empty_classic: str
    classic: str
    other: str
    leaves: str


def ensure_group(
    context: StepContext,
    request: ConsumerGroupHeartbeat | StreamsGroupHeartbeat,
    group_class: type[KafkaGroup],
    kind: str,
    rows: CreationRows,
    upgrade: RequestCheck | None = None,
) -> bool:
    """Return True if the group already is of `group_class`. Otherwise, if the request joins, create the group
    or convert an Empty classic group, and return False. `upgrade` converts a classic group with members.

    Raise RequestRefused if the request does not join, or if the group cannot be converted.
    """
    if isinstance(context.group_or_none, group_class):
        return True
    row_of_case, can_join = rows.other, False
    if not context.has_group:
        row_of_case, can_join = rows.missing, True
    elif isinstance(context.group, ClassicGroup):
        row_of_case = rows.empty_classic if context.group.is_empty else rows.classic
        can_join = context.group.is_empty or upgrade is not None
    row = context.cite(rows.leaves if request.member_epoch < 0 else row_of_case)
    if request.member_epoch != 0 or not can_join:
        not_found = f"Group {context.group_id} does not exist."
        message = wrong_type_message(context.group_id, kind) if context.has_group else not_found
        raise RequestRefused(row, ErrorCode.GROUP_ID_NOT_FOUND, message)
    context.save()  # a refusal of this request undoes the new group
    if not context.has_group:
        context.create_group(group_class, row, f"first {type(request).__name__} for this group id")
    elif context.group.is_empty:
        reason = f"the Empty classic group becomes a {kind}; its offsets stay"
        restart_group(context, row, group_class, reason)
    elif upgrade is not None:
        upgrade(context, request)
    return False


def answer_not_found(row: str, kind: str, response: type[AnyResponse]) -> Handler:
    """Return a handler that answers by this row that the group id has no group of this kind."""

    def answer(context: StepContext, _: Any, reply_to: ReplyTo) -> None:
        not_found = f"Group {context.group_id} not found."
        message = wrong_type_message(context.group_id, kind) if context.has_group else not_found
        error = ErrorCode.GROUP_ID_NOT_FOUND
        context.reply(reply_to, response, context.cite(row), error, error_message=message)

    return answer


def other_type_refusal(row: str, kind: str, check: RequestCheck | None = None) -> WhyRefused:
    """Return the function that refuses a request to a RocketMQ group.

    As in Kafka, a malformed request is refused by its own `check`. `row` decides the refusal of a request
    that passes it.
    """

    def refuse(group_id: str, request: Any, request_id: str, config: CoordinatorConfig) -> RequestRefusal:
        try:
            if check is not None:
                context = StepContext(None, group_id, cause=request_id, now_ms=0, config=config)
                check(context, request)
        except RequestRefused as refused:
            return refused.rule, refused.error, refused.message
        return row, ErrorCode.GROUP_ID_NOT_FOUND, wrong_type_message(group_id, kind)

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
"""A group whose members subscribe to topics."""


def fingerprint(group: ModernGroup[Any]) -> bytes:
    """Return the fingerprint of the existing topics that the group requires, or b"" if there are
    none.

    Racks are not included, because no server-side assignor uses them.
    """
    required = group.required_topics()
    topics = sorted(
        (name, topic.topic_id, topic.partitions)
        for name, topic in group.topics.items()
        if topic is not None and name in required
    )
    return blake2b(msgpack.encode(topics), digest_size=_FINGERPRINT_BYTES).digest() if topics else b""


def refresh_fingerprint(group: ModernGroup[Any]) -> bool:
    """Recompute the fingerprint of the group's topics, and return True if it has changed (rows MD9, MD10)."""
    last_hash, group.metadata_hash = group.metadata_hash, fingerprint(group)
    group.metadata_stale = False
    return group.metadata_hash != last_hash


def merge_reported_topics(context: StepContext, group: ModernGroup[Any], images: TopicImages | None) -> None:
    """Add the topics that a request reports to the group's topics (row MI7). `images` is None if the sender
    could not read the topics.
    """
    added = topics_from_request(group.topics, images or {}, context.group.deleted_topic_ids)
    if added:
        add_reported_topics(context, group, added)


def add_reported_topics(context: StepContext, group: ModernGroup[Any], found: Topics) -> None:
    """Add `found`, the new topics in a request's report, to the group's topics (row MI7)."""
    # The history shows only topics that the group has already or subscribes to.
    awaited = {*group.topics, *group.unknown_topics()}
    shown = {name: topic for name, topic in found.items() if name in awaited}
    row = context.cite("MI7")
    why = _describe_changes(group.topics, shown)
    _store_topics(group, found)
    if shown:
        context.record(row, EntryType.TOPICS_CHANGED, f"a request reports: {why}", topics=sorted(shown))


def store_watched_topics(
    context: StepContext, group: ModernGroup[Any], images: TopicImages, names: Collection[str]
) -> Topics:
    """Store the topic watcher's reports of the topics in `names`, and return the topics that changed.

    No epoch changes: the next heartbeat or JoinGroup finds another fingerprint (row MI9).
    """
    images = {name: images[name] for name in sorted(images) if name in names}
    changed = topics_from_watcher(group.topics, images, context.group.deleted_topic_ids)
    if not changed:
        return {}
    why = _describe_changes(group.topics, changed)
    for name, topic in changed.items():
        old_topic = group.topics.get(name)
        if old_topic is not None and (topic is None or topic.topic_id != old_topic.topic_id):
            context.cite("MI11" if topic is None else "MI10")
            remember_deleted(context.group, [old_topic.topic_id])
    _store_topics(group, changed)
    context.record(
        context.cite("MI9"), EntryType.TOPICS_CHANGED, f"in the cluster: {why}", topics=sorted(changed)
    )
    return changed


def _store_topics(group: ModernGroup[Any], topics: Topics) -> None:
    """Add or replace these topics of the group."""
    group.topics = dict(sorted({**group.topics, **topics}.items()))
    group.metadata_stale = True


def forget_topics(context: StepContext, group: AnyModernGroup, held_ids: Iterable[bytes]) -> None:
    """Forget the topics that no member subscribes to and that the group no longer uses (row MI15): neither as
    assigned or target partitions, nor among `held_ids`.
    """
    unused = group.topics.keys() - group.subscribed()
    if not unused:
        return
    members: Mapping[str, ConsumerMember | ShareMember] = group.members
    used = {*held_ids}.union(*group.target.values(), *(member.assigned for member in members.values()))
    forgotten = {n for n in unused if (topic := group.topics[n]) is None or topic.topic_id not in used}
    if forgotten:
        context.cite("MI15")
        group.topics = {name: topic for name, topic in group.topics.items() if name not in forgotten}


def _describe_changes(old_topics: Mapping[str, Topic | None], changed: Mapping[str, Topic | None]) -> str:
    """Return the changes of at most three topics in words. `old_topics` are the group's before the change."""
    shown = [
        _describe_change(name, old_topics.get(name), topic) for name, topic in sorted(changed.items())[:3]
    ]
    left_out = len(changed) - len(shown)
    more = [counted(left_out, "more topic")] if left_out else []
    return ", ".join(shown + more)


def _describe_change(name: str, old_topic: Topic | None, topic: Topic | None) -> str:
    if topic is None:
        return f"{name} was deleted" if old_topic is not None else f"{name} does not exist"
    count = counted(topic.partitions, "partition")
    if old_topic is None:
        return f"{name} exists with {count}"
    if old_topic.topic_id != topic.topic_id:
        return f"{name} was deleted and created again with {count}"
    return f"{name} has {count} instead of {old_topic.partitions}"


# The target assignment of a group with epochs: when it is computed, and its history entries. Rows TA1 to TA3,
# TA32, ST1 to ST3.
#
# An assignor identifies topics by name, a target identifies them by id. A topic that was deleted and created
# again has another id, so the members' last target does not apply to it. Source:
# GroupMetadataManager.maybeUpdateTargetAssignment.


# The bound on partitions that the coordinator assigns to one group. Rows TA31, TA32.


def check_capacity(
    context: StepContext,
    group: AnyModernGroup,
    member_id: str,
    topics: Collection[str],
    reported: TopicImages | None,
    event: EntryType | None,
    message: str | None = None,
) -> None:
    """Row TA31: raise RequestRefused if the member `member_id`, new or not, may not replace its topics with
    `topics`, because the group would have more partitions than `group.max.partitions`.

    `reported` are the topics that the request reports. A member that adds no topic to the group is always
    allowed, even if the group's topics have grown above the limit. The refusal is recorded as `event`.
    """
    counts = {name: topic.partitions for name, topic in group.topics.items() if topic is not None}
    for name, image in (reported or {}).items():
        topic = group.topics.get(name)
        # The group ignores a report of another topic of the same name (`topics_from_request`).
        if image is not None and (topic is None or topic.topic_id == image.id.bytes):
            counts[name] = max(image.partitions, counts.get(name, 0))
    max_partitions = context.config.group_max_partitions
    if sum(counts.values()) <= max_partitions:
        return
    # The sum above may include topics to which no member subscribes. Only now count the subscribed topics,
    # because this takes longer.
    members: Mapping[str, Any] = group.members
    others = (member for member in members.values() if member.member_id != member_id)
    subscribed_after = {topic for member in others for topic in group.topics_of(member)}.union(topics)
    adds_topic = not subscribed_after <= group.subscribed()
    if adds_topic and sum(counts.get(name, 0) for name in subscribed_after) > max_partitions:
        raise too_many_partitions(context, event, message)


def too_many_partitions(
    context: StepContext, event: EntryType | None = None, message: str | None = None
) -> RequestRefused:
    """Row TA31: return the refusal of a request because the group would have too many partitions."""
    max_partitions = context.config.group_max_partitions
    group_text = f"Group {context.group_id} would have more partitions"
    message = message or f"{group_text} than group.max.partitions, {max_partitions}."
    return RequestRefused(context.cite("TA31"), ErrorCode.GROUP_MAX_SIZE_REACHED, message, event)


def assignable_topics(group: AnyModernGroup, most: int) -> tuple[dict[str, Topic], list[str]]:
    """Return the topics to assign, by name, and the names of topics that are left out because the group would
    have more than `most` partitions (row TA32).
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


# A group's own settings, which all protocols with epochs have under similar names. Rows CF19 to CF21, SN14,
# SN22.


class ModernSettings:
    """The group settings of one protocol, whose names start with `prefix`, for example `consumer`.

    `session`, `heartbeat` and `assignment` are the rows that refuse a value of the session timeout, the
    heartbeat interval and the assignment interval.
    """

    def __init__(self, prefix: str, *, session: str, heartbeat: str, assignment: str) -> None:
        self._config_field = f"group_{prefix}"
        self.session_timeout = f"{prefix}.session.timeout.ms"
        self.heartbeat_interval = f"{prefix}.heartbeat.interval.ms"
        self.assignment_interval = f"{prefix}.assignment.interval.ms"
        self._session_row = session
        self.settings = (
            GroupSetting(self.assignment_interval, assignment, self._bounds_of("assignment_interval")),
            GroupSetting(self.heartbeat_interval, heartbeat, self._bounds_of("heartbeat_interval")),
            GroupSetting(self.session_timeout, session, self._bounds_of("session_timeout")),
        )

    def _bounds_of(self, setting: str) -> Callable[[CoordinatorConfig], SettingBounds]:
        """Return the function that reads the coordinator's value and bounds of the setting."""
        names = [f"{bound}{setting}_ms" for bound in ("", "min_", "max_")]
        return lambda config: SettingBounds(*(getattr(self._of_coordinator(config), name) for name in names))

    def conflict_of(self, values: Mapping[str, int]) -> tuple[str, str] | None:
        """Return the row and a message if these values in force contradict each other, else None."""
        session_ms, interval_ms = values[self.session_timeout], values[self.heartbeat_interval]
        if session_ms > interval_ms:
            return None
        message = (
            f"{self.session_timeout} ({session_ms}) must be above {self.heartbeat_interval} ({interval_ms})"
        )
        return self._session_row, message

    def arm_session(self, context: StepContext, member: EpochMember | ShareMember) -> None:
        """Arm the member's session timeout from now on."""
        own_ms = member.session_timeout_ms
        timeout_ms = self.of(context).session_timeout_ms if own_ms is None else own_ms
        member.session_deadline_ms = context.deadline(timeout_ms)

    def of(self, context: StepContext) -> ModernGroupConfig:
        """Return the settings in force for the group: its own, else the coordinator's."""
        return self.in_force(context.group.configs, context.config)

    def in_force(self, configs: Mapping[str, SettingValue], config: CoordinatorConfig) -> ModernGroupConfig:
        """Return the settings in force for a group whose own settings are `configs`."""
        coordinator_settings = self._of_coordinator(config)
        if not configs:  # called at each heartbeat, and few groups have their own settings
            return coordinator_settings
        values = values_in_force(self.settings, configs, config)
        return replace(
            coordinator_settings,
            session_timeout_ms=values[self.session_timeout],
            heartbeat_interval_ms=values[self.heartbeat_interval],
            assignment_interval_ms=values[self.assignment_interval],
        )

    def _of_coordinator(self, config: CoordinatorConfig) -> ModernGroupConfig:
        settings: ModernGroupConfig = getattr(config, self._config_field)
        return settings


# The group epoch: what raises it, and when the next target assignment is due. Rows HB49 to HB55, TA3, SH21
# to SH24, ST2, ST3.
#
# Source: GroupMetadataManager (consumerGroupHeartbeat, shareGroupHeartbeat, maybeUpdateTargetAssignment).


def bump(context: StepContext, rule: RuleId, reason: str, **details: object) -> None:
    """Raise the group epoch by one. This starts a rebalance unless one is already running.

    The target of a group without members counts as current, and no assignment interval runs, so the next
    member to join gets its partitions at once (KAFKA-20442, row K5).
    """
    group = context.group_of(ModernGroup)
    was_rebalancing = group.is_rebalancing
    group.group_epoch += 1
    if not was_rebalancing:
        group.last_rebalance_at_ms, group.last_rebalance_reason = context.now_ms, reason
    context.record(rule, EntryType.GROUP_EPOCH_BUMPED, reason, **details)
    if group.is_empty:
        group.assignment_epoch, group.assignment_timestamp_ms = group.group_epoch, 0


def assignment_due_in_ms(context: StepContext, interval_ms: int) -> int:
    """Return the remaining time of the assignment interval in ms, 0 if it is over or no interval runs."""
    computed_ms = context.group_of(ModernGroup).assignment_timestamp_ms
    return 0 if computed_ms == 0 else max(0, computed_ms + interval_ms - context.now_ms)


# The history records when every member has its target assignment. Rows GS4, SP25.


def record_stable(
    context: StepContext,
    group: ModernGroup[Any],
    rule: RuleId,
    members: Iterable[str],
    *,
    has_rebalanced: bool,
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
"""The id of a topic, and a partition."""


def is_target_due(context: StepContext, settings: ModernSettings, *, current: str, too_early: str) -> bool:
    """Return True if the group has changed since the last target, and the assignment interval is over.

    `current` is the row if the group has not changed, and `too_early` the row if the interval is not over.
    """
    group = context.group_of(ModernGroup)
    if group.assignment_epoch >= group.group_epoch:
        context.cite(current)
        return False
    if assignment_due_in_ms(context, settings.of(context).assignment_interval_ms):
        context.cite(too_early)
        return False
    return True


def topics_of_target(context: StepContext, group: AnyModernGroup) -> tuple[dict[str, Topic], list[str]]:
    """Return the topics to assign, by name, and the names of topics that exceed the group's maximum number of
    partitions and are left out (row TA32).
    """
    topics, left_out = assignable_topics(group, context.config.group_max_partitions)
    if left_out:
        context.cite("TA32")
    return topics, left_out


def by_topic_id(assigned: Mapping[str, Iterable[TopicPartition]], topics: Mapping[str, Topic]) -> Targets:
    """Convert an assignor's result from topic names to topic ids. Each member has an entry."""
    target: Targets = {}
    for member_id, partitions in assigned.items():
        of_member = target[member_id] = {}
        for name, number in partitions:
            of_member.setdefault(topics[name].topic_id, []).append(number)
    return target


def record_target(
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
    names = group.names_by_id()
    moved, added = _count_moves(last, group.target)
    reason = set_target_epoch(context, group, assignor, moved, added, "partition")
    if left_out:
        limit = f"group.max.partitions={context.config.group_max_partitions}"
        reason += f"; topics beyond {limit} are left out: {listed(left_out, 'topic')}"
    targets = {id_: named(new, names) for id_, new in group.target.items() if new != last.get(id_)}
    context.record(
        rule,
        EntryType.TARGET_ASSIGNMENT_COMPUTED,
        reason,
        assignor_name=assignor,
        moved_partitions=moved,
        targets=targets,
    )


def set_target_epoch(
    context: StepContext, group: ModernGroup[Any], assignor: str, moved: int, new: int, noun: str
) -> str:
    """Set the assignment epoch to the group epoch, because the target was computed, and return a sentence
    about the target for the history.

    `moved` is the number of partitions or tasks that move to another member, and `new` the number of those
    that had no member. `noun` is "partition" or "active task".
    """
    last_epoch, epoch = group.assignment_epoch, group.group_epoch
    group.assignment_epoch, group.assignment_timestamp_ms = epoch, context.now_ms
    moves = "moves" if moved == 1 else "move"
    return (
        f"{assignor} computed the target of epoch {epoch} from that of {last_epoch}: "
        f"{counted(moved, noun)} {moves} to another member, and {new} had no member"
    )


def _count_moves(last: Targets, target: Targets) -> tuple[int, int]:
    """Return how many partitions moved to another member, and how many had no member in the `last` target."""
    assigned_before = set[_TopicIdPartition]()
    lost, gained = set[_TopicIdPartition](), set[_TopicIdPartition]()
    for member_id in last.keys() | target.keys():
        before, after = _flattened(last.get(member_id, {})), _flattened(target.get(member_id, {}))
        assigned_before |= before
        lost |= before - after
        gained |= after - before
    return len(lost & gained), len(gained - assigned_before)


def _flattened(partitions: Partitions) -> set[_TopicIdPartition]:
    return {(topic_id, number) for topic_id, numbers in partitions.items() for number in numbers}


def without(partitions: Mapping[bytes, Iterable[int]], others: Mapping[bytes, Iterable[int]]) -> Partitions:
    """Return the sorted partitions that are not in `others`."""
    rest = {id_: sorted(set(numbers).difference(others.get(id_, ()))) for id_, numbers in partitions.items()}
    return {id_: numbers for id_, numbers in rest.items() if numbers}
