"""Cuts a log into micro-batches, and runs the core on them as the operator does.

Batch n has the watermark W(n), the greatest clock record in earlier batches. Each partition is read in order.
A row may be left for a later batch only if its append time is above W(n).
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from random import Random
from typing import Any
from zlib import crc32

import msgspec
from msgspec.structs import replace

from checkpoints import codec
from state.config import BrokerConfig, ConfigChange, CoordinatorConfig, ModernGroupConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, general_step, step
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import Effects, KafkaGroup
from state.kafka.group import DeadlineReached
from state.kafka.protocols import RENEWALS
from state.kafka.share_group import ShareGroup
from state.kafka.streams_group import StreamsGroup
from state.protocol import Outage, Received
from state.rocketmq.group import ScanDue
from state.timeline import Row, StepFunction, Timeline
from tests.harness import invariants
from tests.harness.common import apply_rows, kafka_effects
from tests.harness.random_log import GROUPS, PARTITION_OF, PARTITIONS

MAX_BATCHES = 12


class InjectedFault(Exception):
    """Raised by a step that was chosen to fail."""


@dataclass(frozen=True)
class Batch:
    """The rows and the watermark of one micro-batch."""

    rows: list[Row]
    watermark_ms: int


@dataclass
class LogResult:
    """The outcome of a log for each group: the encoded effects of every step, and the encoded state
    at the end.
    """

    steps: dict[str, list[bytes]] = field(default_factory=lambda: {group_id: [] for group_id in GROUPS})
    states: dict[str, bytes | None] = field(default_factory=dict)
    faults: int = 0


def cut(rows: Sequence[Row], seed: int) -> list[Batch]:
    """Cut a log into random batches. The last batch has no rows, only the last watermark."""
    random = Random(seed)
    batches = random.randint(1, MAX_BATCHES)
    times = [row.at_ms for row in rows] or [0]
    watermarks = [0]
    for _ in range(batches):
        clock_ms = random.choice((0, random.choice(times) + random.choice((-1, 0, 1, 10_000, 400_000))))
        watermarks.append(max(watermarks[-1], clock_ms))
    rows_of: list[list[Row]] = [[] for _ in watermarks]  # by batch
    for partition in range(PARTITIONS):
        batch = 0
        for row in rows:
            if PARTITION_OF[row.request.group_id] == partition:
                latest = next((n for n in range(batches) if watermarks[n] >= row.at_ms), batches - 1)
                batch = random.randint(batch, latest) if random.random() < 0.3 else batch
                rows_of[batch].append(row)
    return [Batch(*pair) for pair in zip(rows_of, watermarks, strict=True)]


def random_outages(rows: Sequence[Row], seed: int) -> list[Outage]:
    """Return up to three random outages."""
    random = Random(seed)
    outages: list[Outage] = []
    end_ms = 0
    for begin_ms in sorted(row.at_ms for row in random.sample(rows, min(len(rows), random.randint(0, 3)))):
        begin_ms += random.choice((-1, 0, 0, 1_000))
        if begin_ms >= end_ms:
            end_ms = begin_ms + random.choice((1, 1_000, 9_000, 70_000, 400_000))
            outages.append(Outage(begin_ms, end_ms))
    return outages


_SETTINGS: tuple[dict[str, Any], ...] = (
    {"group_initial_rebalance_delay_ms": 0},
    {"group_initial_rebalance_delay_ms": 9_000},
    {"group_min_session_timeout_ms": 20_000},
    {"group_max_session_timeout_ms": 9_999},
    {"group_max_size": 2},
    {"group_max_partitions": 3},
    {"offset_metadata_max_bytes": 0},
    {"offsets_retention_minutes": 1, "offsets_retention_check_interval_ms": 7_000},
    {"offsets_retention_check_interval_ms": 1_000},
    {"group_consumer_max_size": 1},
    {"group_consumer": ModernGroupConfig(session_timeout_ms=60_000, heartbeat_interval_ms=15_000)},
    {"rocketmq": BrokerConfig(scan_interval_ms=1_000, lock_max_live_ms=5_000)},
    {"rocketmq": BrokerConfig(scan_interval_ms=7_000, channel_expired_timeout_ms=20_000)},
    {"rocketmq": BrokerConfig(channel_expired_timeout_ms=400_000, lock_max_live_ms=300_000)},
)


def random_changes(
    rows: Sequence[Row], seed: int, config: CoordinatorConfig, outages: Sequence[Outage]
) -> list[ConfigChange]:
    """Return up to three random changes of the configuration, often at the beginning or the end of an outage.

    No change is within an outage, because its events are handled at its end.
    """
    random = Random(seed)
    edges_ms = [at_ms for outage in outages for at_ms in (outage.after_ms, outage.after_ms, outage.until_ms)]
    times = [*(row.at_ms for row in rows), *edges_ms * 5]
    changes = []
    for _ in range(random.randint(0, 3)):
        after_ms = random.choice(times) + random.choice((-1, 0, 0, 1, 5_000))
        ends_ms = (outage.until_ms for outage in outages if outage.after_ms < after_ms < outage.until_ms)
        changed = dataclasses.replace(config, **random.choice(_SETTINGS))
        changes.append(ConfigChange(next(ends_ms, after_ms), changed))
    return sorted(changes, key=lambda change: change.after_ms)


def run_whole(
    rows: Sequence[Row],
    until_ms: int,
    config: CoordinatorConfig,
    take_step: StepFunction = step,
    outages: Sequence[Outage] = (),
    changes: Sequence[ConfigChange] = (),
) -> LogResult:
    """Run the log in one piece, then fire the deadlines that are due at `until_ms`."""
    outcome = LogResult()
    for group_id in GROUPS:
        timeline = Timeline(group_id, None, config, step=take_step, outages=outages, changes=changes)
        apply_rows(timeline, rows).fire_until(until_ms)
        _record(outcome, timeline)
    return outcome


def run_batches(
    batches: Sequence[Batch],
    config: CoordinatorConfig,
    take_step: StepFunction = step,
    outages: Sequence[Outage] = (),
    changes: Sequence[ConfigChange] = (),
    known_early: int = 0,
) -> LogResult:
    """Run the log batch by batch, each from decoded state and its next deadline to encoded state.

    A batch knows an outage or a change of the configuration if it, or one of the next `known_early` batches,
    has a row or a watermark later than its beginning.

    Groups without rows are called as Spark calls them: if their deadline is before the watermark, not at it.
    The last batch calls every group, so that the final states can be compared.
    """
    outcome = LogResult()
    due: dict[str, int | None] = {}
    latest_ms = [max([batch.watermark_ms, *(row.at_ms for row in batch.rows)]) for batch in batches]
    for n, batch in enumerate(batches):
        known_until_ms = max(latest_ms[: n + 1 + known_early])
        known_outages = [outage for outage in outages if outage.after_ms < known_until_ms]
        known_changes = [change for change in changes if change.after_ms < known_until_ms]
        for group_id in GROUPS:
            rows = [row for row in batch.rows if row.request.group_id == group_id]
            state = outcome.states.get(group_id)
            timeline = Timeline(
                group_id,
                decode(group_id, state),
                config,
                restore=_restorer(group_id, state),
                step=take_step,
                outages=known_outages,
                changes=known_changes,
                due_ms=due.get(group_id),
            )
            due_ms = due.get(group_id)
            assert known_changes or due_ms == timeline.next_deadline_ms()
            timed_out = due_ms is not None and due_ms < batch.watermark_ms
            if rows or timed_out or n == len(batches) - 1:
                for row in rows:
                    timeline.apply(row)
                timeline.fire_until(batch.watermark_ms)
                due[group_id] = timeline.next_deadline_ms()
                _record(outcome, timeline)
    return outcome


def check_batching(rows: Sequence[Row], config: CoordinatorConfig, seed: int) -> None:
    """Check that each group has the same effects and the same final state however the log is cut (IV8).
    Effects are compared as bytes, and decoding and encoding a state must give the same bytes.

    Between the rows there are outages and changes of the configuration.
    """
    if not rows:
        return
    batches, outages = cut(rows, seed), random_outages(rows, seed)
    changes = random_changes(rows, seed, config, outages)
    whole = run_whole(rows, batches[-1].watermark_ms, config, checked_step, outages, changes)
    assert not whole.faults
    assert run_batches(batches, config, checked_step, outages, changes) == whole
    assert run_batches(batches, config, checked_step, outages, changes, seed % 3) == whole
    for group_id, state in whole.states.items():
        assert encode(decode(group_id, state)) == state


def check_lives(rows: Sequence[Row], config: CoordinatorConfig) -> list[Effects]:
    """Check that no epoch of a group decreases, and that its history has no gap. Return the effects."""
    all_effects: list[Effects] = []
    for group_id in GROUPS:
        timeline = Timeline(group_id, None, config, step=checked_step)
        last_incarnation, last_epochs = "", dict[str, int]()
        for row in rows:
            if row.request.group_id == group_id:
                timeline.apply(row)
                incarnation, epochs = _epochs(timeline.group)
                if incarnation == last_incarnation:
                    assert all(epochs.get(name, epoch) >= epoch for name, epoch in last_epochs.items())
                last_incarnation, last_epochs = incarnation, epochs
        effects = kafka_effects(timeline.drain_effects())
        all_effects += effects
        history = [entry for step_effects in effects for entry in step_effects.history]
        for _, entries in groupby(history, lambda entry: entry.incarnation):
            invariants.check_life(list(entries))
    return all_effects


def _epochs(group: AnyGroup | None) -> tuple[str, dict[str, int]]:
    """Return the group's incarnation, and its epochs that never decrease (those of static members may)."""
    if not isinstance(group, ConsumerGroup | ShareGroup | StreamsGroup):
        return "", {}
    epochs = {"group": group.group_epoch, "target": group.assignment_epoch}
    if isinstance(group, StreamsGroup):
        epochs["endpoints"] = group.endpoint_epoch
    if isinstance(group, ShareGroup):
        epochs |= {member.member_id: member.member_epoch for member in group.members.values()}
    return group.incarnation, epochs


