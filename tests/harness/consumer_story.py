"""Formats groups and answers of the consumer protocol as text."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from msgspec import UNSET

from kafka_why.contract.kafka.history import HistoryEntry, TaskState
from kafka_why.contract.kafka.responses import (
    AlterGroupConfigsResponse,
    AnyResponse,
    AssignedTopicPartitions,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupMemberDescription,
    DescribeGroupConfigsResponse,
    ShareGroupHeartbeatResponse,
)
from state.kafka.consumer_group import CheckedRegex, ConsumerGroup, ConsumerMember
from tests.harness import partition_text
from tests.harness.options import time_text

_DEFAULT_INTERVAL_MS = 5_000

Labels = Mapping[UUID, str]
"""A scenario's names of topics, by topic id."""


def reply(response: AnyResponse, labels: Labels) -> list[str]:
    """Describe an answer of the consumer protocol. Return [] for any other answer."""
    match response:
        case ConsumerGroupHeartbeatResponse() if response.error_code:
            return [f"- {response.error_message}"] if response.error_message else []
        case ConsumerGroupHeartbeatResponse():
            shown = [epoch_and_assignment(response, labels)]
            if not is_usual(response.heartbeat_interval_ms):
                shown.append(f"interval={time_text(response.heartbeat_interval_ms)}")
            return shown + ([] if response.look is UNSET else [f"look={response.look}"])
        case ConsumerGroupDescribeResponse() if response.error_code:
            return [f"- {response.error_message}"]
        case ConsumerGroupDescribeResponse():
            head = [
                response.group_state,
                f"epochs={response.group_epoch}/{response.assignment_epoch}",
                f"assignor={response.assignor_name}",
            ]
            return head + [f"\n     {_described(member, labels)}" for member in response.members]
        case DescribeGroupConfigsResponse():
            # Those of protocols that are not there only if the group has its own.
            configs = [c for c in response.configs if c.name.startswith("consumer.") or not c.is_default]
            own = {c.name: f"{c.value}{'' if c.is_default else ' (own)'}" for c in configs}
            return [f"\n     {name}={value}" for name, value in own.items()]
        case AlterGroupConfigsResponse(error_message=str()):
            return [f"- {response.error_message}"]
    return []


def is_usual(heartbeat_interval_ms: int) -> bool:
    """Return True if the interval is the default."""
    return heartbeat_interval_ms == _DEFAULT_INTERVAL_MS


def epoch_and_assignment(
    response: ConsumerGroupHeartbeatResponse | ShareGroupHeartbeatResponse, labels: Labels
) -> str:
    """Return `e3 [foo 0-2]`, or `e3 -` without an assignment."""
    assignment = "-" if response.assignment is None else assigned_text(response.assignment, labels)
    return f"e{response.member_epoch} {assignment}"


def assigned_text(assigned: list[AssignedTopicPartitions], labels: Labels) -> str:
    """Return the partitions by name where the answer has names."""
    by_name = {a.topic_name or _label(a.topic_id, labels): a.partitions for a in assigned}
    return f"[{partition_text.text_of(by_name)}]"


def _described(member: ConsumerGroupMemberDescription, labels: Labels) -> str:
    parts = [
        who(member.member_id, member.instance_id),
        f"e{member.member_epoch}",
        {0: "classic", 1: "consumer"}[member.member_type],
        f"names[{','.join(member.subscribed_topic_names)}]",
        f"regex={member.subscribed_topic_regex}" if member.subscribed_topic_regex else "",
        f"rack={member.rack_id}" if member.rack_id else "",
        f"has {assigned_text(member.assignment, labels)}",
        f"target {assigned_text(member.target_assignment, labels)}",
    ]
    return " ".join(filter(None, parts))


def who(member_id: str, instance_id: str | None) -> str:
    return member_id if instance_id is None else f"{member_id}({instance_id})"


def details(entry: HistoryEntry) -> dict[str, str | None]:
    """Return what a history entry has of the consumer protocol."""
    if entry.group_type == "classic" and entry.assignment_epoch is None:
        return {}
    targets = entry.targets or {}
    return {
        "epochs": f"{entry.generation}/{entry.assignment_epoch}",
        "member_epoch": None if entry.member_epoch is None else str(entry.member_epoch),
        "member_state": entry.member_state,
        "assignor": entry.assignor_name,
        "assigned": _bracketed(entry.assigned),
        "revoking": _bracketed(entry.revoking),
        "awaiting": _bracketed(entry.awaiting),
        "targets": " ".join(f"{member}:{_bracketed(target)}" for member, target in targets.items()),
        "states": _states(entry.task_states or {}),
        "took": None if entry.took_ms is None else time_text(entry.took_ms),
    }


