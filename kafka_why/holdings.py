"""The partitions that a member has, as a line of text."""

from collections.abc import Mapping, Sequence

from kafka_why.contract.kafka.snapshot import ConsumerMemberSnapshot
from kafka_why.contract.protocols.consumer_protocol import PROTOCOL_TYPE, ProtocolError, decode_assignment
from kafka_why.partition_text import number_list, partition_list


def progress(member: ConsumerMemberSnapshot) -> str:
    """Return what a member of a group of the consumer protocol has: `orders 0-3, gives up orders 4`."""
    awaited = member.awaited()
    parts = [_named(member.assigned) or "-"]
    parts += [f"gives up {_named(member.revoking)}"] if member.revoking else []
    parts += [f"waits for {_named(awaited)}"] if awaited else []
    return "; ".join(parts)


def _named(partitions: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{topic} {number_list(numbers)}" for topic, numbers in partitions.items())


def holdings(assignment: bytes, protocol_type: str | None) -> str:
    """Return the partitions of an assignment, e.g. `orders 0-3 7, prices 1`."""
    if not assignment:
        return "-"
    if protocol_type != PROTOCOL_TYPE:
        return f"{len(assignment)} bytes"
    try:
        partitions = decode_assignment(assignment).partitions
    except ProtocolError as error:
        return f"unreadable: {error}"
    return partition_list(partitions) or "-"
