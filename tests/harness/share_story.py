"""Formats share groups, and answers about them, as text."""

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
    """Describe an answer of share groups. Return [] for any other answer."""
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
            return [f"{t.topic_name} {partition_text.format_numbers(t.partitions)}" for t in response.topics]
        case AlterShareGroupOffsetsResponse():
            return [_altered(topic) for topic in response.responses]
        case DeleteShareGroupOffsetsResponse():
            return [f"{t.topic_name}:{outcome(t)}" for t in response.responses]
    return []


def _altered(topic: AlteredShareTopic) -> str:
    return " ".join(f"{topic.topic_name}-{one.partition}:{outcome(one)}" for one in topic.partitions)


def outcome(result: AlteredSharePartition | DeletedShareTopic) -> str:
    """Return the error, with its text."""
    return result.error_code.name + (f"({result.error_message})" if result.error_message else "")


def _described(member: ShareGroupMemberDescription, labels: Labels) -> str:
    parts = [
        f"{member.member_id} e{member.member_epoch} names[{','.join(member.subscribed_topic_names)}]",
        f"rack={member.rack_id}" if member.rack_id else "",
        f"has {assigned_text(member.assignment, labels)}",
    ]
    return " ".join(filter(None, parts))


def task_texts(task: ShareTask) -> list[str]:
    """`foo(0,1@2/-1)`: the partitions, the state epoch and the start offset; `foo(0,1)` to delete."""
    return [
        f"{topic.topic_name}({partition_text.format_numbers(topic.partitions)}"
        + (f"@{topic.state_epoch}/{topic.start_offset})" if task.kind == "initialize" else ")")
        for topic in task.topics
    ]


def session(member: ShareMember) -> str:
    """Return the end of the session."""
    at_ms = member.session_deadline_ms
    return "none" if at_ms is None else time_text(at_ms)


def of_group(group: ShareGroup) -> set[str]:
    """Return what is expected of a group: tasks, partitions, and `topics=foo,bar`, those that it knows."""
    epochs = {f"gE{group.group_epoch}", f"aE{group.assignment_epoch}"}
    tasks = {
        f"{'INIT' if task.kind == 'initialize' else 'DELETE'}:{text}"
        for task in open_tasks(group)
        for text in task_texts(task)
    }
    parts = {
        "ing": {topic.name: list(topic.partitions) for topic in group.initializing.values()},
        "ed": {topic.name: topic.partitions for topic in group.initialized.values()},
        "del": {topic.name: list(topic.partitions) for topic in group.deleting.values()},
    }
    partitions = {f"{name}[{partition_text.text_of(topics)}]" for name, topics in parts.items()}
    idle = set() if tasks else {"idle"}
    topics = f"topics={','.join(sorted(group.topics))}"
    return {"share", str(group.state), *epochs, *tasks, *partitions, *idle, topics}


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