def _states(states: dict[str, TaskState]) -> str:
    """Return `0_1:standby@50/60-5s`: the role, and the offsets with the time since their report."""
    return " ".join(f"{task}:{state.role or '-'}{_reported(state)}" for task, state in states.items())


def _reported(state: TaskState) -> str:
    if state.offset is None or state.reported_before_ms is None:
        return ""
    return f"@{state.offset}/{state.end_offset}-{time_text(state.reported_before_ms)}"


def _bracketed(partitions: dict[str, list[int]] | None) -> str | None:
    return None if partitions is None else f"[{partition_text.text_of(partitions)}]"


def describe(group: ConsumerGroup, labels: Labels) -> list[str]:
    """Describe the group: its epochs, its members, the topics it knows."""
    lines = [
        f"group {group.group_id}: {group.state}, group epoch {group.group_epoch}, "
        f"assignment epoch {group.assignment_epoch}"
    ]
    lines += [f"  {_member(group, member, labels)}" for member in group.members.values()]
    if group.topics:
        known = [
            f"{name}={topic.partitions if topic else 'none'}" for name, topic in sorted(group.topics.items())
        ]
        lines.append(f"  topics {' '.join(known)}")
    if unknown := group.unknown_topics() + group.unresolved_regexes():
        lines.append(f"  not known yet: {' '.join(unknown)}")
    for pattern, resolved in sorted(group.resolved_regexes.items()):
        lines.append(f"  {pattern} is {' '.join(resolved.topics)} since {time_text(resolved.at_ms)}")
    lines += [f"  {pattern} is {_checked(checked)}" for pattern, checked in group.checked_regexes.items()]
    if group.configs:
        lines.append(f"  configs {' '.join(f'{name}={value}' for name, value in group.configs.items())}")
    return lines


def _checked(checked: CheckedRegex) -> str:
    times = {"looked at": checked.looked_at_ms, "asked for": checked.asked_at_ms}
    parts = [f"{what} {time_text(at_ms)}" for what, at_ms in times.items() if at_ms is not None]
    return ", ".join(["checked", *parts, *(["wanted"] if checked.is_wanted else [])])


def _member(group: ConsumerGroup, member: ConsumerMember, labels: Labels) -> str:
    parts = [f"{who(member.member_id, member.instance_id)} e{member.member_epoch} {member.state}"]
    parts.append(f"assigned {epochs_of(member, labels)}")
    if member.pending_revocation:
        parts.append(f"revoking {by_label(member.pending_revocation, labels)}")
    parts.append(f"target {by_label(group.target.get(member.member_id, {}), labels)}")
    parts += [f"{kind} until {at}" for kind, at in deadlines(member).items() if at != "none"]
    if member.classic is not None:
        parts.append("classic")
    return ", ".join(parts)


def epochs_of(member: ConsumerMember, labels: Labels) -> str:
    """Return the assigned partitions with their assignment epochs: `[foo 0-2@3]`."""
    by_name = {_label(UUID(bytes=id_), labels): epochs for id_, epochs in member.assigned.items()}
    return f"[{partition_text.text_of_epochs(by_name)}]"


def by_label(partitions: Mapping[bytes, Iterable[int]], labels: Labels) -> str:
    """Format partitions by topic id as `[foo 0-2]`."""
    by_name = {_label(UUID(bytes=id_), labels): numbers for id_, numbers in partitions.items()}
    return f"[{partition_text.text_of(by_name)}]"


def _label(topic_id: UUID, labels: Labels) -> str:
    return labels.get(topic_id, str(topic_id))


def deadlines(member: ConsumerMember) -> dict[str, str]:
    """Return the member's deadlines by kind, `none` where none is armed."""
    classic = member.classic
    at_ms = {
        "session": member.session_deadline_ms,
        "rebalance": member.rebalance_deadline_ms,
        "join": None if classic is None else classic.join_deadline_ms,
        "sync": None if classic is None else classic.sync_deadline_ms,
    }
    return {kind: "none" if at is None else time_text(at) for kind, at in at_ms.items()}
