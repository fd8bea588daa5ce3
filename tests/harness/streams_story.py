"""Formats streams groups, and answers about them, as text."""

import re

from msgspec import UNSET

from kafka_why.contract.kafka.responses import AnyResponse
from kafka_why.contract.kafka.streams_responses import (
    EndpointToPartitions,
    StreamsAssignment,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatResponse,
    StreamsGroupMemberDescription,
    SubtopologyDescription,
)
from state.kafka.streams_group import (
    NO_TASKS,
    StreamsGroup,
    StreamsGroupMember,
    Task,
    by_subtopology,
)
from tests.harness.consumer_story import is_usual, who
from tests.harness.options import time_text
from tests.harness.partition_text import format_numbers


def _by_id(tasks: dict[str, list[int]]) -> str:
    """Return tasks as `0-2 1:2`."""
    return " ".join(
        ("" if id_ == "0" else f"{id_}:") + format_numbers(numbers) for id_, numbers in sorted(tasks.items())
    )


def _by_role(holder: StreamsGroupHeartbeatResponse | StreamsAssignment) -> list[str]:
    """Return the tasks by role, `A[0-2]`. Of standby and warm-up tasks only if there are some."""
    lists = {"A": holder.active_tasks, "S": holder.standby_tasks, "W": holder.warmup_tasks}
    by_id = {
        role: {entry.subtopology_id: entry.partitions for entry in tasks or ()}
        for role, tasks in lists.items()
    }
    return [f"{role}[{_by_id(tasks)}]" for role, tasks in by_id.items() if tasks or role == "A"]


def answer(response: StreamsGroupHeartbeatResponse) -> list[str]:
    """Return the tokens of an answer that an expectation has to name: `e3`, `-` or the tasks, `st5`."""
    tasks = ["-"] if response.active_tasks is None else _by_role(response)
    return [f"e{response.member_epoch}", *tasks, *(f"st{one.status_code}" for one in response.status)]


def details(response: StreamsGroupHeartbeatResponse) -> list[str]:
    """Return the tokens of an answer that an expectation may name."""
    tokens = [f"epE{response.endpoint_information_epoch}"]
    if response.partitions_by_user_endpoint is not None:
        tokens.append(f"hosts[{'; '.join(map(_endpoint, response.partitions_by_user_endpoint))}]")
    if response.create_topics is not UNSET:
        topics = [f"{topic.name}:{topic.partitions}" for topic in response.create_topics]
        tokens.append(f"create[{','.join(topics)}]")
    if response.needs_topics is not UNSET:
        tokens.append(f"needs[{','.join(response.needs_topics)}]")
    return tokens


def _endpoint(endpoint: EndpointToPartitions) -> str:
    active = [f"{topic.topic} {format_numbers(topic.partitions)}" for topic in endpoint.active_partitions]
    standby = [f"S {topic.topic} {format_numbers(topic.partitions)}" for topic in endpoint.standby_partitions]
    return " ".join([endpoint.user_endpoint.host, *active, *standby])


def _tokens(expected: str) -> list[str]:
    return re.findall(r"\S*\[[^\]]*\]|\S+", expected)


def check_answer(expected: str, response: StreamsGroupHeartbeatResponse) -> None:
    """Raise AssertionError if the answer is another one."""
    required, optional = answer(response), details(response)
    wanted = [token for token in _tokens(expected) if token not in optional]
    assert wanted == required, f"expected {wanted}, the answer is {required} and has {optional}"


def reply(response: AnyResponse) -> list[str]:
    """Describe an answer of streams groups. Return [] for any other answer."""
    match response:
        case StreamsGroupHeartbeatResponse() | StreamsGroupDescribeResponse() if response.error_code:
            return [f"- {response.error_message}"] if response.error_message else []
        case StreamsGroupHeartbeatResponse() if response.member_epoch < 0:
            return [f"e{response.member_epoch}"]
        case StreamsGroupHeartbeatResponse():
            interval = response.heartbeat_interval_ms
            shown = [*answer(response), *details(response)]
            shown += [] if is_usual(interval) else [f"interval={time_text(interval)}"]
            return shown + [f"({one.status_code.name}: {one.status_detail})" for one in response.status]
        case StreamsGroupDescribeResponse():
            epochs = f"epochs={response.group_epoch}/{response.assignment_epoch}"
            head = [response.group_state, epochs, f"assignor={response.assignor_name}"]
            if response.topology is not None:
                head.append(f"topology={response.topology.epoch}")
                head += [f"\n     {_subtopology(one)}" for one in response.topology.subtopologies]
            return head + [f"\n     {_described(member)}" for member in response.members]
    return []


def _subtopology(subtopology: SubtopologyDescription) -> str:
    parts = [f"{subtopology.subtopology_id}:", *subtopology.source_topics]
    parts += [f"<{topic.name}:{topic.partitions}" for topic in subtopology.repartition_source_topics]
    parts += [f"+{topic.name}:{topic.partitions}" for topic in subtopology.state_changelog_topics]
    return " ".join([*parts, *(f">{name}" for name in subtopology.repartition_sink_topics)])


def _described(member: StreamsGroupMemberDescription) -> str:
    parts = [
        f"{who(member.member_id, member.instance_id)} e{member.member_epoch} process={member.process_id}",
        f"topology={member.topology_epoch}",
        " ".join(["has", *_by_role(member.assignment), "target", *_by_role(member.target_assignment)]),
        *(f"offset={one.subtopology_id}_{one.partition}:{one.offset}" for one in member.task_offsets),
        *(f"end={one.subtopology_id}_{one.partition}:{one.offset}" for one in member.task_end_offsets),
    ]
    return " ".join(parts)


def _at(deadline_ms: int | None) -> str:
    return "none" if deadline_ms is None else time_text(deadline_ms)


def of_group(group: StreamsGroup) -> set[str]:
    """Return what is expected of a group."""
    return {
        str(group.state),
        f"gE{group.group_epoch}",
        f"aE{group.assignment_epoch}",
        f"vT{group.validated_topology_epoch}",
        f"epE{group.endpoint_epoch}",
        f"initial@{_at(group.initial_deadline_ms)}",
    }


def of_member(group: StreamsGroup, member: StreamsGroupMember) -> set[str]:
    """Return what is expected of a member: `A[0,1]` what it has, `pendA[2]`, `targetS[1]`, `epochs[0@2]`."""
    epochs = " ".join(f"{_task(task)}@{epoch}" for task, epoch in member.assignment_epochs.items())
    target = group.target.get(member.member_id, NO_TASKS)
    sets = {"": member.assigned, "pend": member.pending, "target": target}
    return {
        f"e{member.member_epoch}",
        f"p{member.previous_epoch}",
        member.state.name.removesuffix("_PARTITIONS"),
        f"epochs[{epochs}]",
        *(
            f"{name}{role}[{_by_id(by_subtopology(role_tasks))}]"
            for name, tasks in sets.items()
            for role, role_tasks in (("A", tasks.active), ("S", tasks.standby), ("W", tasks.warm_up))
        ),
        f"session@{_at(member.session_deadline_ms)}",
        f"rebalance@{_at(member.rebalance_deadline_ms)}",
    }


def _task(task: Task) -> str:
    return str(task[1]) if task[0] == "0" else f"{task[0]}_{task[1]}"


def check(expected: str, found: set[str]) -> None:
    """Raise AssertionError if a part of `expected` is not in `found`."""
    wrong = [token for token in _tokens(expected) if token not in found]
    assert not wrong, f"expected {' '.join(wrong)}, found {' '.join(sorted(found))}"
