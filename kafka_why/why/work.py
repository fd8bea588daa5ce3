"""Decodes and formats the assignments of Kafka Connect and Kafka Streams: connectors and tasks."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kafka_why.contract.protocols import connect_protocol
from kafka_why.contract.protocols.connect_protocol import CONFIG_MISMATCH, ConnectAssignment
from kafka_why.contract.protocols.streams_protocol import (
    AT_ONCE,
    NEVER,
    PROTOCOL_NAME,
    AssignmentInfo,
    AssignorError,
    decode_assignment_info,
)
from kafka_why.contract.protocols.subscriptions import MemberId, decode_assignment
from kafka_why.contract.protocols.wire import ProtocolError
from kafka_why.grouping import grouped
from kafka_why.why.model import ConnectWork, Rebalance, StreamsTasks
from kafka_why.wording import Lines, Names, duration_text, member_listing, partitions_text, shortened

W = TypeVar("W", ConnectWork, StreamsTasks)


def connect_work(
    assignments: Mapping[MemberId, bytes] | None, protocol_name: str | None
) -> dict[MemberId, ConnectWork]:
    """Return the work of each worker of Kafka Connect, or {} for other protocols and unreadable bytes."""
    if protocol_name not in connect_protocol.PROTOCOL_NAMES:
        return {}
    return _decode_all(assignments, lambda data: _to_connect_work(connect_protocol.decode_assignment(data)))


def streams_tasks(
    assignments: Mapping[MemberId, bytes] | None, protocol_name: str | None
) -> dict[MemberId, StreamsTasks]:
    """Return the tasks of each thread of Kafka Streams, or {} for other protocols and unreadable bytes."""
    if protocol_name != PROTOCOL_NAME:
        return {}
    return _decode_all(
        assignments,
        lambda data: _to_streams_tasks(decode_assignment_info(decode_assignment(data).user_data or b"")),
    )


def _decode_all(
    assignments: Mapping[MemberId, bytes] | None, decode: Callable[[bytes], W]
) -> dict[MemberId, W]:
    """Decode the assignments of the members that have work, or return {} if one is unreadable."""
    try:
        return {member_id: decode(data) for member_id, data in (assignments or {}).items() if data}
    except ProtocolError:
        return {}


def _to_connect_work(assignment: ConnectAssignment) -> ConnectWork:
    return ConnectWork(
        connectors=list(assignment.assigned.connectors),
        tasks={connector: sorted(tasks) for connector, tasks in assignment.assigned.tasks.items()},
        revoked_connectors=list(assignment.revoked.connectors),
        revoked_tasks={connector: sorted(tasks) for connector, tasks in assignment.revoked.tasks.items()},
        is_incremental=assignment.version > 0,
        delay_ms=max(assignment.delay_ms, 0),
        error=assignment.error,
    )


def _to_streams_tasks(info: AssignmentInfo) -> StreamsTasks:
    return StreamsTasks(
        active=[str(task) for task in sorted(info.active)],
        standby=[str(task) for task in sorted(info.standby)],
        next_rebalance_ms=None if info.next_rebalance_ms == NEVER else max(info.next_rebalance_ms, AT_ONCE),
        error=_assignor_error(info.error),
    )


def _assignor_error(code: int) -> str | None:
    """Return the name of an error, or its number if it is unknown. Return None for no error."""
    if code == AssignorError.NONE:
        return None
    return AssignorError(code).name if code in list(AssignorError) else str(code)


def work_lines(r: Rebalance, names: Names) -> Lines:
    """Yield the lines about the work of Connect's workers or Streams' threads."""
    if r.connect:
        yield from _connect_lines(r.connect, names)
    if r.streams:
        yield from _streams_lines(r, r.streams, names)


def _connect_lines(workers: Mapping[str, ConnectWork], names: Names) -> Lines:
    yield from _by_member("assigned", {m: _worker_text(work) for m, work in workers.items()}, names)
    if any(work.revoked_connectors or work.revoked_tasks for work in workers.values()):
        yield "next", "another rebalance at once, which assigns what was revoked"
    delay_ms = max(work.delay_ms for work in workers.values())
    if delay_ms:
        yield (
            "delayed",
            f"the work of a worker that left waits {duration_text(delay_ms)} for its return "
            "(scheduled.rebalance.max.delay.ms)",
        )
    errors = {work.error for work in workers.values()} - {0}
    if CONFIG_MISMATCH in errors:
        yield "error", "nothing was assigned, because a worker has newer configurations than the leader"
    elif errors:
        yield "error", f"code {min(errors)} of Connect's protocol"


def _worker_text(work: ConnectWork) -> str:
    """Return a text such as `+ connector source, tasks source 0-1   - tasks sink 0`."""
    parts = []
    if assigned := _units_text(work.connectors, work.tasks):
        # Without +, it is all work of the worker.
        parts.append(f"+ {assigned}" if work.is_incremental else assigned)
    if revoked := _units_text(work.revoked_connectors, work.revoked_tasks):
        parts.append(f"- {revoked}")
    return "   ".join(parts)


def _units_text(connectors: Sequence[str], tasks: Mapping[str, Sequence[int]]) -> str:
    """Return a text such as `connector source, tasks source 0-1`, or ""."""
    parts = []
    if connectors:
        parts.append(f"connector{'' if len(connectors) == 1 else 's'} {shortened(connectors)}")
    if tasks:
        parts.append(f"tasks {partitions_text(tasks)}")
    return ", ".join(parts)


def _streams_lines(r: Rebalance, threads: Mapping[str, StreamsTasks], names: Names) -> Lines:
    yield from _by_member("tasks", {m: _tasks_text(tasks) for m, tasks in threads.items()}, names)
    at_once = [names.of(m) for m, tasks in threads.items() if tasks.next_rebalance_ms == AT_ONCE]
    if at_once:
        verb = "asks" if len(at_once) == 1 else "ask"
        yield "follow-up", f"{shortened(at_once)} {verb} for another rebalance at once"
    # Without 0 (at once) and None (never).
    later_ms = [tasks.next_rebalance_ms for tasks in threads.values() if tasks.next_rebalance_ms]
    if later_ms and r.ended_ms is not None:
        after = duration_text(max(min(later_ms) - r.ended_ms, 0))
        yield "probing", f"another rebalance in {after}, to see whether copies of state have caught up"
    errors = ((tasks.error, names.of(m)) for m, tasks in threads.items() if tasks.error is not None)
    for error, members in grouped(errors).items():
        yield "error", f"{error}: {shortened(members)}"


def _tasks_text(tasks: StreamsTasks) -> str:
    """Return a text such as `active 0_0, 1_0; standby 0_1`."""
    roles = (("active", tasks.active), ("standby", tasks.standby))
    return "; ".join(f"{role} {shortened(names)}" for role, names in roles if names)


def _by_member(label: str, texts: Mapping[str, str], names: Names) -> Lines:
    """Yield the texts of members by member id. Members with an empty text are left out."""
    return member_listing(label, [(names.of(member_id), text) for member_id, text in texts.items() if text])
