"""Changes of a member and of the topology by a heartbeat, and the group epoch. Rows KSH43 to KSH54, KST1 to
KST5, KSU5.

Everything that can refuse the request is decided first (`plan_topology`, `check_tasks`), so that a refused
request changes nothing. Source: GroupMetadataManager (streamsGroupHeartbeat, maybeUpdateTopology),
StreamsGroup.computeMetadataHash.

A row, such as KST3, is a rule of docs/rules-streams.md. `context.cite` records that a row was applied.
"""

from collections.abc import Mapping
from itertools import islice

from msgspec import Struct

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat, StreamsTopology
from kafka_why.contract.messages import ErrorCode
from state.kafka.context import StepContext
from state.kafka.group import Topics, topics_from_request
from state.kafka.modern import (
    RequestRefused,
    add_reported_topics,
    bump,
    event_of_refusal,
    refresh_fingerprint,
)
from state.kafka.streams.members import StreamsSender, displacement_reason, removal_reason
from state.kafka.streams.requests import offsets_of
from state.kafka.streams.settings import INITIAL_DELAY, assignment_configs, value_of
from state.kafka.streams_group import Role, RoleTasks, StreamsGroup, StreamsGroupMember, Task
from state.kafka.streams_topics import (
    TASKS_MAX,
    ConfiguredTopology,
    InvalidTopologyError,
    TopologyProblem,
    configure,
    difference,
    required_topics,
    source_topics,
)

# The maximum number of reported offsets that a group stores: two for each of `TASKS_MAX` tasks. Further
# offsets are not stored.
OFFSETS_MAX = 2 * TASKS_MAX
# The maximum number of different failures to create internal topics that are recorded until the topics exist.
FAILURES_MAX = 10


class TopologyPlan(Struct, frozen=True):
    """The topology of the group after the request.

    `new_topics` are topics that the request reports and the group does not know. `configured` is the topology
    with its numbers of partitions and tasks, or the reason why it is not ready.
    """

    topology: StreamsTopology
    new_topics: Topics
    configured: ConfiguredTopology | TopologyProblem


def plan_topology(context: StepContext, group: StreamsGroup, request: StreamsGroupHeartbeat) -> TopologyPlan:
    """Return the group's topology after the request. Raise RequestRefused if the group cannot have the
    topology of the request.
    """
    topology = _next_topology(context, group, request)
    required = group.required if topology is group.topology else required_topics(topology)
    images = {name: image for name, image in (request.topics or {}).items() if name in required}
    new_topics = topics_from_request(group.topics, images, group.deleted_topic_ids)
    try:
        if topology is group.topology and not new_topics and group.configured is not None:
            configured = group.configured
        else:
            configured = configure(topology, {**group.topics, **new_topics})
    except InvalidTopologyError as error:
        raise RequestRefused(
            context.cite("KST15"), ErrorCode.STREAMS_INVALID_TOPOLOGY, str(error), event_of_refusal(request)
        ) from None
    # Only a new topology is refused for its size. The tasks of the group's own topology may have grown too
    # many.
    if isinstance(configured, TopologyProblem) and configured.is_too_large and topology is not group.topology:
        row, error_code = context.cite("KSQ14"), ErrorCode.INVALID_REQUEST
        raise RequestRefused(row, error_code, configured.detail, event_of_refusal(request))
    return TopologyPlan(topology, new_topics, configured)


def _next_topology(
    context: StepContext, group: StreamsGroup, request: StreamsGroupHeartbeat
) -> StreamsTopology:
    """Rows KST1 to KST3: return the group's topology after the request.

    A member with an older topology epoch may join. Raise RequestRefused for any other difference, unless the
    group is Empty and may get another topology.
    """
    current, sent = group.topology, request.topology
    if sent is None:
        assert current is not None, "a group with members has a topology"
        return current
    if current is None:
        return sent
    if current.epoch > sent.epoch:
        context.cite("KST2")
        return current
    change = difference(current, sent)
    if change is None:
        return current
    if group.is_empty and context.config.streams_topology_replace_when_empty:
        context.cite("KSB6")
        return sent
    message = f"Topology updates are not supported: {change}."
    raise RequestRefused(context.cite("KST3"), ErrorCode.INVALID_REQUEST, message, EntryType.JOIN_REFUSED)


def check_tasks(
    context: StepContext, request: StreamsGroupHeartbeat, plan: TopologyPlan, owned: RoleTasks | None
) -> None:
    """Raise RequestRefused if the request reports a task that does not exist, or two offsets of a task."""
    if owned is not None and isinstance(plan.configured, ConfiguredTopology):
        tasks = plan.configured.tasks
        for role in Role:
            for subtopology, number in owned.of(role):
                if subtopology not in tasks or not 0 <= number < tasks[subtopology].count:
                    message = f"Task {subtopology}_{number} does not exist in the topology of the group."
                    raise RequestRefused(context.cite("KSH48"), ErrorCode.INVALID_REQUEST, message)
    for offsets in (request.task_offsets, request.task_end_offsets):
        if offsets is not None and len(offsets_of(offsets)) < len(offsets):
            message = "TaskOffsets and TaskEndOffsets must have a task at most once."
            raise RequestRefused(context.cite("KSH49"), ErrorCode.INVALID_REQUEST, message)


