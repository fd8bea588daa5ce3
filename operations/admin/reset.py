"""Planning of a reset: the groups that can be reset, the selected partitions with their known bounds, and the
new offset of each. Nothing is changed here. Source: GroupOffsetsResetter.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kafka_why.contract.kafka.history import DEAD, GroupState
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.gather import KnownTypes, LogOffsets, describe_groups
from kafka_why.groups.list_groups import GroupOffsets, TopicChoice, choose_partitions
from kafka_why.groups.render import UNKNOWN_TOPIC_OR_PARTITION
from kafka_why.lag.definitions import LogBounds
from operations.admin.requests import GroupRequests


class ResetError(ValueError):
    """The error of a reset that cannot be planned. No group must be changed."""


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """The first offset that is still in the log."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """The end of the log."""


@dataclass(frozen=True, slots=True)
class ToCurrent:
    """The committed offset, or the end of the log without one."""


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
    """The first record at or after a time, or the end of the log if there is none."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class FromFile:
    """The offsets of a plan, by group."""

    plan: Mapping[str, Mapping[TopicPartition, int]]


Scenario: TypeAlias = ToEarliest | ToLatest | ToCurrent | ToOffset | ShiftBy | ToTime | FromFile


@dataclass(frozen=True, slots=True)
class KnownOffsets:
    """The input of a plan."""

    bounds: Mapping[TopicPartition, LogBounds]
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    # For `ToTime`, first offsets at or after the time; None or missing if no record is that late.
    at_time: Mapping[TopicPartition, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The new offsets, and the warnings for the user."""

    offsets: dict[TopicPartition, int]
    warnings: list[str]


def plan_reset(
    scenario: Scenario, group_id: str, partitions: Iterable[TopicPartition], known: KnownOffsets
) -> ResetPlan:
    """Return the new offsets of a group. Raises ResetError.

    `FromFile` has its own partitions. Offsets that a user names, or shifts to, are limited to the log's
    bounds.
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


INACTIVE = frozenset({GroupState.EMPTY.value, DEAD})


@dataclass(frozen=True, slots=True)
class PreparedReset:
    """The plan of each group. A group that cannot be reset has an empty plan and a sentence in `errors`."""

    plans: dict[str, ResetPlan]
    errors: list[str]


def prepare_reset(
    requests: GroupRequests,
    log: LogOffsets,
    groups: KnownTypes,
    scenario: Scenario,
    topics: Sequence[TopicChoice] | None,
) -> PreparedReset:
    """Plan the reset of these groups, without changing anything.

    `topics` None selects all partitions with a committed offset. Raises ResetError, for all groups, if a
    partition does not exist or has no offset to shift, and ClientError or KafkaError if the coordinator or a
    broker does not respond.
    """
    described = describe_groups(requests, groups, with_offsets=_needs_committed(scenario, topics))
    shares = [g for g, d in described.groups.items() if d.group_type == "share"]
    active = {g: d.state for g, d in described.groups.items() if d.state not in INACTIVE}
    inactive = [group_id for group_id in described.groups if group_id not in (*active, *shares)]
    partitions = _partitions(log, inactive, scenario, topics, described.offsets)
    everything = {p for wanted in partitions.values() for p in wanted}
    if missing := everything - log.filter_existing(everything):
        raise _not_there(sorted(missing))
    bounds = log.bounds(everything)
    at_time = log.at_time(everything, scenario.at_ms) if isinstance(scenario, ToTime) else {}
    plans = {group_id: ResetPlan({}, []) for group_id in groups}
    for group_id, wanted in partitions.items():
        offsets = described.offsets.get(group_id, GroupOffsets())
        committed = {p: c.offset for p, c in offsets.committed.items()}
        plans[group_id] = plan_reset(scenario, group_id, wanted, KnownOffsets(bounds, committed, at_time))
    errors = [
        *described.refusals(),
        *(
            f"Assignments can only be reset if the group '{group_id}' is inactive, "
            f"but the current state is {state}."
            for group_id, state in active.items()
        ),
    ]
    errors += [
        f"Group '{group_id}' is a share group: reset it with kafka-share-groups." for group_id in shares
    ]
    if isinstance(scenario, FromFile):
        lost = [group_id for group_id in inactive if group_id not in scenario.plan]
        errors += [f"No reset plan for group {group_id} found." for group_id in lost]
    return PreparedReset(plans, errors)


def _needs_committed(scenario: Scenario, topics: Sequence[TopicChoice] | None) -> bool:
    if isinstance(scenario, FromFile):
        return False
    return topics is None or isinstance(scenario, (ShiftBy, ToCurrent))


def _partitions(
    log: LogOffsets,
    group_ids: Iterable[str],
    scenario: Scenario,
    topics: Sequence[TopicChoice] | None,
    offsets: Mapping[str, GroupOffsets],
) -> dict[str, list[TopicPartition]]:
    if isinstance(scenario, FromFile):
        return {group_id: sorted(scenario.plan.get(group_id, {})) for group_id in group_ids}
    if topics is None:
        return {group_id: sorted(offsets[group_id].committed) for group_id in group_ids}
    chosen = choose_partitions(topics, log.existing({choice.topic for choice in topics}))
    if chosen.missing:
        raise _not_there(chosen.missing)
    return dict.fromkeys(group_ids, chosen.partitions)


def _not_there(missing: Iterable[TopicPartition]) -> ResetError:
    names = ",".join(p.topic if p.partition < 0 else partition_name(p) for p in missing)
    return ResetError(f'{UNKNOWN_TOPIC_OR_PARTITION}: The partitions "{names}" do not exist')
