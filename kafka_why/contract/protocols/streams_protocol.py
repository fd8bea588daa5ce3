"""The user data in a member's assignment of Kafka Streams on the classic protocol.

The user data are AssignmentInfo of Kafka Streams, versions 1 to 11 (Kafka 0.10 to 4.4), in the format of
Java's DataOutputStream. Version 2 adds the partitions of each host, 3 the latest version that all members
know, 4 the error code, 5 a dictionary of topics, 6 the partitions of standbys by host, 7 the time of the next
probing rebalance (KIP-441), and 10 the name of a topology in each task. Versions 8, 9 and 11 change other
messages.

A member is a thread of an instance (StreamThread).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition
from kafka_why.contract.protocols.wire import ProtocolError, Reader

PROTOCOL_NAME = "stream"
"""The name of the protocol that members offer (StreamsPartitionAssignor)."""
AT_ONCE, NEVER = 0, 2**63 - 1
"""Values of `next_rebalance_ms`: the member joins again as soon as it has its assignment, or never."""
_VERSIONS = range(1, 12)
# The versions that added fields.
_WITH_HOSTS, _WITH_LATEST_VERSION, _WITH_ERROR, _WITH_DICTIONARY = 2, 3, 4, 5
_WITH_STANDBY_HOSTS, _WITH_NEXT_REBALANCE, _WITH_TOPOLOGY_NAME = 6, 7, 10


class AssignorError(IntEnum):
    """The error codes, as in Kafka's AssignorError."""

    NONE = 0
    INCOMPLETE_SOURCE_TOPIC_METADATA = 1
    VERSION_PROBING = 2
    ASSIGNMENT_ERROR = 3
    SHUTDOWN_REQUESTED = 4


class TaskId(NamedTuple):
    """A task: a subtopology and the partition that it reads."""

    subtopology: int
    partition: int
    topology: str = ""  # its name, or ""

    def __str__(self) -> str:
        name = f"{self.topology}__" if self.topology else ""
        return f"{name}{self.subtopology}_{self.partition}"


@dataclass(frozen=True, slots=True)
class AssignmentInfo:
    """The tasks of a member."""

    version: int
    active: tuple[TaskId, ...]
    standby: tuple[TaskId, ...]
    error: int = AssignorError.NONE  # an AssignorError, or an unknown code
    next_rebalance_ms: int = NEVER  # since 1970, or AT_ONCE or NEVER


def decode_assignment_info(data: bytes) -> AssignmentInfo:
    """Decode the user data of an assignment.

    Raises ProtocolError, also for unknown versions and leftover bytes.
    """
    reader = Reader(data)
    version = reader.int32("version")
    if version not in _VERSIONS:
        raise ProtocolError(f"version {version} is not known", 0)
    if version >= _WITH_LATEST_VERSION:
        reader.int32("commonly_supported_version")
    active = tuple(_read_task(reader, version) for _ in range(reader.count("active")))
    standby = tuple(_read_standby(reader, version) for _ in range(reader.count("standby")))
    if version >= _WITH_DICTIONARY:
        _skip_hosts_with_dictionary(reader, version)
    elif version >= _WITH_HOSTS:
        _skip_hosts(reader)
    error = reader.int32("error") if version >= _WITH_ERROR else AssignorError.NONE
    next_rebalance_ms = reader.int64("next_rebalance_ms") if version >= _WITH_NEXT_REBALANCE else NEVER
    reader.end()
    return AssignmentInfo(version, active, standby, error, next_rebalance_ms)


def _read_task(reader: Reader, version: int) -> TaskId:
    subtopology, partition = reader.int32("subtopology"), reader.int32("partition")
    return TaskId(subtopology, partition, reader.utf16("topology") if version >= _WITH_TOPOLOGY_NAME else "")


def _read_standby(reader: Reader, version: int) -> TaskId:
    task = _read_task(reader, version)
    _skip_partitions(reader)
    return task


def _skip_partitions(reader: Reader) -> None:
    for _ in range(reader.count("partitions")):
        reader.string("topic")
        reader.int32("partition")


def _skip_host(reader: Reader) -> None:
    reader.string("host")
    reader.int32("port")


def _skip_hosts(reader: Reader) -> None:
    for _ in range(reader.count("hosts")):
        _skip_host(reader)
        _skip_partitions(reader)


def _skip_hosts_with_dictionary(reader: Reader, version: int) -> None:
    for _ in range(reader.count("topics")):
        reader.int32("number")
        reader.string("topic")
    # The hosts of active partitions, then those of standbys.
    for _ in range(2 if version >= _WITH_STANDBY_HOSTS else 1):
        for _ in range(reader.count("hosts")):
            _skip_host(reader)
            # Each partition has the number of its topic, and its own.
            reader.int32s(2 * reader.count("partitions"), "partition")


# The tasks of streams groups as histories and views show them: by role and subtopology, `active 0`.

ACTIVE: Final = "active"
STANDBY: Final = "standby"
WARM_UP: Final = "warm-up"
ROLES: Final = (ACTIVE, STANDBY, WARM_UP)


def role_and_task(shown: TopicPartition) -> tuple[str, TopicPartition]:
    """Split a task such as partition 3 of `active 0` into its role and partition 3 of subtopology `0`."""
    role, _, subtopology = shown.topic.partition(" ")
    return role, TopicPartition(subtopology, shown.partition)


def task_holder(
    shown: TopicPartition,
    member_id: MemberId,
    held: Mapping[MemberId, Collection[TopicPartition]],
    processes: Mapping[MemberId, str],
) -> MemberId | None:
    """Return the member that has to give up the task `shown` before `member_id` gets it, or None.

    An active task has to be given up by its active member, in any process. Every task has to be given up, in
    every role, by the other members of the same process, because they share a state directory. A member
    without a process counts as a process by itself. Source: CurrentAssignmentBuilder.
    """
    role, task = role_and_task(shown)
    as_active = TopicPartition(f"{ACTIVE} {task.topic}", task.partition)
    in_any_role = [TopicPartition(f"{each} {task.topic}", task.partition) for each in ROLES]
    process = processes.get(member_id, member_id)
    for other, tasks in held.items():
        if other == member_id:
            continue
        # The forms in which `other` must not have the task.
        excluded = [as_active] if role == ACTIVE else []
        if processes.get(other, other) == process:
            excluded = in_any_role
        if any(task_in_role in tasks for task_in_role in excluded):
            return other
    return None
