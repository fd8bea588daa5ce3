"""Refusals of a StreamsGroupHeartbeat before its group is read. Rows KSH1, KSH3, KSH4, KSH7 to KSH14, KSB14.

Source: KafkaApis.handleStreamsGroupHeartbeat, GroupCoordinatorService
(throwIfStreamsGroupHeartbeatRequestIsInvalid).
"""

from collections.abc import Collection, Iterable, Sized

from kafka_why.contract.kafka.history import LEAVE_GROUP_STATIC_MEMBER_EPOCH
from kafka_why.contract.kafka.snapshot import listed
from kafka_why.contract.kafka.streams_responses import (
    StreamsGroupHeartbeat,
    StreamsTopology,
    Subtopology,
    TaskIds,
    TaskOffset,
)
from kafka_why.contract.layout import KAFKAS_INTERNAL_TOPICS, is_topic_name
from kafka_why.contract.messages import ErrorCode
from state.kafka.context import RuleId, StepContext
from state.kafka.modern import RequestRefused, is_blank
from state.kafka.streams_group import RoleTasks, Task
from state.kafka.streams_topics import malformed_topology, named_topics

# The group's view and its answers name every subtopology, and each request of its members handles them all.
SUBTOPOLOGIES_MAX = 1_000
SUBTOPOLOGY_ID_MAX = 249  # characters, as of a topic's name
ENTRIES_MAX = 20_000  # topics and copartitioned topics of all subtopologies
# While topics are missing, each answer has the configs of those to create.
CONFIGS_MAX = 10_000
CONFIGS_MAX_BYTES = 512 * 1024


def check_request(context: StepContext, request: StreamsGroupHeartbeat) -> None:
    """Raise RequestRefused if the request is malformed."""
    if not context.config.streams_protocol:
        message = "The streams group protocol is switched off (group.coordinator.rebalance.protocols)."
        raise RequestRefused(context.rule("KSH1"), ErrorCode.UNSUPPORTED_VERSION, message)
    topology = request.topology
    fault = None if topology is None else _fault_of_names(context, topology)
    error = ErrorCode.STREAMS_INVALID_TOPOLOGY
    if fault is None:
        fault, error = _fault(context, request), ErrorCode.INVALID_REQUEST
    if fault is None and topology is not None and request.member_epoch == 0:
        fault, error = _fault_of_changelogs(context, topology), ErrorCode.STREAMS_INVALID_TOPOLOGY
    if fault is None:
        fault, error = _fault_of_rest(context, request), ErrorCode.INVALID_REQUEST
    if fault is not None:
        row, message = fault
        raise RequestRefused(row, error, message)


def _fault_of_names(context: StepContext, topology: StreamsTopology) -> tuple[RuleId, str] | None:
    """Rows KSH3 and KSH4: return why the topics of the topology cannot be used, None if they can."""
    names = sorted(set().union(*map(named_topics, topology.subtopologies)))
    internal = [name for name in names if name in KAFKAS_INTERNAL_TOPICS]
    if internal:
        return context.rule(
            "KSH3"
        ), f"The topology has internal topics of Kafka: {listed(internal, 'topic')}."
    illegal = [name for name in names if not is_topic_name(name)]
    if illegal:
        return context.rule("KSH4"), f"These names are not legal names of topics: {listed(illegal, 'topic')}."
    return None


def _fault(context: StepContext, request: StreamsGroupHeartbeat) -> tuple[RuleId, str] | None:
    """Return the row that refuses the request as invalid, and the message."""
    for subtopology in request.topology.subtopologies if request.topology is not None else ():
        if subtopology.source_topic_regex:
            return context.rule("KSH7"), "Regular expressions of source topics are not supported."
    if is_blank(request.member_id):
        return context.rule("KSH8"), "MemberId can't be empty."
    if is_blank(request.group_id):
        return context.rule("KSH8"), "GroupId can't be empty."
    if request.instance_id is not None and is_blank(request.instance_id):
        return context.rule("KSH8"), "InstanceId can't be empty."
    if request.rack_id is not None and is_blank(request.rack_id):
        return context.rule("KSH8"), "RackId can't be empty."
    return _fault_of_join(context, request) if request.member_epoch == 0 else None


def _fault_of_join(context: StepContext, request: StreamsGroupHeartbeat) -> tuple[RuleId, str] | None:
    row = "KSH9"
    if request.rebalance_timeout_ms == -1:
        return context.rule(row), "The first request must have RebalanceTimeoutMs."
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            return context.rule(row), f"{name} must be empty in the first request."
    if request.topology is None:
        return context.rule(row), "The first request must have a Topology."
    return None


