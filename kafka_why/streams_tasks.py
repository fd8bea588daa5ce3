"""The tasks of streams groups as histories and views show them: by role and subtopology, `active 0`."""

from collections.abc import Collection, Mapping
from typing import Final

from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition

ACTIVE: Final = "active"
STANDBY: Final = "standby"
WARM_UP: Final = "warm-up"
ROLES: Final = (ACTIVE, STANDBY, WARM_UP)


def role_and_task(shown: TopicPartition) -> tuple[str, TopicPartition]:
    """Return the role, and the task with its subtopology as the topic."""
    role, _, subtopology = shown.topic.partition(" ")
    return role, TopicPartition(subtopology, shown.partition)


def task_holder(
    shown: TopicPartition,
    member_id: MemberId,
    held: Mapping[MemberId, Collection[TopicPartition]],
    processes: Mapping[MemberId, str],
) -> MemberId | None:
    """Return the member that has to give up a task before `member_id` gets it, or None.

    An active task waits for its member in any process. Every task waits for the other members of the same
    process, which share its state directory. A member without a process counts as one by itself. Source:
    CurrentAssignmentBuilder.
    """
    role, task = role_and_task(shown)
    as_active = TopicPartition(f"{ACTIVE} {task.topic}", task.partition)
    in_any_role = [TopicPartition(f"{each} {task.topic}", task.partition) for each in ROLES]
    process = processes.get(member_id, member_id)
    for other, has in held.items():
        is_sibling = processes.get(other, other) == process
        blocking = in_any_role if is_sibling else [as_active] if role == ACTIVE else []
        if other != member_id and any(one in has for one in blocking):
            return other
    return None
