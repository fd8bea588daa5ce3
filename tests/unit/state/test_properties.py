"""Properties of every log: the log alone decides, no request is lost, and a fault affects only its
own group.
"""

from collections.abc import Sequence
from itertools import groupby
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.messages import ErrorCode, ReleaseGroup
from state import timeline
from state.config import Configs, CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import Effects
from state.kafka.group import DeadlineReached
from state.protocol import Received
from state.timeline import Row, StepFunction, Timeline
from tests.harness import batches
from tests.harness.common import classic_group, kafka_effects
from tests.harness.examples import examples
from tests.harness.invariants import check_life
from tests.harness.random_log import GROUPS, realise, script

seeds = st.integers(0, 2**32 - 1)
configs = st.builds(
    CoordinatorConfig,
    group_initial_rebalance_delay_ms=st.sampled_from((3_000, 0)),
    group_max_size=st.sampled_from((2**31 - 1, 2**31 - 1, 3, 2)),
    offsets_retention_minutes=st.sampled_from((10_080, 1, 5)),
    offsets_retention_check_interval_ms=st.sampled_from((600_000, 7_000)),
)
logs = st.tuples(seeds, st.integers(20, 300), configs)
Log = tuple[int, int, CoordinatorConfig]


def rows_of(log: Log) -> tuple[list[Row], CoordinatorConfig]:
    seed, length, config = log
    return realise(script(seed, length), config), config


def _under(configs: Configs, take_step: StepFunction) -> StepFunction:
    """Return the step, which checks that it is given the configuration in force at its time."""

    def checked(
        group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        assert config is configs.at(now_ms), f"{event} at {now_ms}"
        return take_step(group, group_id, event, now_ms, config)

    return checked


def _check_words(steps: Sequence[Effects], asked: set[str], group: ClassicGroup | None) -> None:
    answered = [reply.response.request for effects in steps for reply in effects.replies]
    assert len(answered) == len(set(answered)), "a request was answered twice"
    history = [entry for effects in steps for entry in effects.history]
    superseded = {entry.superseded for entry in history if entry.superseded is not None}
    parked = {to.request for to in group.parked()} if group is not None else set()
    assert not superseded & set(answered)
    assert not parked & (superseded | set(answered))
    assert asked == parked | superseded | set(answered)
    for _, entries in groupby(history, lambda entry: entry.incarnation):
        check_life(list(entries))
    assert len({entry.incarnation for entry in history}) == sum(entry.seq == 1 for entry in history)


def check_failed_requests(log: Log, seed: int) -> None:
    """Check that a request whose step raises is answered with an error, and has no other effect on its
    group.
    """
    rows, config = rows_of(log)
    fails = batches.chosen(seed, 5)

    def request_fails(event: AnyEvent) -> bool:
        return isinstance(event, Received) and fails(event)

    until_ms = rows[-1].at_ms + 15_000
    rest = [row for row in rows if not request_fails(Received(row.request_id, row.request))]
    for group_id in GROUPS:
        failing = Timeline(group_id, None, config, step=batches.failing_step(request_fails))
        without = Timeline(group_id, None, config)
        for run, log_rows in ((failing, rows), (without, rest)):
            for row in log_rows:
                if row.request.group_id == group_id:
                    run.apply(row)
            run.fire_until(until_ms)
        steps = kafka_effects(failing.drain_effects())
        failed = [effects for effects in steps if effects.rules == ["F1"]]
        assert len(failed) == len(failing.faults)
        answers = [reply.response for effects in failed for reply in effects.replies]
        assert {answer.error_code for answer in answers} <= {ErrorCode.UNKNOWN_SERVER_ERROR}
        assert {answer.request for answer in answers} == {
            row.request_id
            for row in rows
            if row not in rest
            and row.request.group_id == group_id
            and not isinstance(row.request, TopicMetadata)
        }
        others = [batches.encode_words(effects) for effects in steps if effects not in failed]
        assert others == [batches.encode_words(effects) for effects in kafka_effects(without.drain_effects())]
        for group in (failing.group, without.group):
            if group is not None:
                group.clock_ms = 0  # the failed request was here, at its time
        assert failing.group == without.group


@given(logs, seeds, st.sampled_from((0, 0, 9, 60)))
@examples(100)
def test_batching_does_not_change_the_outcome(log: Log, seed: int, one_in: int) -> None:
    """However a log is cut, each group has the same effects and the same final state, also if steps fail, and
    if a batch knows an outage or a change of the configuration before it has to.
    """
    rows, config = rows_of(log)
    take_step = batches.failing_step(batches.chosen(seed, one_in)) if one_in else batches.checked_step
    cut = batches.cut(rows, seed)
    outages = batches.outages(rows, seed)
    changes = batches.changes(rows, seed, config, outages)
    whole = batches.run_whole(rows, cut[-1].watermark_ms, config, take_step, outages, changes)
    assert batches.run_batches(cut, config, take_step, outages, changes, seed % 3) == whole


@given(logs, seeds)
@examples(150)
def test_invariants_hold_and_every_request_is_answered(log: Log, seed: int) -> None:
    """Invariants hold after each step, generations never decrease, history has no gap, and no request is
    lost.

    This holds even if append times step back and deadlines fire before older requests. Each step is taken
    under the configuration in force at its time.
    """
    rows, config = rows_of(log)
    random = Random(seed)
    outages = batches.outages(rows, seed)
    configs = Configs(config, batches.changes(rows, seed, config, outages))
    broken_clock = random.random() < 0.5
    for group_id in GROUPS:
        asked = [row for row in rows if row.request.group_id == group_id]
        take_step = _under(configs, batches.checked_step)
        timeline = Timeline(group_id, None, config, step=take_step, outages=outages, changes=configs.changes)
        for row in asked:
            if broken_clock and random.random() < 0.2:
                timeline.fire_until(row.at_ms + random.randint(0, 60_000))
                row = replace(row, at_ms=row.at_ms - random.randint(0, 10_000))
            timeline.apply(row)
        timeline.fire_until(rows[-1].at_ms + 15_000)
        assert not timeline.faults, timeline.faults[0].traceback
        _check_words(
            kafka_effects(timeline.drain_effects()),
            {row.request_id for row in asked if not isinstance(row.request, TopicMetadata)},
            classic_group(timeline.group),
        )


@given(logs, seeds, st.sampled_from((1, 3, timeline.JOURNAL_MAX_STEPS)))
@examples(60)
def test_failed_request_does_not_affect_others(log: Log, seed: int, journal: int) -> None:
    defaults = timeline.Timeline.__init__.__kwdefaults__
    assert defaults is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defaults, "journal_max_steps", journal)
        check_failed_requests(log, seed)


