"""Kafka Connect's protocol: the assignment that a worker gets from the leader through SyncGroup.

The protocol is Kafka's ConnectProtocol (version 0, eager) or IncrementalCooperativeConnectProtocol (KIP-415;
version 1, `compatible`, and version 2, `sessioned`, which have the same assignments). The bytes start with
the version, an int16. Versions only append fields, so newer versions are read as version 2.

In version 0 an assignment has all work of the worker. From version 1 on it has only the new work, and the
worker keeps its other work until that work is revoked.
"""

from dataclasses import dataclass

from kafka_why.contract.protocols.wire import ProtocolError, Reader

PROTOCOL_NAMES = ("default", "compatible", "sessioned")
"""The names of the protocols that workers offer: eager, compatible and sessioned."""
CONNECTOR = -1
"""The task number that means the connector itself."""
CONFIG_MISMATCH = 1
"""The error if the leader assigns nothing because a worker has newer configurations than the leader."""
_HIGHEST_VERSION = 2


@dataclass(frozen=True, slots=True)
class Work:
    """Connectors, and tasks by connector."""

    connectors: tuple[str, ...]
    tasks: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ConnectAssignment:
    """The assignment of a worker."""

    version: int
    error: int  # 0 or CONFIG_MISMATCH
    leader: str  # member id of the leader
    leader_url: str
    config_offset: int  # of the configurations with which the leader assigned
    assigned: Work
    revoked: Work  # empty in version 0
    delay_ms: int = 0  # time until workers join again; until then a lost worker may return to its work


def decode_assignment(data: bytes) -> ConnectAssignment:
    """Decode an assignment. Raises ProtocolError, also for leftover bytes."""
    reader = Reader(data)
    version = reader.int16("version")
    if version < 0:
        raise ProtocolError(f"version {version} is not supported, the lowest is 0", 0)
    is_incremental = version > 0
    assignment = ConnectAssignment(
        version=version,
        error=reader.int16("error"),
        leader=reader.string("leader"),
        leader_url=reader.string("leader_url"),
        config_offset=reader.int64("config_offset"),
        assigned=_read_work(reader, "assignment", is_nullable=is_incremental),
        revoked=_read_work(reader, "revoked", is_nullable=True) if is_incremental else Work((), {}),
        delay_ms=reader.int32("delay") if is_incremental else 0,
    )
    if version <= _HIGHEST_VERSION:
        reader.end()
    return assignment


def _read_work(reader: Reader, field: str, *, is_nullable: bool) -> Work:
    connectors: list[str] = []
    tasks: dict[str, tuple[int, ...]] = {}
    count = reader.nullable_count(field) if is_nullable else reader.count(field)
    for _ in range(count or 0):
        connector = reader.string(f"{field}.connector")
        numbers = reader.int32s(reader.count(f"{field}.tasks"), f"{field}.task")
        if CONNECTOR in numbers:
            connectors.append(connector)
        task_numbers = tuple(number for number in numbers if number != CONNECTOR)
        if task_numbers:
            tasks[connector] = (*tasks.get(connector, ()), *task_numbers)
    return Work(tuple(connectors), tasks)
