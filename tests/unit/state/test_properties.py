"""Properties of every log: the log alone decides, no request is lost, and a fault affects only its
own group.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.kafka.requests import DescribeGroup, Protocol, TopicMetadata
from kafka_why.contract.messages import ErrorCode, ReleaseGroup, Request
from state import timeline
from state.config import Configs, CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.context import Effects
from state.kafka.group import DeadlineReached
from state.protocol import Received
from state.timeline import Row, StepFunction, Timeline
from tests.harness import batches
from tests.harness.batches import encode as encoded
from tests.harness.common import apply_rows, classic_group, kafka_effects
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
    """Check that a request whose general step raises is answered with an error, and has no other effect on
    its group.
    """
    rows, config = rows_of(log)
    fails = batches.one_fails_in(seed, 5)
    failed_ids = set()

    def request_fails(event: AnyEvent) -> bool:
        if not isinstance(event, Received) or not fails(event):
            return False
        failed_ids.add(event.request_id)
        return True

    until_ms = rows[-1].at_ms + 15_000
    for group_id in GROUPS:
        with patch.object(timeline, "general_step", batches.failing_step(request_fails)):
            failing = Timeline(group_id, None, config)
        without = Timeline(group_id, None, config)
        apply_rows(failing, rows).fire_until(until_ms)
        rest = [row for row in rows if row.request_id not in failed_ids]
        apply_rows(without, rest).fire_until(until_ms)
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
        others = [batches.encode_effects(effects) for effects in steps if effects not in failed]
        assert others == [
            batches.encode_effects(effects) for effects in kafka_effects(without.drain_effects())
        ]
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
    failing = batches.failing_step(batches.one_fails_in(seed, one_in) if one_in else lambda _: False)
    take_step = step if one_in else batches.checked_step
    cut = batches.cut(rows, seed)
    outages = batches.random_outages(rows, seed)
    changes = batches.random_changes(rows, seed, config, outages)
    with patch.object(timeline, "general_step", failing):
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
    outages = batches.random_outages(rows, seed)
    configs = Configs(config, batches.random_changes(rows, seed, config, outages))
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
    group_id = GROUPS[0]
    timeline = Timeline(group_id, None, config, step=batches.failing_at(DeadlineReached, nth))
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


def test_random_classic_logs_reach_the_rule_rows() -> None:
    """The logs above must reach rows of docs/rules.md that need a long sequence of moves."""
    deep = {"C1", "C2", "C3", "C4", "E7", "E8", "E9", "E10", "W2", "W3", "W4", "W5", "T3", "T4", "Y2"}
    deep |= {"TO5", "TO6", "TO8", "TO10", "TO11", "TO12", "TO13", "TO14", "TO17", "Q4"}
    config = CoordinatorConfig()
    for seed in range(1_000):
        rows = realise(script(seed, 250), config)
        for group_id in GROUPS:
            timeline = apply_rows(Timeline(group_id, None, config), rows)
            deep.difference_update(
                rule for effects in kafka_effects(timeline.drain_effects()) for rule in effects.rules
            )
        if not deep:
            return
    raise AssertionError(f"not reached: {sorted(deep)}")


CONFIG = CoordinatorConfig()


@given(st.integers(0, 2**32 - 1))
@examples(30)
def test_principal_of_a_request_affects_only_history_entries(seed: int) -> None:
    rows = realise(script(seed, 100), CONFIG)
    named = [_naming(row, f"User:{number % 3}") for number, row in enumerate(rows)]
    who = {row.request_id: row.request.principal for row in named if isinstance(row.request, Request)}
    for group_id in GROUPS:
        plain, told = _played(group_id, rows), _played(group_id, named)
        for effects, with_principals in zip(plain, told, strict=True):
            history = [replace(entry, principal=who.get(entry.cause)) for entry in effects.history]
            assert replace(with_principals, group=None) == replace(effects, group=None, history=history)
        assert encoded(told[-1].group) == encoded(plain[-1].group) if plain else not told


def _naming(row: Row, principal: str) -> Row:
    if not isinstance(row.request, Request):
        return row
    return replace(row, request=replace(row.request, principal=principal))


def _played(group_id: str, rows: Sequence[Row]) -> list[Effects]:
    timeline = apply_rows(Timeline(group_id, None, CONFIG), rows)
    timeline.fire_until(rows[-1].at_ms + 100_000)
    return kafka_effects(timeline.drain_effects())


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.sampled_from("abc"), max_size=4)), max_size=12))
def test_protocol_counts_match_the_members_protocols(changes: list[tuple[int, list[str]]]) -> None:
    """A change adds a member, or gives it other protocols, or removes it if it has none."""
    group = ClassicGroup("g", "requests-0-0", state=GroupState.PREPARING_REBALANCE, protocol_type="consumer")
    assert group.supported_protocols.members == 0
    for number, names in changes:
        member_id, protocols = f"m{number}", [Protocol(name) for name in names]
        member = group.members.get(member_id)
        if not protocols:
            group.remove(member_id)
        elif member is not None:
            group.set_protocols(member, protocols)
        else:
            group.add(ClassicGroupMember(member_id, None, "", "", 10_000, 60_000, protocols), "consumer")
        offered = [{p.name for p in m.protocols} for m in group.members.values()]
        for name in "abc":
            fits = group.supports_protocols("consumer", [Protocol(name)])
            assert fits is all(name in names for names in offered)
        assert group.supported_protocols == replace(group).supported_protocols
        shared = set.intersection(*offered) if offered else set()
        if shared:
            first = [[p.name for p in m.protocols if p.name in shared] for m in group.members.values()]
            votes = Counter(names[0] for names in first)
            assert group.select_protocol() == max(first[0], key=lambda name: votes[name])


def test_timeline_refuses_a_restore_that_returns_the_changed_group() -> None:
    group, fails = ClassicGroup("g", "requests-0-0"), batches.failing_step(lambda _: True)
    timeline = Timeline("g", group, CoordinatorConfig(), restore=lambda: group, step=fails)
    request = DescribeGroup(group_id="g", correlation_id="c", reply_partition=0, api_version=5)
    with pytest.raises(AssertionError, match="restore must return a new copy"):
        timeline.apply(Row(2, "requests-0-1", request))


def test_journal_ends_at_its_size_limit_and_counts_as_growth_of_its_group() -> None:
    """The group is measured again when its next general step copies it."""
    timeline = Timeline("g", None, CONFIG, journal_max_bytes=1_000)
    request = DescribeGroup(group_id="g", correlation_id="c", reply_partition=0, api_version=5)
    estimates = []
    for number in range(4):
        timeline.apply(Row(number, f"requests-0-{number}", request, size_bytes=500))
        estimates.append(timeline.memory_bytes)
    assert estimates[0] < estimates[1]
    assert estimates[2:] == estimates[:2]
