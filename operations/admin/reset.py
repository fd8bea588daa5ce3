"""The plan of a reset of offsets: the groups that can be reset, the selected partitions, and the new offset
of each. This module changes no group. Source: GroupOffsetsResetter.
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
    """The error of a reset that cannot be planned. The caller must not change any group."""


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
    """The offsets from which the new offsets are planned."""

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

    `FromFile` names its own partitions, so `partitions` is ignored. Offsets that a user names, or
    shifts to, are limited to the log's bounds.
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
            return _plan_within_bounds(dict.fromkeys(ordered, offset), bounds)
        case ShiftBy(number):
            return _plan_within_bounds({p: _committed_offset(p, known) + number for p in ordered}, bounds)
        case ToTime():
            return _plan_at_time(ordered, known)
        case FromFile(plan):
            return _plan_within_bounds(dict(sorted(plan.get(group_id, {}).items())), bounds)


def _committed_offset(partition: TopicPartition, known: KnownOffsets) -> int:
    """Return the committed offset of a partition. Raise ResetError if there is none."""
    if partition not in known.committed:
        name = partition_name(partition)
        raise ResetError(
            f"Cannot shift offset for partition {name} since there is no current committed offset"
        )
    return known.committed[partition]


def _plan_within_bounds(
    requested: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, LogBounds]
) -> ResetPlan:
    """Return a plan with the requested offsets, limited to the log's bounds. Warn of each limited offset."""
    plan = ResetPlan({}, [])
    for partition, offset in requested.items():
        log = bounds[partition]
        limited = plan.offsets[partition] = max(log.earliest, min(offset, log.latest))
        if limited != offset:
            side = "higher than latest" if offset > limited else "lower than earliest"
            plan.warnings.append(
                f"New offset ({offset}) is {side} offset for topic partition {partition_name(partition)}. "
                f"Value will be set to {limited}."
            )
    return plan


def _plan_at_time(partitions: Iterable[TopicPartition], known: KnownOffsets) -> ResetPlan:
    """Return the plan of `ToTime`. Warn of each partition without a record at or after the time."""
    plan = ResetPlan({}, [])
    for partition in partitions:
        offset = known.at_time.get(partition)
        if offset is None:
            plan.warnings.append(
                f"Partition {partition.partition} from topic {partition.topic} has no record that late. "
                "Falling back to latest known offset."
            )
        plan.offsets[partition] = known.bounds[partition].latest if offset is None else offset
    return plan


def partition_name(partition: TopicPartition) -> str:
    """Return `topic-0`, as Kafka writes it."""
    return f"{partition.topic}-{partition.partition}"


INACTIVE = frozenset({GroupState.EMPTY.value, DEAD})


def prepare_reset(
    requests: GroupRequests,
    log: LogOffsets,
    groups: KnownTypes,
    scenario: Scenario,
    topics: Sequence[TopicChoice] | None,
) -> tuple[dict[str, ResetPlan], list[str]]:
    """Plan the reset of these groups, without changing anything. Return the plan of each group, and a
    sentence for each group that cannot be reset, whose plan is empty.

    `topics` None selects all partitions with a committed offset. Raises ResetError, for all groups, if a
    partition does not exist or has no offset to shift, and ClientError or KafkaError if the coordinator or a
    broker does not respond.
    """
    described = describe_groups(requests, groups, with_offsets=_needs_committed(scenario, topics))
    share_groups = [g for g, d in described.groups.items() if d.group_type == "share"]
    active = {g: d.state for g, d in described.groups.items() if d.state not in INACTIVE}
    resettable = [group_id for group_id in described.groups if group_id not in (*active, *share_groups)]
    partitions_of = _selected_partitions(log, resettable, scenario, topics, described.offsets)
    all_partitions = {partition for partitions in partitions_of.values() for partition in partitions}
    if missing := all_partitions - log.filter_existing(all_partitions):
        raise _missing_partitions_error(sorted(missing))
    bounds = log.bounds(all_partitions)
    at_time = log.offsets_at(all_partitions, scenario.at_ms) if isinstance(scenario, ToTime) else {}
    plans = {group_id: ResetPlan({}, []) for group_id in groups}
    for group_id, partitions in partitions_of.items():
        offsets = described.offsets.get(group_id, GroupOffsets())
        committed = {p: c.offset for p, c in offsets.committed.items()}
        plans[group_id] = plan_reset(scenario, group_id, partitions, KnownOffsets(bounds, committed, at_time))
    errors = [
        *described.refusals(),
        *(
            f"Assignments can only be reset if the group '{group_id}' is inactive, "
            f"but the current state is {state}."
            for group_id, state in active.items()
        ),
        *(
            f"Group '{group_id}' is a share group: reset it with kafka-share-groups."
            for group_id in share_groups
        ),
    ]
    if isinstance(scenario, FromFile):
        without_plan = [group_id for group_id in resettable if group_id not in scenario.plan]
        errors += [f"No reset plan for group {group_id} found." for group_id in without_plan]
    return plans, errors


def _needs_committed(scenario: Scenario, topics: Sequence[TopicChoice] | None) -> bool:
    """Return True if the plan depends on the groups' committed offsets."""
    return not isinstance(scenario, FromFile) and (
        topics is None or isinstance(scenario, (ShiftBy, ToCurrent))
    )


def _selected_partitions(
    log: LogOffsets,
    group_ids: Iterable[str],
    scenario: Scenario,
    topics: Sequence[TopicChoice] | None,
    offsets: Mapping[str, GroupOffsets],
) -> dict[str, list[TopicPartition]]:
    """Return the partitions to reset, by group. Raises ResetError."""
    if isinstance(scenario, FromFile):
        return {group_id: sorted(scenario.plan.get(group_id, {})) for group_id in group_ids}
    if topics is None:
        return {group_id: sorted(offsets[group_id].committed) for group_id in group_ids}
    chosen = choose_partitions(topics, log.existing({choice.topic for choice in topics}))
    if chosen.missing:
        raise _missing_partitions_error(chosen.missing)
    return dict.fromkeys(group_ids, chosen.partitions)


def _missing_partitions_error(missing: Iterable[TopicPartition]) -> ResetError:
    """Return the error that these partitions do not exist."""
    # Partition -1 stands for a topic that does not exist.
    names = ",".join(p.topic if p.partition < 0 else partition_name(p) for p in missing)
    return ResetError(f'{UNKNOWN_TOPIC_OR_PARTITION}: The partitions "{names}" do not exist')
