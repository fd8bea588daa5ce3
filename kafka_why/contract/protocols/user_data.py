"""The user data of Kafka's sticky assignors: the partitions a member claims, and since which generation.

Sticky members revoke all partitions before they join, so their user data names those partitions and, since
version 1, an int32 generation (StickyAssignor). Cooperative members join with their owned partitions, in the
field of KIP-429. Their generation is a field since KIP-792; before, their user data was this one int32
(CooperativeStickyAssignor).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kafka_why.contract.protocols.subscriptions import Subscription, TopicPartition, java_order
from kafka_why.contract.protocols.wire import ProtocolError, Reader, Writer

NO_GENERATION: Final = -1


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions a member claims to have owned, and the generation; `NO_GENERATION` if it sends none."""

    partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION


def encode_sticky_user_data(claim: Claim) -> bytes:
    """Return the user data of a sticky member's subscription, in version 1, topics sorted.

    Raises ProtocolError for values the format cannot hold.
    """
    numbers: dict[str, list[int]] = {}
    for topic, number in claim.partitions:
        numbers.setdefault(topic, []).append(number)
    writer = Writer()
    writer.int32(len(numbers), "previous_assignment")
    for topic in sorted(numbers, key=java_order):
        writer.string(topic, "topic")
        writer.int32(len(numbers[topic]), "partitions")
        for number in numbers[topic]:
            writer.int32(number, "partition")
    writer.int32(claim.generation_id, "generation")
    return bytes(writer.data)


def decode_sticky_user_data(data: bytes | None) -> Claim:
    """Read either version. Unreadable data claim no partition and raise no error, as in Kafka.

    kafka-python puts its own version, an int16, in front. Kafka cannot read that; this function skips it.
    """
    for start in (0, 2):
        reader = Reader((data or b"")[start:])
        try:
            partitions = tuple(_read_assignment(reader))
        except ProtocolError:
            continue
        return Claim(partitions, _read_generation(reader))
    return Claim()


def encode_cooperative_user_data(generation_id: int) -> bytes:
    """Return a cooperative member's user data, which leaders without KIP-792 read."""
    writer = Writer()
    writer.int32(generation_id, "generation")
    return bytes(writer.data)


def sticky_claim(subscription: Subscription) -> Claim:
    """Return the claim of a member of the eager `sticky`: its user data, never its owned partitions."""
    return decode_sticky_user_data(subscription.user_data)


def cooperative_claim(subscription: Subscription) -> Claim:
    """Return the claim of a member of `cooperative-sticky`: its owned partitions."""
    if subscription.generation_id is not None:
        return Claim(subscription.owned_partitions, subscription.generation_id)
    generation_id = _read_generation(Reader(subscription.user_data or b""))
    return Claim(subscription.owned_partitions, generation_id)


def _read_assignment(reader: Reader) -> Iterable[TopicPartition]:
    for _ in range(reader.count("previous_assignment")):
        topic = reader.string("topic")
        for _ in range(reader.count("partitions")):
            yield TopicPartition(topic, reader.int32("partition"))


def _read_generation(reader: Reader) -> int:
    try:
        return reader.int32("generation")
    except ProtocolError:
        return NO_GENERATION