def _record(outcome: LogResult, timeline: Timeline) -> None:
    group_id = timeline.group_id
    outcome.steps[group_id] += [encode_effects(effects) for effects in timeline.drain_effects()]
    outcome.states[group_id] = encode(timeline.group)
    outcome.faults += len(timeline.faults)


def encode_effects(effects: AnyEffects) -> bytes:
    return msgspec.json.encode(replace(effects, group=None, earliest_armed_ms=None))


def encode(group: AnyGroup | None) -> bytes | None:
    """Return a group as it is stored."""
    return None if group is None else codec.encode_group(group, None).group


def decode(group_id: str, state: bytes | None) -> AnyGroup | None:
    """Return the group in `state`, which `encode` returned, or None for no state."""
    if state is None:
        return None
    return codec.decode_group(group_id, codec.StoredGroup(codec.STATE_VERSION, None, state))


def _restorer(group_id: str, state: bytes | None) -> Callable[[], AnyGroup | None]:
    return lambda: decode(group_id, state)


def checked_step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Apply the core's step, and check the group's invariants. A renewal (a heartbeat's fast path) must have
    the effects of the general step, or change nothing.
    """
    copy, renewed = _renewed(group, event, now_ms, config)
    take_step = step if renewed is None else general_step
    effects = take_step(group, group_id, event, now_ms, config)
    if isinstance(effects.group, KafkaGroup):
        invariants.check(effects.group)
    if renewed is not None:
        assert renewed == effects
        assert encode(copy) == encode(effects.group)
    return effects


def _renewed(
    group: AnyGroup | None, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> tuple[AnyGroup | None, Effects | None]:
    """Apply a renewal to a copy of the group. Return the copy, and the effects or None if none applies."""
    if group is None or not isinstance(event, Received) or event.late_by_ms:
        return None, None
    renewal = RENEWALS.get((type(group), type(event.request)))
    if renewal is None:
        return None, None
    state = encode(group)
    copy = decode(group.group_id, state)
    renewed = renewal(copy, event.request, event.request_id, now_ms, config)
    assert renewed is not None or encode(copy) == state
    return copy, renewed


def failing_step(fails: Callable[[AnyEvent], bool]) -> StepFunction:
    """Return a step that does the core's work, and then raises for the events that `fails` selects."""

    def take_step(
        group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        effects = checked_step(group, group_id, event, now_ms, config)
        if fails(event):
            raise InjectedFault("chosen to fail")
        return effects

    return take_step


def failing_at(kind: type, number: int = 1) -> StepFunction:
    """Return a step that does the core's work, and then raises for the nth event of this kind."""
    events = count(1)
    return failing_step(lambda event: isinstance(event, kind) and next(events) == number)


def one_fails_in(seed: int, one_in: int) -> Callable[[AnyEvent], bool]:
    """Return a function that selects one in `one_in` requests and deadlines, the same in every run."""

    def fails(event: AnyEvent) -> bool:
        if isinstance(event, Received):
            name = event.request_id
        elif isinstance(event, DeadlineReached | ScanDue | Outage):
            name = str(event)
        else:
            return False
        return crc32(f"{seed} {name}".encode()) % one_in == 0

    return fails
