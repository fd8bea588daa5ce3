"""Lists of partitions as short text."""

from collections.abc import Iterable, Mapping, Sequence

from kafka_why.contract.kafka.snapshot import ConsumerMemberSnapshot
from kafka_why.contract.protocols.subscriptions import (
    PROTOCOL_TYPE,
    ProtocolError,
    TopicPartition,
    by_topic,
    decode_assignment,
)


def partition_list(partitions: Iterable[TopicPartition]) -> str:
    """Return the partitions by topic, with runs of numbers joined: `orders 0-3 7, prices 1`."""
    return ", ".join(f"{topic} {number_list(numbers)}" for topic, numbers in by_topic(partitions).items())


def number_list(numbers: Iterable[int]) -> str:
    """Return the numbers with runs joined: `0-3 7`."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


# The partitions that a member has, as a line of text.


def progress(member: ConsumerMemberSnapshot) -> str:
    """Return the partitions of a member of a consumer-protocol group: `orders 0-3, gives up orders 4`."""
    awaited = member.awaited()
    parts = [_named(member.assigned) or "-"]
    parts += [f"gives up {_named(member.revoking)}"] if member.revoking else []
    parts += [f"waits for {_named(awaited)}"] if awaited else []
    return "; ".join(parts)


def _named(partitions: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{topic} {number_list(numbers)}" for topic, numbers in partitions.items())


def holdings(assignment: bytes, protocol_type: str | None) -> str:
    """Return the partitions of an assignment, such as `orders 0-3 7, prices 1`."""
    if not assignment:
        return "-"
    if protocol_type != PROTOCOL_TYPE:
        return f"{len(assignment)} bytes"
    try:
        partitions = decode_assignment(assignment).partitions
    except ProtocolError as error:
        return f"unreadable: {error}"
    return partition_list(partitions) or "-"
