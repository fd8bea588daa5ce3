"""Subscriptions and assignments of members, with the names of Kafka's ConsumerPartitionAssignor.

Members exchange the messages ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0 to 3,
through JoinGroup and SyncGroup. Version 1 adds owned partitions (KIP-429), 2 the generation (KIP-792), and 3
the rack (KIP-881). The assignment is the same in all versions. The bytes start with the version, an int16.
Kafka's versions only append fields, so newer versions are read as version 3 and further bytes are ignored. A
negative version is an error.

Sticky members revoke all partitions before they join. Their user data have these partitions and, since
version 1, an int32 generation (StickyAssignor). Cooperative members join with their owned partitions, in the
field of KIP-429. Their generation is in the field of KIP-792. Before KIP-792 it is an int32 in their user
data (CooperativeStickyAssignor).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final, NamedTuple, TypeAlias

from kafka_why.contract.protocols.wire import ProtocolError as ProtocolError
from kafka_why.contract.protocols.wire import Reader, Writer
from kafka_why.grouping import grouped

MemberId: TypeAlias = str


PartitionRacks: TypeAlias = Mapping[str, Sequence[frozenset[str]]]
"""The racks of replicas (KIP-881), by topic and partition number. The racks of missing partitions are
unknown.
"""


class TopicPartition(NamedTuple):
    """A partition of a topic. Partitions are numbered from 0."""

    topic: str
    partition: int


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the sorted numbers of partitions by topic, with sorted topics."""
    return grouped(sorted(partitions))


@dataclass(frozen=True, slots=True)
class Subscription:
    """The metadata that a member sends in JoinGroup with each assignor that it supports.

    An optional field is None, or () for `owned_partitions`, if the member does not send it.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()  # owned when the member joined (KIP-429)
    generation_id: int | None = None  # generation in which it owned them, at least 0 (KIP-792)
    rack_id: str | None = None  # KIP-881


@dataclass(frozen=True, slots=True)
class Assignment:
    """A member's assignment, which the leader sends for it in SyncGroup."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member's subscription, and its instance id if it is a static member."""

    subscription: Subscription
    group_instance_id: str | None = None  # KIP-345


def java_order(text: str) -> bytes:
    """Return a sort key for the order of Java's String.compareTo.

    Java compares UTF-16 units and Python code points, which differ beyond U+FFFF. A member id starts with the
    client.id, so it can have such characters. Java and Python leaders of one group must use the same order.
    """
    return text.encode("utf-16-be", "surrogatepass")


PROTOCOL_TYPE = "consumer"
"""The protocol type of Kafka's consumers in JoinGroup."""
HIGHEST_VERSION = 3
"""The highest known version of subscriptions and assignments."""


def decode_version(data: bytes) -> int:
    """Return the version at the start of `data`, unchecked. Raises ProtocolError for fewer than two bytes."""
    return Reader(data).int16("version")


def decode_subscription(data: bytes) -> Subscription:
    """Decode a ConsumerProtocolSubscription. Fields that its version does not have are empty or None.

    A negative generation and an empty rack become None, as in Kafka. Raises ProtocolError.
    """
    reader = Reader(data)
    version = _highest_known_version(reader.int16("version"))
    return Subscription(
        topics=tuple(reader.string("topic") for _ in range(reader.count("topics"))),
        user_data=reader.nullable_bytes("user_data"),
        owned_partitions=_read_partitions(reader, "owned_partitions") if version >= 1 else (),
        generation_id=_read_generation(reader) if version >= 2 else None,
        rack_id=(reader.nullable_string("rack_id") or None) if version >= 3 else None,
    )


def decode_subscribed_topics(data: bytes) -> tuple[str, ...]:
    """Return the topics of a ConsumerProtocolSubscription. Raises ProtocolError."""
    reader = Reader(data)
    _highest_known_version(reader.int16("version"))
    topics = tuple(reader.string("topic") for _ in range(reader.count("topics")))
    # Like Kafka's coordinator, decode only the fields of version 0.
    reader.nullable_bytes("user_data")
    return topics


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """Encode a ConsumerProtocolSubscription without the fields that `version` does not have.

    Topics and owned partitions are sorted, as in Kafka. A version above HIGHEST_VERSION is encoded as
    HIGHEST_VERSION. Raises ProtocolError for a negative version or a value that the format cannot represent.
    """
    version = _highest_known_version(version)
    writer = Writer()
    writer.int16(version, "version")
    writer.int32(len(subscription.topics), "topics")
    for topic in sorted(subscription.topics, key=java_order):
        writer.string(topic, "topic")
    writer.nullable_bytes(subscription.user_data, "user_data")
    if version >= 1:
        owned = sorted(subscription.owned_partitions, key=lambda p: (java_order(p.topic), p.partition))
        _write_partitions(writer, owned, "owned_partitions")
    if version >= 2:
        generation_id = subscription.generation_id
        writer.int32(-1 if generation_id is None else generation_id, "generation_id")
    if version >= 3:
        writer.nullable_string(subscription.rack_id, "rack_id")
    return bytes(writer.data)


