"""Changes of a member and of the topology by a heartbeat, and the group epoch. Rows KSH43 to KSH54, KST1 to
KST5.

Everything that can refuse the request is decided first (`plan_topology`, `check_tasks`), so that a refused
request changes nothing. Source: GroupMetadataManager (streamsGroupHeartbeat, maybeUpdateTopology),
StreamsGroup.computeMetadataHash.
"""

from collections.abc import Mapping
from itertools import islice

from msgspec import Struct

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat, StreamsTopology
from kafka_why.contract.messages import ErrorCode
from state.kafka.context import StepContext
from state.kafka.group import Topics, reported
from state.kafka.modern import RequestRefused, add_reported, bump, refresh_fingerprint
from state.kafka.streams.members import StreamsSender, displaced_by, removal
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

# The maximum of offsets that the members of a group have reported and the group stores: two for each of the
# most tasks. Later ones are not stored.
OFFSETS_MAX = 2 * TASKS_MAX


class Plan(Struct, frozen=True):
    """The topology of the group after the request, the topics `found` that the request reports and that the
    group does not know, and the topology with its numbers of partitions and tasks, or why it is not ready.
    """

    topology: StreamsTopology
    found: Topics
    configured: ConfiguredTopology | TopologyProblem


def plan_topology(context: StepContext, group: StreamsGroup, request: StreamsGroupHeartbeat) -> Plan:
    """Return what the request makes of the group's topology. Raise RequestRefused if the group cannot have
    the topology of the request.
    """
    topology = _topology(context, group, request)
    required = group.required if topology is group.topology else required_topics(topology)
    images = {name: image for name, image in (request.topics or {}).items() if name in required}
    found = reported(group.topics, images, group.deleted_topic_ids)
    try:
        if topology is group.topology and not found and group.configured is not None:
            configured = group.configured
        else:
            configured = configure(topology, {**group.topics, **found})
    except InvalidTopologyError as error:
        raise RequestRefused(
            context.rule("KST15"), ErrorCode.STREAMS_INVALID_TOPOLOGY, str(error), _refusal_of(request)
        ) from None
    if isinstance(configured, TopologyProblem) and configured.is_too_large and topology is not group.topology:
        row, error_code = context.rule("KSQ14"), ErrorCode.INVALID_REQUEST
        raise RequestRefused(row, error_code, configured.detail, _refusal_of(request))
    return Plan(topology, found, configured)


def _refusal_of(request: StreamsGroupHeartbeat) -> EntryType | None:
    return EntryType.JOIN_REFUSED if request.member_epoch == 0 else None


def _topology(context: StepContext, group: StreamsGroup, request: StreamsGroupHeartbeat) -> StreamsTopology:
    """Rows KST1 to KST3: return the group's topology after the request."""
    known, sent = group.topology, request.topology
    if sent is None:
        assert known is not None, "a group with members has a topology"
        return known
    if known is None:
        return sent
    if known.epoch > sent.epoch:
        context.rule("KST2")
        return known
    other = difference(known, sent)
    if other is None:
        return known
    if group.is_empty and context.config.streams_topology_replace_when_empty:
        context.rule("KSB6")
        return sent
    message = f"Topology updates are not supported: {other}."
    raise RequestRefused(context.rule("KST3"), ErrorCode.INVALID_REQUEST, message, EntryType.JOIN_REFUSED)


def check_tasks(
    context: StepContext, request: StreamsGroupHeartbeat, plan: Plan, owned: RoleTasks | None
) -> None:
    """Raise RequestRefused if the request reports a task that does not exist, or an offset twice."""
    if owned is not None and isinstance(plan.configured, ConfiguredTopology):
        tasks = plan.configured.tasks
        for role in Role:
            for subtopology, number in owned.of(role):
                if subtopology not in tasks or not 0 <= number < tasks[subtopology].count:
                    message = f"Task {subtopology}_{number} does not exist in the topology of the group."
                    raise RequestRefused(context.rule("KSH48"), ErrorCode.INVALID_REQUEST, message)
    for offsets in (request.task_offsets, request.task_end_offsets):
        if offsets is not None and len(offsets_of(offsets)) < len(offsets):
            message = "TaskOffsets and TaskEndOffsets must have a task at most once."
            raise RequestRefused(context.rule("KSH49"), ErrorCode.INVALID_REQUEST, message)


def update(
    context: StepContext,
    group: StreamsGroup,
    member: StreamsGroupMember,
    request: StreamsGroupHeartbeat,
    sender: StreamsSender,
    plan: Plan,
) -> None:
    """Update the member and the group, and raise the group epoch at most once if the group needs a new
    target.
    """
    is_new = sender.member is None and sender.replaced is None
    changed = _set_fields(group, member, request)
    if request.instance_id is not None:
        changed = [what for what in changed if what in _BUMPS_FOR_STATIC]
    reasons: list[tuple[str, str]] = []
    if sender.replaced is not None and sender.displaced is not None:
        reasons.append(("KSH42", removal(sender.displaced, displaced_by(sender.replaced))))
    if is_new:
        reasons.append(("KSH44", f"member {member.member_id} joined"))
    elif changed:
        reasons.append(("KSH44", f"member {member.member_id} changed {' and '.join(changed)}"))
    _set_topology(context, group, plan)
    about_topics = _validate(group, plan)
    if group.metadata_stale and refresh_fingerprint(group):
        about_topics.insert(0, "the topics of the topology have changed")
    if about_topics:
        _forget_offsets(group, plan)
    _note_offsets(group, member, request, plan)
    reasons += [("KSH47", text) for text in about_topics]
    reasons += [("KSH51", text) for text in _set_configs(context, group)]
    if reasons:
        row = context.rule(reasons[0][0])
        about = {"member_id": member.member_id} if row == "KSH44" else {}
        bump(context, row, "; ".join(text for _, text in reasons), **about)


