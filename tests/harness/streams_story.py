"""Streams groups, and answers about them, as text."""

import re
from collections.abc import Iterable

from msgspec import UNSET

from kafka_why.contract.kafka.responses import AnyResponse
from kafka_why.contract.kafka.streams_responses import (
    EndpointToPartitions,
    StreamsAssignment,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatResponse,
    StreamsGroupMemberDescription,
    SubtopologyDescription,
    TaskIds,
)
from state.kafka.streams_group import (
    NO_TASKS,
    RoleTasks,
    StreamsGroup,
    StreamsGroupMember,
    Task,
    by_subtopology,
)
from tests.harness.consumer_story import is_usual
from tests.harness.options import time_text

_BRACKETS = re.compile(r"(\w*)\[([^\]]*)\]")


def _by_id(tasks: dict[str, list[int]]) -> str:
    """`0,1 1:2`."""
    return " ".join(
        ("" if id_ == "0" else f"{id_}:") + ",".join(map(str, numbers))
        for id_, numbers in sorted(tasks.items())
    )


def _ids(tasks: Iterable[TaskIds]) -> str:
    return _by_id({entry.subtopology_id: entry.partitions for entry in tasks})


def text_of(tasks: RoleTasks) -> str:
    """`A[0,1] S[1:2]`, with the active tasks always."""
    lists = {"A": tasks.active, "S": tasks.standby, "W": tasks.warm_up}
    texts = [f"{role}[{_by_id(by_subtopology(of))}]" for role, of in lists.items() if of or role == "A"]
    return " ".join(texts)


def answer(response: StreamsGroupHeartbeatResponse) -> list[str]:
    """Return the tokens of an answer that an expectation has to name: `e3`, `-` or the tasks, `st5`."""
    lists = {"A": response.active_tasks, "S": response.standby_tasks, "W": response.warmup_tasks}
    tasks = [f"{role}[{_ids(of)}]" for role, of in lists.items() if of or (role == "A" and of is not None)]
    return [
        f"e{response.member_epoch}",
        *(tasks or ["-"]),
        *(f"st{one.status_code}" for one in response.status),
    ]


def details(response: StreamsGroupHeartbeatResponse) -> list[str]:
    """Return the tokens of an answer that an expectation may name."""
    found = [f"epE{response.endpoint_information_epoch}"]
    if response.partitions_by_user_endpoint is not None:
        found.append(f"hosts[{'; '.join(map(_endpoint, response.partitions_by_user_endpoint))}]")
    if response.create_topics is not UNSET:
        topics = [f"{topic.name}:{topic.partitions}" for topic in response.create_topics]
        found.append(f"create[{','.join(topics)}]")
    if response.needs_topics is not UNSET:
        found.append(f"needs[{','.join(response.needs_topics)}]")
    return found


def _endpoint(of: EndpointToPartitions) -> str:
    active = [f"{topic.topic} {_runs(topic.partitions)}" for topic in of.active_partitions]
    standby = [f"S {topic.topic} {_runs(topic.partitions)}" for topic in of.standby_partitions]
    return " ".join([of.user_endpoint.host, *active, *standby])