def update(
    context: StepContext,
    group: StreamsGroup,
    member: StreamsGroupMember,
    request: StreamsGroupHeartbeat,
    sender: StreamsSender,
    plan: TopologyPlan,
) -> None:
    """Update the member and the group, and raise the group epoch at most once if the group needs a new
    target.
    """
    is_new = sender.member is None and sender.replaced is None
    changed_fields = _set_fields(group, member, request)
    # Other fields of a static member do not raise the group epoch (row KSH44).
    if request.instance_id is not None:
        changed_fields = [name for name in changed_fields if name in _FIELDS_OF_STATIC_MEMBERS]
    reasons: list[tuple[str, str]] = []  # why the group epoch is raised, each with its row
    if sender.replaced is not None and sender.displaced is not None:
        reasons.append(("KSH42", removal_reason(sender.displaced, displacement_reason(sender.replaced))))
    if is_new:
        reasons.append(("KSH44", f"member {member.member_id} joined"))
    elif changed_fields:
        reasons.append(("KSH44", f"member {member.member_id} changed {' and '.join(changed_fields)}"))
    _set_topology(context, group, plan)
    topic_reasons = _set_validated_epoch(group, plan)
    if group.metadata_stale and refresh_fingerprint(group):
        topic_reasons.insert(0, "the topics of the topology have changed")
    if topic_reasons:
        _forget_offsets(group, plan)
    _store_offsets(group, member, request, plan, context.now_ms)
    _record_failure(context, group, member, request, plan)
    reasons += [("KSH47", text) for text in topic_reasons]
    reasons += [("KSH51", text) for text in _set_assignment_configs(context, group)]
    if reasons:
        # One row decides: that of the first reason.
        row = context.cite(reasons[0][0])
        details = {"member_id": member.member_id} if row == "KSH44" else {}
        bump(context, row, "; ".join(text for _, text in reasons), **details)


# The fields of a dynamic member whose change raises the group epoch, with their names in the history.
_FIELDS_OF_DYNAMIC_MEMBERS = {
    "topology_epoch": "its topology epoch",
    "rack_id": "its rack",
    "process_id": "its process",
    "client_tags": "its tags",
    "instance_id": "its instance id",
    "client_id": "its client id",
    "client_host": "its host",
    "rebalance_timeout_ms": "its rebalance timeout",
    "user_endpoint": "its endpoint",
}
# The fields of a static member whose change raises the group epoch, by their names in the history.
_FIELDS_OF_STATIC_MEMBERS = ("its topology epoch", "its rack", "its process", "its tags")


def _set_fields(group: StreamsGroup, member: StreamsGroupMember, request: StreamsGroupHeartbeat) -> list[str]:
    """Row KSH43: set the fields of the member that the request has. Return the names, as in the history, of
    those that have changed.
    """
    before = {name: getattr(member, name) for name in _FIELDS_OF_DYNAMIC_MEMBERS}
    member.client_id, member.client_host = request.client_id, request.client_host
    if request.instance_id is not None:
        group.set_instance(member, request.instance_id)
    if request.rack_id is not None:
        member.rack_id = request.rack_id
    if request.rebalance_timeout_ms != -1:
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
    if request.topology is not None:
        member.topology_epoch = request.topology.epoch
    if request.process_id is not None:
        member.process_id = request.process_id
    if request.client_tags is not None:
        member.client_tags = {
            tag.key: tag.value for tag in sorted(request.client_tags, key=lambda tag: tag.key)
        }
    if request.member_epoch == 0 or request.user_endpoint is not None:
        member.user_endpoint = request.user_endpoint
    return [
        history_name
        for name, history_name in _FIELDS_OF_DYNAMIC_MEMBERS.items()
        if getattr(member, name) != before[name]
    ]


def _set_topology(context: StepContext, group: StreamsGroup, plan: TopologyPlan) -> None:
    """Store the topology and the topics of the plan."""
    if plan.topology is not group.topology:
        group.set_topology(plan.topology)
        group.metadata_stale, group.validated_topology_epoch = True, -1
        context.retention_is_stale = True
        sources = [
            f"{subtopology.subtopology_id} reads {', '.join(source_topics(subtopology)) or 'no topic'}"
            for subtopology in sorted(plan.topology.subtopologies, key=lambda s: s.subtopology_id)
        ]
        context.record(
            context.cite("KST1"),
            EntryType.TOPOLOGY_CHANGED,
            f"the topology of epoch {plan.topology.epoch}: subtopology {'; '.join(sources) or 'none'}",
            topics=sorted(group.readers),
        )
    if plan.new_topics:
        add_reported_topics(context, group, plan.new_topics)
        group.forget_configured()


def _forget_offsets(group: StreamsGroup, plan: TopologyPlan) -> None:
    """Forget the offsets of tasks that do not exist."""
    counts = _task_counts(plan)
    for member in group.members.values():
        member.task_offsets = _of_existing_tasks(member.task_offsets, counts)
        member.task_end_offsets = _of_existing_tasks(member.task_end_offsets, counts)


