"""Share groups, and answers about them, as text."""

from kafka_why.contract.kafka.responses import (
    AlteredSharePartition,
    AlteredShareTopic,
    AlterShareGroupOffsetsResponse,
    AnyResponse,
    DeletedShareTopic,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatResponse,
    ShareGroupMemberDescription,
)
from kafka_why.contract.kafka.snapshot import ShareTask
from state.kafka.share.protocol import open_tasks
from state.kafka.share_group import ShareGroup, ShareMember
from tests.harness import partition_text
from tests.harness.consumer_story import Labels, assigned_text, by_label, epoch_and_assignment, is_usual
from tests.harness.options import time_text


def reply(response: AnyResponse, labels: Labels) -> list[str]:
    """Describe an answer. Empty if it is none of a share group."""
    match response:
        case (
            ShareGroupHeartbeatResponse()
            | ShareGroupDescribeResponse()
            | AlterShareGroupOffsetsResponse()
            | DeleteShareGroupOffsetsResponse()
        ) if response.error_code:
            return [f"- {response.error_message}"] if response.error_message else []
        case ShareGroupHeartbeatResponse():
            shown = [epoch_and_assignment(response, labels)]
            if is_usual(response.heartbeat_interval_ms) or response.member_epoch < 0:
                return shown
            return [*shown, f"interval={time_text(response.heartbeat_interval_ms)}"]
        case ShareGroupDescribeResponse():
            epochs = f"epochs={response.group_epoch}/{response.assignment_epoch}"
            head = [response.group_state, epochs, f"assignor={response.assignor_name}"]
            return head + [f"\n     {_described(member, labels)}" for member in response.members]
        case DescribeShareGroupOffsetsResponse():
            return [f"{t.topic_name} {partition_text.runs(t.partitions)}" for t in response.topics]
        case AlterShareGroupOffsetsResponse():
            return [_altered(topic) for topic in response.responses]
        case DeleteShareGroupOffsetsResponse():
            return [f"{t.topic_name}:{outcome(t)}" for t in response.responses]
    return []


def _altered(topic: AlteredShareTopic) -> str:
    return " ".join(f"{topic.topic_name}-{one.partition}:{outcome(one)}" for one in topic.partitions)


def outcome(of: AlteredSharePartition | DeletedShareTopic) -> str:
    """Return the error, with its text."""
    return of.error_code.name + (f"({of.error_message})" if of.error_message else "")


def _described(member: ShareGroupMemberDescription, labels: Labels) -> str:
    parts = [
        f"{member.member_id} e{member.member_epoch} names[{','.join(member.subscribed_topic_names)}]",
        f"rack={member.rack_id}" if member.rack_id else "",
        f"has {assigned_text(member.assignment, labels)}",
    ]
    return " ".join(filter(None, parts))


def describe(group: ShareGroup, labels: Labels) -> list[str]:
    """Describe the group: its epochs, its members, and how far its partitions are."""
    lines = [
        f"share group {group.group_id}: {group.state}, group epoch {group.group_epoch}, "
        f"assignment epoch {group.assignment_epoch}"
    ]
    lines += [f"  {_member(group, member, labels)}" for member in group.members.values()]
    if group.topics:
        known = [f"{name}={topic.partitions if topic else 'none'}" for name, topic in group.topics.items()]
        lines.append(f"  topics {' '.join(known)}")
    for what in ("initializing", "initialized", "deleting"):
        if topics := getattr(group, what):
            partitions = {topic_id: topic.partitions for topic_id, topic in topics.items()}
            lines.append(f"  {what} {by_label(partitions, labels)}")
    lines += [f"  {_task(task)}" for task in open_tasks(group)]
    if group.parked:
        lines.append(f"  {len(group.parked)} waiting")
    if group.configs:
        lines.append(f"  configs {' '.join(f'{name}={value}' for name, value in group.configs.items())}")
    return lines


def _task(task: ShareTask) -> str:
    return f"task {task.task}: {task.kind} {'; '.join(task_texts(task))} since {time_text(task.asked_at_ms)}"


def task_texts(task: ShareTask) -> list[str]:
    """`foo(0,1@2/-1)`: the partitions, the state epoch and the start offset; `foo(0,1)` to delete."""
    return [
        f"{topic.topic_name}({partition_text.runs(topic.partitions)}"
        + (f"@{topic.state_epoch}/{topic.start_offset})" if task.kind == "initialize" else ")")
        for topic in task.topics
    ]


def _member(group: ShareGroup, member: ShareMember, labels: Labels) -> str:
    parts = [f"{member.member_id} e{member.member_epoch}", f"assigned {by_label(member.assigned, labels)}"]
    parts.append(f"target {by_label(group.target.get(member.member_id, {}), labels)}")
    parts.append(f"session until {session(member)}")
    return ", ".join(parts)


def session(member: ShareMember) -> str:
    """Return the end of the session."""
    at_ms = member.session_deadline_ms
    return "none" if at_ms is None else time_text(at_ms)


def of_group(group: ShareGroup) -> set[str]:
    """Return what is expected of a group: `INIT` and `DELETE` tasks, `ing`, `ed` and `del` partitions."""
    epochs = {f"gE{group.group_epoch}", f"aE{group.assignment_epoch}"}
    asked = {
        f"{'INIT' if task.kind == 'initialize' else 'DELETE'}:{text}"
        for task in open_tasks(group)
        for text in task_texts(task)
    }
    parts = {
        "ing": {topic.name: list(topic.partitions) for topic in group.initializing.values()},
        "ed": {topic.name: topic.partitions for topic in group.initialized.values()},
        "del": {topic.name: list(topic.partitions) for topic in group.deleting.values()},
    }
    named = {f"{what}[{partition_text.text_of(topics)}]" for what, topics in parts.items()}
    none = set() if asked else {"idle"}
    return {"share", str(group.state), *epochs, *asked, *named, *none}


def of_member(group: ShareGroup, member: ShareMember, labels: Labels) -> set[str]:
    """Return what is expected of a member."""
    target = group.target.get(member.member_id, {})
    return {
        "share",
        f"e{member.member_epoch}",
        f"p{member.previous_epoch}",
        by_label(member.assigned, labels),
        f"target{by_label(target, labels)}",
        f"session@{session(member)}",
    }