@given(logs, st.integers(1, 12))
@examples(40)
def test_failed_deadline_quarantines_its_group(log: Log, nth: int) -> None:
    """A deadline whose step raises stops its group: parked requests are answered, and no other
    deadline fires.
    """
    rows, config = rows_of(log)
    fired = 0

    def take_step(
        group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        nonlocal fired
        effects = batches.checked_step(group, group_id, event, now_ms, config)
        if isinstance(event, DeadlineReached):
            fired += 1
            if fired == nth:
                raise batches.InjectedFault
        return effects

    group_id = GROUPS[0]
    timeline = Timeline(group_id, None, config, step=take_step)
    for row in rows:
        if row.request.group_id != group_id or isinstance(row.request, ReleaseGroup):
            continue
        group = classic_group(timeline.group)
        quarantined = group is not None and group.quarantined is not None
        timeline.apply(row)
        steps = kafka_effects(timeline.drain_effects())
        if quarantined:
            answers = [reply.response.error_code for effects in steps for reply in effects.replies]
            is_answered = not isinstance(row.request, TopicMetadata)
            assert answers == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * is_answered
            assert not [entry for effects in steps for entry in effects.history]
            assert group is not None
            assert not list(group.parked())
    if timeline.faults:
        assert timeline.next_deadline_ms() is None


def test_random_classic_logs_cover_the_rules() -> None:
    """The logs above must reach rows of docs/rules.md that need a long sequence of moves."""
    deep = {"C1", "C2", "C3", "C4", "E7", "E8", "E9", "E10", "W2", "W3", "W4", "W5", "T3", "T4", "Y2"}
    deep |= {"TO5", "TO6", "TO8", "TO10", "TO11", "TO12", "TO13", "TO14", "TO17", "Q4"}
    config = CoordinatorConfig()
    for seed in range(1_000):
        rows = realise(script(seed, 250), config)
        for group_id in GROUPS:
            timeline = Timeline(group_id, None, config)
            for row in rows:
                if row.request.group_id == group_id:
                    timeline.apply(row)
            deep.difference_update(
                rule for effects in kafka_effects(timeline.drain_effects()) for rule in effects.rules
            )
        if not deep:
            return
    raise AssertionError(f"not reached: {sorted(deep)}")