def decode_assignment(data: bytes) -> Assignment:
    """Decode a ConsumerProtocolAssignment. Raises ProtocolError.

    `data` must not be empty. The coordinator sends empty data to a member for which the leader sent no
    assignment.
    """
    reader = Reader(data)
    _highest_known_version(reader.int16("version"))
    return Assignment(
        partitions=_read_partitions(reader, "assigned_partitions"),
        user_data=reader.nullable_bytes("user_data"),
    )


def encode_assignment(assignment: Assignment, version: int = HIGHEST_VERSION) -> bytes:
    """Encode a ConsumerProtocolAssignment. Versions and errors are as in `encode_subscription`.

    Topics are in the order of their first partitions, and the partitions of a topic in the given order.
    """
    writer = Writer()
    writer.int16(_highest_known_version(version), "version")
    _write_partitions(writer, assignment.partitions, "assigned_partitions")
    writer.nullable_bytes(assignment.user_data, "user_data")
    return bytes(writer.data)


def _highest_known_version(version: int) -> int:
    """Return the version as which data of this version is read. Raises ProtocolError for a negative one."""
    if version < 0:
        raise ProtocolError(f"version {version} is not supported, the lowest is 0", 0)
    return min(version, HIGHEST_VERSION)


def _read_generation(reader: Reader) -> int | None:
    """Return the generation, or None if it is negative, which means none."""
    generation_id = reader.int32("generation_id")
    return None if generation_id < 0 else generation_id


def _read_partitions(reader: Reader, field: str) -> tuple[TopicPartition, ...]:
    partitions: list[TopicPartition] = []
    for _ in range(reader.count(field)):
        topic = reader.string(f"{field}.topic")
        count = reader.count(f"{field}.partitions")
        partitions += map(TopicPartition, repeat(topic), reader.int32s(count, f"{field}.partition"))
    return tuple(partitions)


def _write_partitions(writer: Writer, partitions: Iterable[TopicPartition], field: str) -> None:
    numbers_by_topic = grouped(partitions)
    writer.int32(len(numbers_by_topic), field)
    for topic, numbers in numbers_by_topic.items():
        writer.string(topic, f"{field}.topic")
        writer.int32(len(numbers), f"{field}.partitions")
        for number in numbers:
            writer.int32(number, f"{field}.partition")


NO_GENERATION: Final = -1
"""The generation in a claim that has none."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions that a member claims to have owned."""

    partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION  # in which it owned them


def encode_sticky_user_data(claim: Claim) -> bytes:
    """Return the user data of a sticky member's subscription, in version 1. Raises ProtocolError."""
    writer = Writer()
    partitions = sorted(claim.partitions, key=lambda p: java_order(p.topic))
    _write_partitions(writer, partitions, "previous_assignment")
    writer.int32(claim.generation_id, "generation")
    return bytes(writer.data)


def decode_sticky_user_data(data: bytes | None) -> Claim:
    """Decode the user data of a sticky member's subscription, in either version.

    Unreadable data are an empty claim, as in Kafka. kafka-python writes its own version, an int16, before the
    data. Kafka cannot read such data, but this function skips the version.
    """
    for skipped_bytes in (0, 2):
        reader = Reader((data or b"")[skipped_bytes:])
        try:
            partitions = _read_partitions(reader, "previous_assignment")
        except ProtocolError:
            continue
        return Claim(partitions, _read_generation_or_default(reader))
    return Claim()


def encode_cooperative_user_data(generation_id: int) -> bytes:
    """Return the user data of a cooperative member's subscription, for leaders without KIP-792."""
    writer = Writer()
    writer.int32(generation_id, "generation")
    return bytes(writer.data)


def sticky_claim(subscription: Subscription) -> Claim:
    """Return the claim of a member on the eager protocol `sticky`, which is in the user data."""
    return decode_sticky_user_data(subscription.user_data)


def cooperative_claim(subscription: Subscription) -> Claim:
    """Return the claim of a member on the protocol `cooperative-sticky`: its owned partitions."""
    if subscription.generation_id is not None:
        return Claim(subscription.owned_partitions, subscription.generation_id)
    generation_id = _read_generation_or_default(Reader(subscription.user_data or b""))
    return Claim(subscription.owned_partitions, generation_id)


def _read_generation_or_default(reader: Reader) -> int:
    """Return the generation at the end of user data, or NO_GENERATION if it is missing."""
    try:
        return reader.int32("generation")
    except ProtocolError:
        return NO_GENERATION