def _runs(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def tokens(text: str) -> list[str]:
    """Return the tokens of an expectation, with ranges of tasks as lists."""
    return re.findall(r"\S*\[[^\]]*\]|\S+", _BRACKETS.sub(_expanded, text))


def _expanded(match: re.Match[str]) -> str:
    if match[1] in ("hosts", "create", "needs"):
        return match[0]
    content = re.sub(r"(\d+)-(\d+)", lambda m: ",".join(map(str, range(int(m[1]), int(m[2]) + 1))), match[2])
    return f"{match[1]}[{content}]"


def check_answer(expected: str, response: StreamsGroupHeartbeatResponse) -> None:
    """Raise AssertionError if the answer is another one."""
    wanted, own, more = tokens(expected), answer(response), details(response)
    assert [token for token in wanted if token not in more] == own, f"expected {wanted}, the answer is {own}"
    may = ("epE", "hosts[", "create[", "needs[")
    wrong = [token for token in wanted if token.startswith(may) and token not in more]
    assert not wrong, f"expected {wrong}, the answer has {more}"


def reply(response: AnyResponse) -> list[str]:
    """Describe an answer. Empty if it is none of a streams group."""
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


def _subtopology(one: SubtopologyDescription) -> str:
    parts = [f"{one.subtopology_id}:", *one.source_topics]
    parts += [f"<{topic.name}:{topic.partitions}" for topic in one.repartition_source_topics]
    parts += [f"+{topic.name}:{topic.partitions}" for topic in one.state_changelog_topics]
    return " ".join([*parts, *(f">{name}" for name in one.repartition_sink_topics)])


def _described(member: StreamsGroupMemberDescription) -> str:
    instance = f"/{member.instance_id}" if member.instance_id is not None else ""
    parts = [
        f"{member.member_id}{instance} e{member.member_epoch} process={member.process_id}",
        f"rack={member.rack_id}" if member.rack_id else "",
        f"host={member.user_endpoint}" if member.user_endpoint else "",
        f"topology={member.topology_epoch}",
        f"has {_assignment(member.assignment)} target {_assignment(member.target_assignment)}",
        *(f"tag={tag.key}:{tag.value}" for tag in member.client_tags),
        *(f"offset={one.subtopology_id}_{one.partition}:{one.offset}" for one in member.task_offsets),
        *(f"end={one.subtopology_id}_{one.partition}:{one.offset}" for one in member.task_end_offsets),
    ]
    return " ".join(filter(None, parts))


def _assignment(of: StreamsAssignment) -> str:
    lists = {"A": of.active_tasks, "S": of.standby_tasks, "W": of.warmup_tasks}
    return " ".join(f"{role}[{_ids(tasks)}]" for role, tasks in lists.items() if tasks or role == "A")


def describe(group: StreamsGroup) -> list[str]:
    """Describe the group: its epochs, its topology, its members and its timers."""
    lines = [
        f"streams group {group.group_id}: {group.state}, group epoch {group.group_epoch}, "
        f"assignment epoch {group.assignment_epoch}, topology valid at {group.validated_topology_epoch}"
    ]
    lines += [f"  {_member(group, member)}" for member in group.members.values()]
    if group.topics:
        known = [f"{name}={topic.partitions if topic else 'none'}" for name, topic in group.topics.items()]
        lines.append(f"  topics {' '.join(known)}")
    if group.initial_deadline_ms is not None:
        lines.append(f"  initial delay until {time_text(group.initial_deadline_ms)}")
    if group.shutdown_requested_by:
        lines.append(f"  shutdown requested by {group.shutdown_requested_by}")
    if group.configs:
        lines.append(f"  configs {' '.join(f'{name}={value}' for name, value in group.configs.items())}")
    return lines


def _member(group: StreamsGroup, member: StreamsGroupMember) -> str:
    parts = [f"{member.member_id} e{member.member_epoch} p{member.previous_epoch} {member.state.value}"]
    parts.append(f"assigned {text_of(member.assigned)}")
    if member.pending:
        parts.append(f"pending {text_of(member.pending)}")
    parts.append(f"target {text_of(group.target.get(member.member_id, NO_TASKS))}")
    parts += [f"{kind} until {at}" for kind, at in _deadlines(member).items() if at != "none"]
    return ", ".join(parts)


def _deadlines(member: StreamsGroupMember) -> dict[str, str]:
    at_ms = {"session": member.session_deadline_ms, "rebalance": member.rebalance_deadline_ms}
    return {kind: "none" if at is None else time_text(at) for kind, at in at_ms.items()}


def of_group(group: StreamsGroup) -> set[str]:
    """Return what is expected of a group."""
    delay_ms = group.initial_deadline_ms
    return {
        "streams",
        str(group.state),
        f"gE{group.group_epoch}",
        f"aE{group.assignment_epoch}",
        f"vT{group.validated_topology_epoch}",
        f"epE{group.endpoint_epoch}",
        f"initial@{'none' if delay_ms is None else time_text(delay_ms)}",
        f"hash0={'no' if group.metadata_hash else 'yes'}",
        f"active={sum(len(tasks.active) for tasks in group.target.values())}",
    }


def of_member(group: StreamsGroup, member: StreamsGroupMember) -> set[str]:
    """Return what is expected of a member: `A[0,1]` what it has, `pendA[2]`, `targetS[1]`, `epochs[0@2]`."""
    epochs = " ".join(f"{_task(task)}@{epoch}" for task, epoch in member.assignment_epochs.items())
    target = group.target.get(member.member_id, NO_TASKS)
    sets = {"": member.assigned, "pend": member.pending, "target": target}
    return {
        "streams",
        f"e{member.member_epoch}",
        f"p{member.previous_epoch}",
        member.state.name.removesuffix("_PARTITIONS"),
        f"epochs[{epochs}]",
        *(
            f"{what}{role}[{_by_id(by_subtopology(of))}]"
            for what, tasks in sets.items()
            for role, of in (("A", tasks.active), ("S", tasks.standby), ("W", tasks.warm_up))
        ),
        *(f"{kind}@{at}" for kind, at in _deadlines(member).items()),
    }


def _task(task: Task) -> str:
    return str(task[1]) if task[0] == "0" else f"{task[0]}_{task[1]}"


def check(expected: str, found: set[str]) -> None:
    """Raise AssertionError if something else is found."""
    wrong = [token for token in tokens(expected) if token not in found]
    assert not wrong, f"expected {' '.join(wrong)}, found {' '.join(sorted(found))}"