def _fault_of_changelogs(context: StepContext, topology: StreamsTopology) -> tuple[RuleId, str] | None:
    for subtopology in topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                return context.rule(
                    "KSH10"
                ), f"Changelog topic {topic.name} must not have a number of partitions."
    return None


def _fault_of_rest(context: StepContext, request: StreamsGroupHeartbeat) -> tuple[RuleId, str] | None:
    epoch = request.member_epoch
    if epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH and request.instance_id is None:
        return context.rule("KSH11"), "InstanceId can't be null in a request with the member epoch -2."
    if epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        return context.rule("KSH12"), f"The member epoch {epoch} is invalid: it must be -2 at the least."
    lists = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if len({tasks is None for tasks in lists}) > 1:
        return context.rule(
            "KSH13"
        ), "ActiveTasks, StandbyTasks and WarmupTasks must be all null or all given."
    if epoch != 0 and request.topology is not None:
        return context.rule("KSH14"), "A Topology may only be in the first request."
    excess = None if request.topology is None else _excess(request.topology)
    if excess is not None:
        return context.rule("KSQ14"), excess
    fault = _malformed(request)
    return None if fault is None else (context.rule("KSB14"), fault)


def _excess(topology: StreamsTopology) -> str | None:
    """Return the limit that the topology exceeds, or None."""
    number = len(topology.subtopologies)
    if number > SUBTOPOLOGIES_MAX:
        return f"The topology has {number} subtopologies. The maximum is {SUBTOPOLOGIES_MAX}."
    longest = max((len(one.subtopology_id) for one in topology.subtopologies), default=0)
    if longest > SUBTOPOLOGY_ID_MAX:
        return f"A subtopology id has {longest} characters. The maximum is {SUBTOPOLOGY_ID_MAX}."
    entries = sum(map(_entries, topology.subtopologies))
    if entries > ENTRIES_MAX:
        return f"The lists of the topology have {entries} entries. The maximum is {ENTRIES_MAX}."
    configs = [
        config
        for one in topology.subtopologies
        for topic in (*one.repartition_source_topics, *one.state_changelog_topics)
        for config in topic.topic_configs
    ]
    if len(configs) > CONFIGS_MAX:
        return f"The topology has {len(configs)} topic configs. The maximum is {CONFIGS_MAX}."
    size = sum(len(config.key.encode()) + len(config.value.encode()) for config in configs)
    if size > CONFIGS_MAX_BYTES:
        return f"The topology has topic configs of {size} bytes. The maximum is {CONFIGS_MAX_BYTES}."
    return None


def _entries(subtopology: Subtopology) -> int:
    """Return the number of entries in the lists of the subtopology and of its copartition groups."""
    lists: list[Sized] = [
        subtopology.source_topics,
        subtopology.state_changelog_topics,
        subtopology.repartition_sink_topics,
        subtopology.repartition_source_topics,
        subtopology.copartition_groups,
    ]
    for group in subtopology.copartition_groups:
        lists += [group.source_topics, group.source_topic_regex, group.repartition_source_topics]
    return sum(map(len, lists))


def _malformed(request: StreamsGroupHeartbeat) -> str | None:
    """Return the fault of a request that no client of Kafka sends, None without one. Kafka's coordinator
    raises an error for it.
    """
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if _has_duplicates([entry.subtopology_id for entry in tasks or ()]):
            return f"{name} has a subtopology twice."
    if _has_duplicates([tag.key for tag in request.client_tags or ()]):
        return "ClientTags has a key twice."
    return None if request.topology is None else malformed_topology(request.topology)


def _has_duplicates(values: Collection[object]) -> bool:
    return len(set(values)) < len(values)


def owned_of(request: StreamsGroupHeartbeat) -> RoleTasks | None:
    """Return the tasks that the client reports, or None if it reports none."""
    if request.active_tasks is None:
        return None
    return RoleTasks(
        _flat(request.active_tasks), _flat(request.standby_tasks or ()), _flat(request.warmup_tasks or ())
    )


def _flat(tasks: Iterable[TaskIds]) -> list[Task]:
    return sorted({(entry.subtopology_id, number) for entry in tasks for number in entry.partitions})


def offsets_of(offsets: list[TaskOffset]) -> dict[Task, int]:
    """Return the reported offsets by task. A later one of the same task replaces an earlier one."""
    return {(entry.subtopology_id, entry.partition): entry.offset for entry in offsets}
