"""The tasks of a streams group under another number of standby replicas, or with other members.

The assignor is the coordinator's own, so each result is the target that the group would get. The target may
differ if members have reported changelog offsets, because the group's published state does not have them.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET, Struct

from assignors.kafka.sticky_tasks import StickyTaskAssignor, SubtopologyTasks, TaskMember
from kafka_why.assign.model import InputError
from kafka_why.contract.kafka.snapshot import ConsumerMemberSnapshot, GroupSnapshot, NamedPartitions
from kafka_why.contract.protocols.streams_protocol import ACTIVE, STANDBY
from kafka_why.contract.protocols.subscriptions import MemberId, by_topic
from kafka_why.why.reconciling import flat
from kafka_why.why.tasks import compare_tasks
from operations.assign.compare import NOW, MemberShare, StrategyResult, spread_of

STANDBY_REPLICAS = "num.standby.replicas"


class StreamsSpec(Struct, frozen=True):
    """A streams group, as its assignor sees it."""

    members: Mapping[MemberId, TaskMember]  # with their present tasks
    subtopologies: Mapping[str, SubtopologyTasks]
    standbys: int  # number of standby replicas


def streams_spec(described: GroupSnapshot) -> StreamsSpec:
    """Return the streams group with the tasks of its target assignment.

    Raises InputError for a group without tasks.
    """
    assert described.consumer
    assert described.consumer.streams
    members = {m.member_id: m.consumer for m in described.members if m.consumer is not None}
    active = tasks_in_role((member.target for member in members.values()), ACTIVE)
    if not active:
        reason = "has no members" if not members else f"is {described.state}: no member has a task"
        raise InputError(f"group {described.group_id} {reason}")
    standby = tasks_in_role((member.target for member in members.values()), STANDBY)
    known_stateful = described.consumer.streams.stateful
    # An observed group, one of the cluster's own coordinator, does not show which subtopologies are stateful.
    # Assume that the ones with a standby task are stateful, or all if there is no standby task.
    stateful = (standby.keys() or active.keys()) if known_stateful is UNSET else known_stateful
    return StreamsSpec(
        {member_id: _member(member_id, member) for member_id, member in members.items()},
        {id_: SubtopologyTasks(max(numbers) + 1, id_ in stateful) for id_, numbers in active.items()},
        int(described.consumer.streams.assignment_configs.get(STANDBY_REPLICAS, "0")),
    )


def tasks_in_role(tasks: Iterable[NamedPartitions], role: str) -> dict[str, list[int]]:
    """Return the tasks in this role, by subtopology. The names in `tasks` are such as `active 0`."""
    in_role: dict[str, list[int]] = {}
    for tasks_of_member in tasks:
        for name, numbers in tasks_of_member.items():
            role_of_name, _, subtopology = name.partition(" ")
            if role_of_name == role:
                in_role.setdefault(subtopology, []).extend(numbers)
    return in_role


def _member(member_id: MemberId, member: ConsumerMemberSnapshot) -> TaskMember:
    """Return the member with its present tasks. A member with an unknown process is a process of its own."""
    process_id = member.streams.process_id if member.streams else ""
    return TaskMember(
        process_id or member_id,
        tasks_in_role([member.assigned], ACTIVE),
        tasks_in_role([member.assigned], STANDBY),
    )


def streams_outcomes(
    group: StreamsSpec, removed: Sequence[MemberId], added: Sequence[MemberId], standbys: Sequence[int]
) -> list[StrategyResult]:
    """Return the present tasks, and the target for each number of standby replicas in `standbys`.

    If `standbys` is empty, the number is the group's own. Members in `removed` leave the group. Members
    in `added` join it, each as its own process.
    """
    present = {
        member_id: _named_tasks(member.active, member.standby) for member_id, member in group.members.items()
    }
    members = {id_: member for id_, member in group.members.items() if id_ not in removed}
    members |= {member_id: TaskMember(member_id) for member_id in added}
    if not members:
        raise InputError("no member is left")
    results = [_result(NOW, present, {})]
    for replicas in dict.fromkeys(standbys or [group.standbys]):
        assignment = StickyTaskAssignor().assign(members, group.subtopologies, replicas)
        target = {id_: _named_tasks(tasks.active, tasks.standby) for id_, tasks in assignment.targets.items()}
        missing: dict[str, list[int]] = {}
        for subtopology, number in assignment.missing_standbys:
            missing.setdefault(f"{STANDBY} {subtopology}", []).append(number)
        results.append(_result(f"{STANDBY_REPLICAS}={replicas}", target, missing, present))
    return results


def _named_tasks(
    active: Mapping[str, Iterable[int]], standby: Mapping[str, Iterable[int]]
) -> NamedPartitions:
    """Return the tasks under names such as `active 0`: the role and the subtopology."""
    roles = ((ACTIVE, active), (STANDBY, standby))
    return {f"{role} {id_}": sorted(numbers) for role, tasks in roles for id_, numbers in tasks.items()}


def _result(
    name: str,
    tasks: Mapping[MemberId, NamedPartitions],
    missing: NamedPartitions,
    present: Mapping[MemberId, NamedPartitions] | None = None,
) -> StrategyResult:
    """Return the result of the assignment `tasks`, in which copies of the tasks `missing` are missing. With
    the `present` tasks of the members, it has the moves from these.
    """
    held = {member_id: flat(partitions) for member_id, partitions in tasks.items()}
    return StrategyResult(
        strategy=name,
        shares=[
            MemberShare(member_id, len(partitions), weight=None, assignment=by_topic(partitions))
            for member_id, partitions in sorted(held.items())
        ],
        nobodys=missing,
        spread=spread_of(list(map(len, held.values()))),
        weight_spread=None,
        moves=None
        if present is None
        else compare_tasks({m: flat(partitions) for m, partitions in present.items()}, held),
        noun="task",
    )
