"""Refusals of a StreamsGroupHeartbeat before its group is read. Rows KSH1, KSH3, KSH4, KSH7 to KSH14, KSB14.

Source: KafkaApis.handleStreamsGroupHeartbeat, GroupCoordinatorService
(throwIfStreamsGroupHeartbeatRequestIsInvalid).

A row, such as KSH1, is a rule of docs/rules-streams.md. `context.cite` records that a row was applied.
"""

from collections.abc import Collection, Iterable, Sized

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
from state.kafka.context import StepContext
from state.kafka.modern import RequestRefused, check_not_blank, malformed
from state.kafka.modern_members import check_leave_epoch
from state.kafka.streams_group import RoleTasks, Task
from state.kafka.streams_topics import malformed_topology, named_topics

# The group's view and its answers name every subtopology, and each request of its members handles them all.
SUBTOPOLOGIES_MAX = 1_000
SUBTOPOLOGY_ID_MAX = 249  # characters, as of a topic's name
ENTRIES_MAX = 20_000  # topics and copartitioned topics of all subtopologies
# While topics are missing, each answer has the configs of those to create.
CONFIGS_MAX = 10_000
CONFIGS_MAX_BYTES = 512 * 1024
_INVALID_TOPOLOGY = ErrorCode.STREAMS_INVALID_TOPOLOGY


def check_request(context: StepContext, request: StreamsGroupHeartbeat) -> None:
    """Raise RequestRefused if the request is malformed. The checks are in the order of their rows."""
    if not context.config.streams_protocol:
        message = "The streams group protocol is switched off (group.coordinator.rebalance.protocols)."
        raise RequestRefused(context.cite("KSH1"), ErrorCode.UNSUPPORTED_VERSION, message)
    topology = request.topology
    if topology is not None:
        _check_names(context, topology)
    _check_fields(context, request)
    if topology is not None and request.member_epoch == 0:
        _check_changelogs(context, topology)
    _check_rest(context, request)


def _check_names(context: StepContext, topology: StreamsTopology) -> None:
    """Rows KSH3 and KSH4: raise RequestRefused if the topics of the topology cannot be used."""
    names, error = sorted(set().union(*map(named_topics, topology.subtopologies))), _INVALID_TOPOLOGY
    if internal := [name for name in names if name in KAFKAS_INTERNAL_TOPICS]:
        message = f"The topology has internal topics of Kafka: {listed(internal, 'topic')}."
        raise malformed(context, "KSH3", message, error)
    if illegal := [name for name in names if not is_topic_name(name)]:
        message = f"These names are not legal names of topics: {listed(illegal, 'topic')}."
        raise malformed(context, "KSH4", message, error)


def _check_fields(context: StepContext, request: StreamsGroupHeartbeat) -> None:
    """Rows KSH7 to KSH9: raise RequestRefused if a source topic is a pattern, an id or name is blank, or a
    request that joins is incomplete.
    """
    subtopologies = request.topology.subtopologies if request.topology is not None else ()
    if any(subtopology.source_topic_regex for subtopology in subtopologies):
        raise malformed(context, "KSH7", "Regular expressions of source topics are not supported.")
    row = "KSH8"
    check_not_blank(
        context,
        ("MemberId", request.member_id, row),
        ("GroupId", request.group_id, row),
        ("InstanceId", request.instance_id, row),
        ("RackId", request.rack_id, row),
    )
    if request.member_epoch == 0:
        _check_join(context, request)


def _check_join(context: StepContext, request: StreamsGroupHeartbeat) -> None:
    """Row KSH9: raise RequestRefused if a request that joins lacks a field, or reports tasks."""
    row = "KSH9"
    if request.rebalance_timeout_ms == -1:
        raise malformed(context, row, "The first request must have RebalanceTimeoutMs.")
    for name, tasks in _tasks_of(request).items():
        if tasks is None or tasks:
            raise malformed(context, row, f"{name} must be empty in the first request.")
    if request.topology is None:
        raise malformed(context, row, "The first request must have a Topology.")


