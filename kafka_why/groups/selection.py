"""Parsing of the groups, partitions, states and types that a user selects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_why.contract.kafka.history import NOT_READY
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.list_groups import ROCKETMQ_TYPE, TYPES
from kafka_why.numbers import INT32_MAX, parse_whole_number
from kafka_why.rocketmq_group import GroupState as RocketMqState

# The states of Kafka's tool and those of RocketMQ's groups.
_STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Assigning",
    "Reconciling",
    NOT_READY,
    *RocketMqState,
)
_TYPES = (*TYPES.values(), ROCKETMQ_TYPE)


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """A `--topic` option: the topic, and the partitions named; None for all of them."""

    topic: str
    partitions: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The selected partitions, and those (or whole topics: partition -1) that do not exist."""

    partitions: list[TopicPartition]
    missing: list[TopicPartition]


def parse_states(text: str) -> frozenset[str]:
    """Return group states from `stable,empty`, ignoring case; none from "". Raises ValueError."""
    return _parse_names(text, _STATES, "state list", "states")


def parse_types(text: str) -> frozenset[str]:
    """Return group types from `classic,consumer`, ignoring case; none from "". Raises ValueError."""
    return _parse_names(text, _TYPES, "types list", "types")


def parse_protocols(text: str) -> frozenset[str]:
    """Return protocol types from `consumer,connect`; none from ""."""
    return frozenset(name.strip() for name in text.split(",")) if text else frozenset()


def _parse_names(text: str, valid: Sequence[str], given: str, what: str) -> frozenset[str]:
    known = {name.lower(): name for name in valid}
    wanted = [name.strip().lower() for name in text.split(",")] if text else []
    if not known.keys() >= set(wanted):
        raise ValueError(f"Invalid {given} '{text}'. Valid {what} are: {', '.join(valid)}")
    return frozenset(known[name] for name in wanted)


def parse_topic(text: str) -> TopicChoice:
    """Parse `topic` or `topic:0,1,2`. Raises ValueError."""
    topic, colon, numbers = text.partition(":")
    if not topic or (colon and not numbers) or ":" in numbers:
        raise ValueError(f"Invalid topic arg '{text}', expected topic name and partitions")
    if not colon:
        return TopicChoice(topic, None)
    return TopicChoice(topic, tuple(_parse_partition(number, text) for number in numbers.split(",")))


def _parse_partition(number: str, text: str) -> int:
    try:
        return parse_whole_number(number, 0, INT32_MAX)
    except ValueError:
        raise ValueError(f"Invalid partition '{number}' specified in topic arg '{text}'") from None


def choose_partitions(choices: Sequence[TopicChoice], existing: Mapping[str, frozenset[int]]) -> Chosen:
    """Return the partitions of these choices, each once, in order. `existing`: partitions by topic."""
    chosen: set[TopicPartition] = set()
    missing: set[TopicPartition] = set()
    for choice in choices:
        there = existing.get(choice.topic, frozenset())
        if choice.partitions is None and not there:
            missing.add(TopicPartition(choice.topic, -1))
        for number in there if choice.partitions is None else choice.partitions:
            (chosen if number in there else missing).add(TopicPartition(choice.topic, number))
    return Chosen(sorted(chosen), sorted(missing))
