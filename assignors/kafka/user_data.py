"""What a member says it owned, and since which generation: the user data of Kafka's sticky assignors.

Sticky members give everything up before they join, so they tell of it in their user data: the partitions and,
since version 1, an int32 generation (StickyAssignor). Cooperative members join with what they own, in the
field of KIP-429; the generation is in a field too since KIP-792, before that it was the int32 that is all of
their user data (CooperativeStickyAssignor).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from assignors.kafka.api import Subscription, TopicPartition
from assignors.kafka.members import java_order
from assignors.kafka.wire import ProtocolError, Reader, Writer

NO_GENERATION: Final = -1


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions a member says it owned, and in which generation, `NO_GENERATION` if it does not say."""

    partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION


def encode_sticky_user_data(claim: Claim) -> bytes:
    """What a sticky member puts in its subscription, in version 1, topics sorted.

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
    """Read either version. Data that cannot be read claim nothing, as in Kafka: nobody fails for them.

    kafka-python puts an int16 in front, its version, so that Kafka can not read it; here it is skipped.
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
    """What a cooperative member puts in its subscription for leaders that do not know KIP-792."""
    writer = Writer()
    writer.int32(generation_id, "generation")
    return bytes(writer.data)


def sticky_claim(subscription: Subscription) -> Claim:
    """The claim of a member of the eager `sticky`: its user data, never its owned partitions."""
    return decode_sticky_user_data(subscription.user_data)


def cooperative_claim(subscription: Subscription) -> Claim:
    """The claim of a member of `cooperative-sticky`: its owned partitions."""
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
