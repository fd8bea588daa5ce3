"""What Kafka Connect and Kafka Streams assign besides, or instead of, partitions: read for a report."""

from collections.abc import Mapping

from kafka_why.contract.protocols import connect_protocol, streams_protocol
from kafka_why.contract.protocols.connect_protocol import ConnectAssignment
from kafka_why.contract.protocols.consumer_protocol import decode_assignment
from kafka_why.contract.protocols.streams_protocol import AT_ONCE, NEVER, AssignmentInfo, AssignorError
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.contract.protocols.wire import ProtocolError
from kafka_why.why.model import ConnectWork, StreamsTasks


def connect_work(
    assignments: Mapping[MemberId, bytes] | None, protocol_name: str | None
) -> dict[MemberId, ConnectWork]:
    """Return what the workers of Kafka Connect were assigned; {} if the group is not one of Connect's, or the
    bytes of a member are not its protocol's. A member without bytes has no work.
    """
    if assignments is None or protocol_name not in connect_protocol.PROTOCOL_NAMES:
        return {}
    try:
        return {
            member_id: _connect(connect_protocol.decode_assignment(data))
            for member_id, data in assignments.items()
            if data
        }
    except ProtocolError:
        return {}


def streams_tasks(
    assignments: Mapping[MemberId, bytes] | None, protocol_name: str | None
) -> dict[MemberId, StreamsTasks]:
    """Return the tasks of the threads of Kafka Streams; {} as for `connect_work`."""
    if assignments is None or protocol_name != streams_protocol.PROTOCOL_NAME:
        return {}
    try:
        return {member_id: _streams(_user_data(data)) for member_id, data in assignments.items() if data}
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


def _user_data(data: bytes) -> AssignmentInfo:
    """Raises ProtocolError."""
    return streams_protocol.decode_assignment_info(decode_assignment(data).user_data or b"")


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
