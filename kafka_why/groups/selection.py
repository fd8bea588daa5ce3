"""Parsing of what a user selects: groups, partitions, states, types, times and durations."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kafka_why.contract.kafka.history import NOT_READY
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.list_groups import ROCKETMQ_TYPE, TYPES
from kafka_why.numbers import INT32_MAX, parse_whole_number
from kafka_why.rocketmq_group import RocketMqGroupState

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
    *RocketMqGroupState,
)
_TYPES = (*TYPES.values(), ROCKETMQ_TYPE)


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """A `--topic` option: the topic and its named partitions, or None for all partitions."""

    topic: str
    partitions: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ChosenPartitions:
    """The selected partitions, and those that do not exist (partition -1 for a whole topic)."""

    partitions: list[TopicPartition]
    missing: list[TopicPartition]


def parse_states(text: str) -> frozenset[str]:
    """Return group states from text such as `stable,empty`, ignoring case; "" gives none.

    Raises ValueError.
    """
    return _parse_names(text, _STATES, "state list", "states")


def parse_types(text: str) -> frozenset[str]:
    """Return group types from text such as `classic,consumer`, ignoring case. "" gives none. Raises
    ValueError.
    """
    return _parse_names(text, _TYPES, "types list", "types")


def parse_protocols(text: str) -> frozenset[str]:
    """Return protocol types from text such as `consumer,connect`. "" gives none."""
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


def choose_partitions(
    choices: Sequence[TopicChoice], existing: Mapping[str, frozenset[int]]
) -> ChosenPartitions:
    """Return the chosen partitions in order, without duplicates. `existing` has each topic's partitions."""
    chosen: set[TopicPartition] = set()
    missing: set[TopicPartition] = set()
    for choice in choices:
        there = existing.get(choice.topic, frozenset())
        if choice.partitions is None and not there:
            missing.add(TopicPartition(choice.topic, -1))
        for number in there if choice.partitions is None else choice.partitions:
            (chosen if number in there else missing).add(TopicPartition(choice.topic, number))
    return ChosenPartitions(sorted(chosen), sorted(missing))


# Times and durations in the formats of kafka-consumer-groups.

_NUMBER = r"[-+]?[0-9]{1,15}"
_DURATION = re.compile(
    rf"(?P<sign>[-+]?)P(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?=[-+\d])(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?"
    rf"(?:(?P<seconds>{_NUMBER})(?:[.,](?P<fraction>\d{{0,9}}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_MAX_DURATION_MS = 10**15
_UNITS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def parse_datetime_ms(text: str) -> int:
    """Return milliseconds since 1970 from `YYYY-MM-DDTHH:mm:SS.sss`.

    The time is in UTC unless an offset follows (`Z`, `+02:00`, `+02`). Raises ValueError. Source:
    Utils.getDateTime; unlike there, the milliseconds may be omitted.
    """
    if "T" not in text:
        raise ValueError(f"'{text}' is not a date and time: there is no 'T' between the two")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a date and time like 2026-01-31T18:30:00.000") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000


def parse_duration_ms(text: str) -> int:
    """Return milliseconds from `PnDTnHnMn.nS`; each number, and the whole, may have a sign.

    Raises ValueError. Source: java.time.Duration.parse.
    """
    match = _DURATION.fullmatch(text)
    if match is None or all(match[unit] is None for unit in _UNITS_MS):
        raise ValueError(f"'{text}' is not a duration like P1DT2H30M or PT15M")
    total_ms = sum(int(match[unit] or 0) * unit_ms for unit, unit_ms in _UNITS_MS.items())
    fraction_ms = int((match["fraction"] or "").ljust(3, "0")[:3])
    total_ms += -fraction_ms if (match["seconds"] or "").startswith("-") else fraction_ms
    if abs(total_ms) > _MAX_DURATION_MS:
        raise ValueError(f"'{text}' is a duration of more than 30,000 years")
    return -total_ms if match["sign"] == "-" else total_ms
