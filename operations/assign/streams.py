"""The tasks of a streams group under another number of standby replicas, or with other members.

The assignor is the coordinator's own, so each result is the target that the group would get. Members keep
what they have now as far as the assignor is sticky; offsets that members reported are not in the view.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import pstdev

from msgspec import UNSET, Struct

from assignors.kafka.sticky_tasks import StickyTaskAssignor, SubtopologyTasks, TargetTasks, TaskMember
from kafka_why.assign.model import InputError
from kafka_why.contract.kafka.snapshot import ConsumerMemberSnapshot, GroupSnapshot, NamedPartitions
from kafka_why.contract.protocols.streams_protocol import ACTIVE, STANDBY
from kafka_why.contract.protocols.subscriptions import MemberId, by_topic
from kafka_why.why.reconciling import compare_tasks, flat
from operations.assign.compare import NOW, MemberShare, Spread, StrategyResult

STANDBY_REPLICAS = "num.standby.replicas"


class StreamsSpec(Struct, frozen=True):
    """A streams group."""

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
    active = flat_roles((member.target for member in members.values()), ACTIVE)
    if not active:
        reason = "has no members" if not members else f"is {described.state}: no member has a task"
        raise InputError(f"group {described.group_id} {reason}")
    standby = flat_roles((member.target for member in members.values()), STANDBY)
    known = described.consumer.streams.stateful
    # The view of an observed group does not say it: those with a standby task or, without any, all count.
    stateful = (standby.keys() or active.keys()) if known is UNSET else known
    return StreamsSpec(
        {member_id: _member(member_id, member) for member_id, member in members.items()},
        {id_: SubtopologyTasks(max(numbers) + 1, id_ in stateful) for id_, numbers in active.items()},
        int(described.consumer.streams.assignment_configs.get(STANDBY_REPLICAS, "0")),
    )


def flat_roles(tasks: Iterable[NamedPartitions], role: str) -> dict[str, list[int]]:
    """Return all tasks in this role, by subtopology."""
    found: dict[str, list[int]] = {}
    for given in tasks:
        for name, numbers in given.items():
            has_role, _, subtopology = name.partition(" ")
            if has_role == role:
                found.setdefault(subtopology, []).extend(numbers)
    return found


def _member(member_id: MemberId, member: ConsumerMemberSnapshot) -> TaskMember:
    process_id = member.streams.process_id if member.streams else ""
    assigned = [member.assigned]
    return TaskMember(process_id or member_id, flat_roles(assigned, ACTIVE), flat_roles(assigned, STANDBY))


def streams_outcomes(
    group: StreamsSpec, gone: Sequence[MemberId], come: Sequence[MemberId], standbys: Sequence[int]
) -> list[StrategyResult]:
    """Return the present tasks, and the target for each of `standbys`, or else for the group's own number.

    Each member of `come` is a process by itself.
    """
    now = {member_id: _holdings(member.active, member.standby) for member_id, member in group.members.items()}
    members = {id_: member for id_, member in group.members.items() if id_ not in gone}
    members |= {member_id: TaskMember(member_id) for member_id in come}
    if not members:
        raise InputError("no member is left")
    results = [_result(NOW, now, {})]
    for replicas in dict.fromkeys(standbys or [group.standbys]):
        found = StickyTaskAssignor().assign(members, group.subtopologies, replicas)
        after = {id_: _target_holdings(tasks) for id_, tasks in found.targets.items()}
        missing: dict[str, list[int]] = {}
        for subtopology, number in found.missing_standbys:
            missing.setdefault(f"{STANDBY} {subtopology}", []).append(number)
        results.append(_result(f"{STANDBY_REPLICAS}={replicas}", after, missing, now))
    return results


def _target_holdings(tasks: TargetTasks) -> NamedPartitions:
    return _holdings(tasks.active, tasks.standby)


def _holdings(active: Mapping[str, Iterable[int]], standby: Mapping[str, Iterable[int]]) -> NamedPartitions:
    roles = ((ACTIVE, active), (STANDBY, standby))
    return {f"{role} {id_}": sorted(numbers) for role, tasks in roles for id_, numbers in tasks.items()}


def _result(
    name: str,
    tasks: Mapping[MemberId, NamedPartitions],
    missing: NamedPartitions,
    now: Mapping[MemberId, NamedPartitions] | None = None,
) -> StrategyResult:
    held = {member_id: flat(partitions) for member_id, partitions in tasks.items()}
    counts = [len(partitions) for partitions in held.values()]
    return StrategyResult(
        strategy=name,
        shares=[
            MemberShare(member_id, len(partitions), None, by_topic(partitions))
            for member_id, partitions in sorted(held.items())
        ],
        nobodys=missing,
        spread=Spread(min(counts), max(counts), round(pstdev(counts), 2)),
        weight_spread=None,
        moves=None
        if now is None
        else compare_tasks({m: flat(partitions) for m, partitions in now.items()}, held),
        noun="task",
    )