def _store_offsets(
    group: StreamsGroup,
    member: StreamsGroupMember,
    request: StreamsGroupHeartbeat,
    plan: TopologyPlan,
    now_ms: int,
) -> None:
    """Store the offsets that the request reports of tasks in the topology, but at most `OFFSETS_MAX` in the
    group. A field that the request has replaces the member's field of the same name.
    """
    if request.task_offsets is None and request.task_end_offsets is None:
        return
    counts = _task_counts(plan)
    # A field is cleared first, so that its old offsets do not count towards the maximum.
    if request.task_offsets is not None:
        member.task_offsets = {}
        offsets = _of_existing_tasks(offsets_of(request.task_offsets), counts)
        member.task_offsets = _first(offsets, OFFSETS_MAX - _stored_offset_count(group))
        member.offsets_reported_ms = now_ms
    if request.task_end_offsets is not None:
        member.task_end_offsets = {}
        offsets = _of_existing_tasks(offsets_of(request.task_end_offsets), counts)
        member.task_end_offsets = _first(offsets, OFFSETS_MAX - _stored_offset_count(group))


def _record_failure(
    context: StepContext,
    group: StreamsGroup,
    member: StreamsGroupMember,
    request: StreamsGroupHeartbeat,
    plan: TopologyPlan,
) -> None:
    """Row KSU5: record why a gateway could not create missing internal topics, unless the same failure is
    recorded already. When the topics exist, forget the recorded failures.
    """
    recorded, failure = group.creation_failures, request.not_created
    if isinstance(plan.configured, ConfiguredTopology):
        recorded.clear()
    elif failure and failure not in recorded and len(recorded) < FAILURES_MAX:
        recorded.append(failure)
        context.record_member(
            context.cite("KSU5"),
            EntryType.INTERNAL_TOPICS_NOT_CREATED,
            member,
            failure,
            topics=[topic.name for topic in plan.configured.create],
        )


def _stored_offset_count(group: StreamsGroup) -> int:
    return sum(len(member.task_offsets) + len(member.task_end_offsets) for member in group.members.values())


def _first(offsets: dict[Task, int], max_count: int) -> dict[Task, int]:
    """Return the first `max_count` offsets, none if `max_count` is negative."""
    return offsets if len(offsets) <= max_count else dict(islice(offsets.items(), max(max_count, 0)))


def _task_counts(plan: TopologyPlan) -> dict[str, int]:
    """Return the number of tasks by subtopology. While the topology is not ready, return `TASKS_MAX` for
    each.
    """
    if isinstance(plan.configured, ConfiguredTopology):
        return {id_: tasks.count for id_, tasks in plan.configured.tasks.items()}
    return {subtopology.subtopology_id: TASKS_MAX for subtopology in plan.topology.subtopologies}


def _of_existing_tasks(offsets: Mapping[Task, int], counts: Mapping[str, int]) -> dict[Task, int]:
    """Return the offsets of tasks that exist, sorted. `counts` are the numbers of tasks by subtopology."""
    return {task: offset for task, offset in sorted(offsets.items()) if 0 <= task[1] < counts.get(task[0], 0)}


def _set_validated_epoch(group: StreamsGroup, plan: TopologyPlan) -> list[str]:
    """Row KSH50: store the epoch of the topology if it is ready, else -1. If this changes the stored value,
    return one reason for a new group epoch, else an empty list.
    """
    problem = plan.configured if isinstance(plan.configured, TopologyProblem) else None
    last_epoch = group.validated_topology_epoch
    epoch = -1 if problem is not None else plan.topology.epoch
    group.validated_topology_epoch = epoch
    if last_epoch == epoch:
        return []
    if problem is not None:
        return [f"the topology is not ready: {problem.detail}"]
    return [f"all topics of topology epoch {epoch} exist and are valid"]


def _set_assignment_configs(context: StepContext, group: StreamsGroup) -> list[str]:
    """Row KSH51: store the settings of the assignment, and return a text about each change, which is a reason
    for a new group epoch.
    """
    before, now = group.assignment_configs, assignment_configs(group.configs, context.config)
    group.assignment_configs = now
    # The first settings of a group are no change.
    return [
        f"{name} changed from {before.get(name, 'none')} to {now.get(name, 'none')}"
        for name in sorted({*before, *now})
        if before and before.get(name) != now.get(name)
    ]


def maybe_arm_initial_delay(context: StepContext, group: StreamsGroup) -> None:
    """Row KSH54: delay the first target of a group that had no members, because more members may join."""
    delay_ms = value_of(INITIAL_DELAY, group.configs, context.config)
    if delay_ms > 0 and group.initial_deadline_ms is None:
        group.initial_deadline_ms = context.deadline(delay_ms)
        context.record(
            context.cite("KSH54"),
            EntryType.ASSIGNMENT_DELAYED,
            f"the first target waits for more members ({INITIAL_DELAY})",
            deadline_ms=group.initial_deadline_ms,
        )