def _tasks_of(request: StreamsGroupHeartbeat) -> dict[str, list[TaskIds] | None]:
    """Return the tasks that the client reports, by the name of the field."""
    return {
        "ActiveTasks": request.active_tasks,
        "StandbyTasks": request.standby_tasks,
        "WarmupTasks": request.warmup_tasks,
    }


def _check_changelogs(context: StepContext, topology: StreamsTopology) -> None:
    """Row KSH10: raise RequestRefused if a changelog topic has a number of partitions, which follows from the
    number of tasks.
    """
    for subtopology in topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                message = f"Changelog topic {topic.name} must not have a number of partitions."
                raise malformed(context, "KSH10", message, _INVALID_TOPOLOGY)


def _check_rest(context: StepContext, request: StreamsGroupHeartbeat) -> None:
    """Rows KSH11 to KSH14, KSQ14, KSB14: check the epoch, the tasks and the size of the topology."""
    check_leave_epoch(context, request, no_instance="KSH11", too_low="KSH12")
    is_missing = [tasks is None for tasks in _tasks_of(request).values()]
    if any(is_missing) and not all(is_missing):
        message = "ActiveTasks, StandbyTasks and WarmupTasks must be all null or all given."
        raise malformed(context, "KSH13", message)
    topology = request.topology
    if request.member_epoch != 0 and topology is not None:
        raise malformed(context, "KSH14", "A Topology may only be in the first request.")
    if topology is not None and (excess := _excess(topology)) is not None:
        raise malformed(context, "KSQ14", excess)
    if (fault := _fault_of(request)) is not None:
        raise malformed(context, "KSB14", fault)


def _excess(topology: StreamsTopology) -> str | None:
    """Return the limit that the topology exceeds, or None."""
    number = len(topology.subtopologies)
    if number > SUBTOPOLOGIES_MAX:
        return f"The topology has {number} subtopologies. The maximum is {SUBTOPOLOGIES_MAX}."
    longest = max((len(subtopology.subtopology_id) for subtopology in topology.subtopologies), default=0)
    if longest > SUBTOPOLOGY_ID_MAX:
        return f"A subtopology id has {longest} characters. The maximum is {SUBTOPOLOGY_ID_MAX}."
    entries = sum(map(_entry_count, topology.subtopologies))
    if entries > ENTRIES_MAX:
        return f"The lists of the topology have {entries} entries. The maximum is {ENTRIES_MAX}."
    configs = [
        config
        for subtopology in topology.subtopologies
        for topic in (*subtopology.repartition_source_topics, *subtopology.state_changelog_topics)
        for config in topic.topic_configs
    ]
    if len(configs) > CONFIGS_MAX:
        return f"The topology has {len(configs)} topic configs. The maximum is {CONFIGS_MAX}."
    size = sum(len(config.key.encode()) + len(config.value.encode()) for config in configs)
    if size > CONFIGS_MAX_BYTES:
        return f"The topology has topic configs of {size} bytes. The maximum is {CONFIGS_MAX_BYTES}."
    return None


def _entry_count(subtopology: Subtopology) -> int:
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


def _fault_of(request: StreamsGroupHeartbeat) -> str | None:
    """Return the fault of a malformed request, or None. No client of Kafka sends such a request, and Kafka
    answers it with UNKNOWN_SERVER_ERROR.
    """
    for name, tasks in _tasks_of(request).items():
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
        _sorted_tasks(request.active_tasks),
        _sorted_tasks(request.standby_tasks or ()),
        _sorted_tasks(request.warmup_tasks or ()),
    )


def _sorted_tasks(tasks: Iterable[TaskIds]) -> list[Task]:
    return sorted({(entry.subtopology_id, number) for entry in tasks for number in entry.partitions})


def offsets_of(offsets: list[TaskOffset]) -> dict[Task, int]:
    """Return the reported offsets by task. If a task is named twice, its last offset counts."""
    return {(entry.subtopology_id, entry.partition): entry.offset for entry in offsets}
