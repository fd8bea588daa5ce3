"""Decodes and formats the assignments of Kafka Connect and Kafka Streams: connectors and tasks."""

from collections.abc import Mapping, Sequence

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
from kafka_why.why.model import ConnectWork, Rebalance, StreamsTasks
from kafka_why.wording import Lines, Names, duration_text, member_listing, partitions_text, shortened


def connect_work(
    assignments: Mapping[MemberId, bytes] | None, protocol_name: str | None
) -> dict[MemberId, ConnectWork]:
    """Return the work of each worker of Kafka Connect, or {} for other protocols and unreadable bytes."""
    if assignments is None or protocol_name not in connect_protocol.PROTOCOL_NAMES:
        return {}
    try:
        return {
            member_id: _connect(connect_protocol.decode_assignment(data))
            for member_id, data in assignments.items()
            # A member without work has empty bytes.
            if data
        }
    except ProtocolError:
        return {}


def streams_tasks(
    assignments: Mapping[MemberId, bytes] | None, protocol_name: str | None
) -> dict[MemberId, StreamsTasks]:
    """Return the tasks of each thread of Kafka Streams, or {} for other protocols and unreadable bytes."""
    if assignments is None or protocol_name != PROTOCOL_NAME:
        return {}
    try:
        return {
            member_id: _streams(decode_assignment_info(decode_assignment(data).user_data or b""))
            for member_id, data in assignments.items()
            if data
        }
    except ProtocolError:
        return {}


def _connect(found: ConnectAssignment) -> ConnectWork:
    return ConnectWork(
        connectors=list(found.assigned.connectors),
        tasks={connector: sorted(tasks) for connector, tasks in found.assigned.tasks.items()},
        revoked_connectors=list(found.revoked.connectors),
        revoked_tasks={connector: sorted(tasks) for connector, tasks in found.revoked.tasks.items()},
        is_incremental=found.version > 0,
        delay_ms=max(found.delay_ms, 0),
        error=found.error,
    )


def _streams(info: AssignmentInfo) -> StreamsTasks:
    return StreamsTasks(
        active=[str(task) for task in sorted(info.active)],
        standby=[str(task) for task in sorted(info.standby)],
        next_rebalance_ms=None if info.next_rebalance_ms == NEVER else max(info.next_rebalance_ms, AT_ONCE),
        error=_error(info.error),
    )


def _error(code: int) -> str | None:
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
    assigned, revoked = "", _units_text(work.revoked_connectors, work.revoked_tasks)
    if found := _units_text(work.connectors, work.tasks):
        # Without +, it is all work of the worker.
        assigned = f"+ {found}" if work.is_incremental else found
    return "   ".join(part for part in (assigned, f"- {revoked}" if revoked else "") if part)


def _units_text(connectors: Sequence[str], tasks: Mapping[str, Sequence[int]]) -> str:
    parts = []
    if connectors:
        parts.append(f"connector{'' if len(connectors) == 1 else 's'} {shortened(connectors)}")
    if tasks:
        parts.append(f"tasks {partitions_text(tasks)}")
    return ", ".join(parts)


def _streams_lines(r: Rebalance, threads: Mapping[str, StreamsTasks], names: Names) -> Lines:
    yield from _by_member("tasks", {m: _tasks(tasks) for m, tasks in threads.items()}, names)
    at_once = [names.of(m) for m, tasks in threads.items() if tasks.next_rebalance_ms == AT_ONCE]
    if at_once:
        verb = "asks" if len(at_once) == 1 else "ask"
        yield "follow-up", f"{shortened(at_once)} {verb} for another rebalance at once"
    later_ms = [tasks.next_rebalance_ms for tasks in threads.values() if tasks.next_rebalance_ms]
    if later_ms and r.ended_ms is not None:
        after = duration_text(max(min(later_ms) - r.ended_ms, 0))
        yield "probing", f"another rebalance in {after}, to see whether copies of state have caught up"
    for error, of in _errors(threads, names).items():
        yield "error", f"{error}: {shortened(of)}"


def _tasks(tasks: StreamsTasks) -> str:
    """Return a text such as `active 0_0, 1_0; standby 0_1`."""
    kinds = (("active", tasks.active), ("standby", tasks.standby))
    return "; ".join(f"{kind} {shortened(of)}" for kind, of in kinds if of)


def _errors(threads: Mapping[str, StreamsTasks], names: Names) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member_id, tasks in threads.items():
        if tasks.error is not None:
            found.setdefault(tasks.error, []).append(names.of(member_id))
    return found


def _by_member(label: str, texts: Mapping[str, str], names: Names) -> Lines:
    return member_listing(label, [(names.of(member_id), text) for member_id, text in texts.items() if text])
