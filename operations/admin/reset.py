"""Planning of a reset: the new offset of each partition of a group, from the known bounds of the log.

This module is pure: it sends and changes nothing. Source: GroupOffsetsResetter.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.lag.definitions import LogBounds


class ResetError(ValueError):
    """The reset cannot be planned; no group must be changed."""


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """The first offset that is still in the log."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """The end of the log."""


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """The committed offset, or the end of the log if there is none."""


@dataclass(frozen=True, slots=True)
class ToOffset:
    """The given offset in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """The committed offset plus this number, which may be negative."""

    number: int


@dataclass(frozen=True, slots=True)
class ToTime:
    """The first record with a timestamp at or after this time; the end of the log if there is none."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class FromFile:
    """The offsets of a plan, by group."""

    plan: Mapping[str, Mapping[TopicPartition, int]]


Scenario: TypeAlias = ToEarliest | ToLatest | ToCurrent | ToOffset | ShiftBy | ToTime | FromFile


@dataclass(frozen=True, slots=True)
class KnownOffsets:
    """The input of a plan: the bounds of its partitions, their committed offsets, and for `ToTime` the first
    offsets at or after the time. Such an offset is None or missing if no record is that late.
    """

    bounds: Mapping[TopicPartition, LogBounds]
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    at_time: Mapping[TopicPartition, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The new offset of each partition, and the warnings for the user."""

    offsets: dict[TopicPartition, int]
    warnings: list[str]


def plan_reset(
    scenario: Scenario, group_id: str, partitions: Iterable[TopicPartition], known: KnownOffsets
) -> ResetPlan:
    """Return the new offsets of a group. `FromFile` has its own partitions.

    Offsets that a user names, or shifts to, are limited to the log's bounds. Raises ResetError.
    """
    ordered = sorted(partitions)
    bounds = known.bounds
    match scenario:
        case ToEarliest():
            return ResetPlan({p: bounds[p].earliest for p in ordered}, [])
        case ToLatest():
            return ResetPlan({p: bounds[p].latest for p in ordered}, [])
        case ToCurrent():
            return ResetPlan({p: known.committed.get(p, bounds[p].latest) for p in ordered}, [])
        case ToOffset(offset):
            return _within_bounds(dict.fromkeys(ordered, offset), bounds)
        case ShiftBy(number):
            return _within_bounds({p: _committed(p, known) + number for p in ordered}, bounds)
        case ToTime():
            return _at_time(ordered, known)
        case FromFile(plan):
            return _within_bounds(dict(sorted(plan.get(group_id, {}).items())), bounds)


def _committed(partition: TopicPartition, known: KnownOffsets) -> int:
    if partition not in known.committed:
        name = partition_name(partition)
        raise ResetError(
            f"Cannot shift offset for partition {name} since there is no current committed offset"
        )
    return known.committed[partition]


def _within_bounds(
    wanted: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, LogBounds]
) -> ResetPlan:
    plan = ResetPlan({}, [])
    for partition, offset in wanted.items():
        within = bounds[partition]
        limited = plan.offsets[partition] = max(within.earliest, min(offset, within.latest))
        if limited != offset:
            side = "higher than latest" if offset > limited else "lower than earliest"
            plan.warnings.append(
                f"New offset ({offset}) is {side} offset for topic partition {partition_name(partition)}. "
                f"Value will be set to {limited}."
            )
    return plan


def _at_time(partitions: Iterable[TopicPartition], known: KnownOffsets) -> ResetPlan:
    plan = ResetPlan({}, [])
    for partition in partitions:
        found = known.at_time.get(partition)
        if found is None:
            plan.warnings.append(
                f"Partition {partition.partition} from topic {partition.topic} has no record that late. "
                "Falling back to latest known offset."
            )
        plan.offsets[partition] = known.bounds[partition].latest if found is None else found
    return plan


def partition_name(partition: TopicPartition) -> str:
    """Return `topic-0`, as Kafka writes it."""
    return f"{partition.topic}-{partition.partition}"