_FIELDS = {
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
_BUMPS_FOR_STATIC = ("its topology epoch", "its rack", "its process", "its tags")


def _set_fields(group: StreamsGroup, member: StreamsGroupMember, request: StreamsGroupHeartbeat) -> list[str]:
    """Row KSH43: set the fields of the member, and return those that have changed."""
    before = {name: getattr(member, name) for name in _FIELDS}
    member.client_id, member.client_host = request.client_id, request.client_host
    if request.instance_id is not None and request.instance_id != member.instance_id:
        if member.instance_id is not None:
            del group.static_members[member.instance_id]
        group.static_members[request.instance_id] = member.member_id
        member.instance_id = request.instance_id
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
    return [words for name, words in _FIELDS.items() if getattr(member, name) != before[name]]


def _set_topology(context: StepContext, group: StreamsGroup, plan: Plan) -> None:
    """Store the topology and the topics of the plan."""
    if plan.topology is not group.topology:
        group.set_topology(plan.topology)
        group.metadata_stale, group.validated_topology_epoch = True, -1
        context.retention_is_stale = True
        read = [
            f"{one.subtopology_id} reads {', '.join(source_topics(one)) or 'no topic'}"
            for one in sorted(plan.topology.subtopologies, key=lambda one: one.subtopology_id)
        ]
        context.record(
            context.rule("KST1"),
            EntryType.TOPOLOGY_CHANGED,
            f"the topology of epoch {plan.topology.epoch}: subtopology {'; '.join(read) or 'none'}",
            topics=sorted(group.readers),
        )
    if plan.found:
        add_reported(context, group, plan.found)
        group.forget_configured()


def _forget_offsets(group: StreamsGroup, plan: Plan) -> None:
    """Forget the offsets of tasks that do not exist."""
    counts = _task_counts(plan)
    for member in group.members.values():
        member.task_offsets = _of_tasks(member.task_offsets, counts)
        member.task_end_offsets = _of_tasks(member.task_end_offsets, counts)


def _note_offsets(
    group: StreamsGroup, member: StreamsGroupMember, request: StreamsGroupHeartbeat, plan: Plan
) -> None:
    """Store the offsets that the request reports, of tasks of the topology, up to `OFFSETS_MAX` in the group.
    Each of the two fields replaces its former value.
    """
    if request.task_offsets is None and request.task_end_offsets is None:
        return
    counts = _task_counts(plan)
    if request.task_offsets is not None:
        member.task_offsets = {}
        found = _of_tasks(offsets_of(request.task_offsets), counts)
        member.task_offsets = _first(found, OFFSETS_MAX - _stored_offsets(group))
    if request.task_end_offsets is not None:
        member.task_end_offsets = {}
        found = _of_tasks(offsets_of(request.task_end_offsets), counts)
        member.task_end_offsets = _first(found, OFFSETS_MAX - _stored_offsets(group))


def _stored_offsets(group: StreamsGroup) -> int:
    return sum(len(one.task_offsets) + len(one.task_end_offsets) for one in group.members.values())


def _first(offsets: dict[Task, int], most: int) -> dict[Task, int]:
    return offsets if len(offsets) <= most else dict(islice(offsets.items(), max(most, 0)))


def _task_counts(plan: Plan) -> dict[str, int]:
    """Return the number of tasks by subtopology. While it is not known, it is the maximum."""
    if isinstance(plan.configured, ConfiguredTopology):
        return {id_: tasks.count for id_, tasks in plan.configured.tasks.items()}
    return {one.subtopology_id: TASKS_MAX for one in plan.topology.subtopologies}


def _of_tasks(offsets: Mapping[Task, int], counts: Mapping[str, int]) -> dict[Task, int]:
    """Return the offsets of tasks that exist, sorted."""
    return {task: offset for task, offset in sorted(offsets.items()) if 0 <= task[1] < counts.get(task[0], 0)}


def _validate(group: StreamsGroup, plan: Plan) -> list[str]:
    """Row KSH50: note at which topology epoch the topics are right. Return a reason for a new epoch if this
    has changed.
    """
    problem = plan.configured if isinstance(plan.configured, TopologyProblem) else None
    before, epoch = group.validated_topology_epoch, -1 if problem is not None else plan.topology.epoch
    group.validated_topology_epoch = epoch
    if before == epoch:
        return []
    if problem is not None:
        return [f"the topology is not ready: {problem.detail}"]
    return [f"all topics of topology epoch {epoch} exist and are valid"]


def _set_configs(context: StepContext, group: StreamsGroup) -> list[str]:
    """Row KSH51: store the settings of the assignment, and return what has changed of them."""
    before, now = group.assignment_configs, assignment_configs(group.configs, context.config)
    group.assignment_configs = now
    return [
        f"{name} changed from {before.get(name, 'none')} to {now.get(name, 'none')}"
        for name in sorted({*before, *now})
        if before and before.get(name) != now.get(name)
    ]


def maybe_arm_initial_delay(context: StepContext, group: StreamsGroup) -> None:
    """Row KSH54: wait for more members before the first target of a group that had none."""
    delay_ms = value_of(INITIAL_DELAY, group.configs, context.config)
    if delay_ms > 0 and group.initial_deadline_ms is None:
        group.initial_deadline_ms = context.deadline(delay_ms)
        context.record(
            context.rule("KSH54"),
            EntryType.ASSIGNMENT_DELAYED,
            f"the first target waits for more members ({INITIAL_DELAY})",
            deadline_ms=group.initial_deadline_ms,
        )
