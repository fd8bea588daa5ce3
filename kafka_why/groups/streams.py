"""The additional rows that describe a streams group: its processes and tasks, or why no member has a task."""

from collections import Counter

from msgspec import Struct

from kafka_why.contract.kafka.snapshot import GroupSnapshot, MemberSnapshot, flat
from kafka_why.contract.protocols.streams_protocol import ACTIVE, STANDBY, WARM_UP, role_and_task
from kafka_why.grouping import grouped
from kafka_why.wording import Column, VisibleText, count, render_table

MAX_TASKS = 20
"""The maximum number of tasks whose state is listed as behind."""


class ProcessRow(Struct, frozen=True):
    """A process of an application. Its members are threads."""

    process_id: str
    host: str
    members: int  # number of members
    active: int  # number of tasks
    standby: int  # number of tasks
    warm_up: int  # number of tasks
    endpoint: str | None  # for interactive queries; None if it has none


class StreamsRow(Struct, frozen=True, kw_only=True):
    """The state of a streams group."""

    processes: list[ProcessRow]
    not_ready: str | None  # why its topics are not valid; None if they are
    shutdown_requested_by: str | None  # id of the member that asked the application to end
    initial_deadline_ms: int | None  # until this time the first target assignment waits for members
    stale_members: list[str]  # members with an older topology
    # By task, the members whose state was behind the changelog topics at their last report, each with the
    # number of missing records.
    behind: dict[str, dict[str, int]]


def process_of(member: MemberSnapshot) -> str:
    """Return the process of a member of a streams group. A member without one is a process by itself."""
    streams = member.consumer.streams if member.consumer is not None else None
    return (streams.process_id if streams else "") or member.member_id


def streams_row(group: GroupSnapshot) -> StreamsRow | None:
    """Return the row of a streams group, or None for another group."""
    if not (group.consumer and group.consumer.streams):
        return None
    streams = group.consumer.streams
    threads_of = grouped((process_of(member), member) for member in group.members)
    return StreamsRow(
        processes=[_process_row(process_id, threads) for process_id, threads in sorted(threads_of.items())],
        not_ready=streams.not_ready or None,
        shutdown_requested_by=streams.shutdown_requested_by or None,
        initial_deadline_ms=streams.initial_deadline_ms or None,
        stale_members=[
            member.member_id
            for member in group.members
            if member.consumer
            and member.consumer.streams
            and member.consumer.streams.topology_epoch < (streams.topology_epoch or 0)
        ],
        behind=_lags_by_task(group.members),
    )


def _lags_by_task(members: list[MemberSnapshot]) -> dict[str, dict[str, int]]:
    """Return the missing records by task and member. Only lags above 0 are included."""
    lags_by_task: dict[str, dict[str, int]] = {}
    for member in members:
        if member.consumer is not None and member.consumer.streams:
            for task, lag in (member.consumer.streams.lags or {}).items():
                if lag:
                    lags_by_task.setdefault(task, {})[member.member_id] = lag
    return dict(sorted(lags_by_task.items()))


def _process_row(process_id: str, threads: list[MemberSnapshot]) -> ProcessRow:
    snapshots = [member.consumer for member in threads if member.consumer is not None]
    tasks_by_role = Counter(
        role_and_task(partition)[0] for snapshot in snapshots for partition in flat(snapshot.assigned)
    )
    endpoints = [snapshot.streams.user_endpoint for snapshot in snapshots if snapshot.streams]
    return ProcessRow(
        process_id=process_id,
        host=threads[0].client_host,
        members=len(threads),
        active=tasks_by_role[ACTIVE],
        standby=tasks_by_role[STANDBY],
        warm_up=tasks_by_role[WARM_UP],
        endpoint=next(filter(None, endpoints), None),
    )


def streams_text(row: StreamsRow) -> list[str]:
    """Return lines about the group's processes and what its members wait for."""
    lines = []
    if row.not_ready is not None:
        lines += ["", f"No member has a task: {row.not_ready}"]
    if row.initial_deadline_ms is not None:
        lines += ["", "The first target waits for more members (streams.initial.rebalance.delay.ms)."]
    if row.shutdown_requested_by is not None:
        lines += ["", f"Member {row.shutdown_requested_by} has asked to shut the application down."]
    if row.stale_members:
        lines += ["", "With an older topology than the group's:"]
        lines += [f"  {member_id}" for member_id in row.stale_members]
    if row.behind:
        lines += ["", "State behind its changelog topics, as members last reported it:"]
        lines += [f"  {task}: {_lags_text(lags)}" for task, lags in list(row.behind.items())[:MAX_TASKS]]
        if len(row.behind) > MAX_TASKS:
            lines.append(f"  and {len(row.behind) - MAX_TASKS} more tasks")
    if row.processes:
        lines += ["", _process_table(row.processes)]
    return lines


def _lags_text(lags: dict[str, int]) -> str:
    return ", ".join(f"{count(lag, 'record')} at {member_id}" for member_id, lag in lags.items())


def _process_table(processes: list[ProcessRow]) -> VisibleText:
    columns = [
        Column("PROCESS", 36),
        Column("HOST"),
        Column("#MEMBERS", 8),
        Column("#ACTIVE", 7),
        Column("#STANDBY", 8),
        Column("#WARM-UP", 8),
        Column("ENDPOINT", 0),
    ]
    cells = [
        [one.process_id, one.host, one.members, one.active, one.standby, one.warm_up, one.endpoint]
        for one in processes
    ]
    return render_table(columns, cells)
