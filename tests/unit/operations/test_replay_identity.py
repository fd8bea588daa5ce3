"""The replay leads to what the operator wrote, byte by byte, however the log was cut into batches."""

import re
from collections.abc import Sequence
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from operations.replay.judge import judge
from operations.replay.recording import AnswerLine, ClockLine, EventLine, Line, RecordBytes, RequestLine
from operations.replay.text import DifferenceKind, verdict_text
from operations.replay.topic_contents import RecordKind
from state.config import BrokerConfig, CoordinatorConfig
from state.dispatch import step
from state.timeline import Row, StepFunction
from tests.harness import rocketmq_log
from tests.harness.batches import failing_step, one_fails_in
from tests.harness.coordinated_log import CoordinatedLog
from tests.harness.examples import examples
from tests.harness.recordings import Lines
from tests.spark import recorded_log
from tests.spark.log import LAYOUT, T0, heartbeat
from tests.unit.operations.test_replay import CONFIG as AT_ONCE
from tests.unit.operations.test_replay import a_member_expires, with_member

CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=3_000)
OTHER = CoordinatorConfig(
    group_initial_rebalance_delay_ms=0,
    offsets_retention_check_interval_ms=77_777,
    rocketmq=BrokerConfig(scan_interval_ms=7_000),
)


def coordinate(
    seed: int, length: int, batches: int, rows: Sequence[Row] | None = None, step: StepFunction = step
) -> CoordinatedLog:
    """Coordinate a random log in random batches, each perhaps twice. Before one there is perhaps an outage, a
    change of the configuration, or both.
    """
    rows = rows or recorded_log.record(seed, length, CONFIG)
    partitions, _ = recorded_log.with_clock(rows, seed)
    world = CoordinatedLog(CONFIG, step=step)
    for number, batch in enumerate(recorded_log.cut(partitions, batches, seed)):
        if number == batches // 2 and seed % 3:
            world.configure(OTHER)
        if number == batches // 2 and number and seed % 4 > 1:
            world.without_coordinator(world.after_ms() + seed % 50_000 + 1)
        world.run(batch, times=1 + seed % 2)
    return world


@examples(30)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 120), batches=st.integers(1, 8))
def test_replay_equals_the_operators_output(seed: int, length: int, batches: int) -> None:
    world = coordinate(seed, length, batches)
    verdict = judge(world.recording())
    assert verdict.differences == []
    assert verdict.total("gone") == verdict.unjudged == 0
    if seed % 4 <= 1:
        assert verdict.total("open") == 0, "only a takeover waits until a group is called"
    wrote = {record.value for record in world.records if record.topic == LAYOUT.events_topic}
    assert len(wrote) <= verdict.total("history") <= len(wrote) + verdict.total("open")


@examples(20)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 120), batches=st.integers(1, 8))
def test_replay_of_rocketmq_groups_equals_the_operators_output(seed: int, length: int, batches: int) -> None:
    rows = rocketmq_rows(seed, length)
    assert judge(coordinate(seed, length, batches, rows).recording()).differences == []


def rocketmq_rows(seed: int, length: int) -> list[Row]:
    return [
        replace(row, request=replace(row.request, group_id=recorded_log.NAMES[row.request.group_id]))
        for row in rocketmq_log.realise(seed, length)
    ]


@examples(20)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 80), batches=st.integers(1, 6))
def test_replay_after_a_fault_equals_the_operators_output(seed: int, length: int, batches: int) -> None:
    """Steps that raise are undone, answered and dead-lettered, or the group is quarantined."""
    fails = failing_step(one_fails_in(seed, one_in=6))
    verdict = judge(coordinate(seed, length, batches, step=fails).recording(), step=fails)
    assert verdict.differences == []


@examples(40)
@given(seed=st.integers(0, 10**6), length=st.integers(2, 100), cut=st.integers(0, 99), rocketmq=st.booleans())
def test_replay_of_a_part_of_the_log_is_identical(seed: int, length: int, cut: int, rocketmq: bool) -> None:
    """The part before a time, and the part from it on, of which only groups that begin in it are judged."""
    recording = coordinate(seed, length, 4, rocketmq_rows(seed, length) if rocketmq else None).recording()
    times = [line.at_ms for line in recording.lines if isinstance(line, RequestLine)]
    at_ms = times[cut * len(times) // 100]
    for part in (_part(recording, 0, at_ms), _part(recording, at_ms, None)):
        assert judge(part).differences == []


def _part(recording: Lines, since_ms: int, until_ms: int | None) -> Lines:
    """Return a recording of the requests of a time, with all outputs."""
    end_ms = until_ms or max(line.at_ms for line in recording.log()) + 1
    lines = [
        x
        for x in recording.lines
        if not isinstance(x, RequestLine | ClockLine) or since_ms <= x.at_ms < end_ms
    ]
    before = [x for x in recording.lines if isinstance(x, RequestLine)]
    begins = dict.fromkeys(recording.header.begins, 0)
    ends = dict(begins)
    for line in before:
        if line.at_ms < since_ms:
            begins[line.partition] = line.offset + 1
        if line.at_ms < end_ms:
            ends[line.partition] = line.offset + 1
    is_first = [partition for partition, begin in begins.items() if begin == 0]
    header = replace(recording.header, begins=begins, ends=ends, is_first=is_first, until_ms=until_ms)
    return Lines(header, lines)


@examples(10)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 80))
def test_recording_of_one_group_equals_its_part_of_a_full_recording(seed: int, length: int) -> None:
    world = coordinate(seed, length, 4)
    everything = world.recording()
    for group_id in judge(everything).groups:
        alone = judge(world.recording([group_id]))
        assert alone.differences == []
        assert alone.groups == {group_id: judge(everything).groups[group_id]}
        assert judge(everything, groups={group_id}).groups == alone.groups


@examples(20)
@given(seed=st.integers(0, 10**6), length=st.integers(1, 80))
def test_replay_reports_a_changed_record_as_a_difference(seed: int, length: int) -> None:
    """The negative control: an answer or a history entry with one byte changed, and one that is dropped.

    Without an outage: what a takeover has written may be dropped, because it may have come later.
    """
    recording = coordinate(4 * seed, length, 4).recording()
    random = Random(seed)
    of_kind = [n for n, line in enumerate(recording.lines) if isinstance(line, AnswerLine | EventLine)]
    assume(of_kind)
    at = random.choice(of_kind)
    one_fails_in = recording.lines[at]
    copies = [n for n, line in enumerate(recording.lines) if _is_copy(line, one_fails_in)]
    altered = Lines(
        recording.header, [_altered(x) if n in copies else x for n, x in enumerate(recording.lines)]
    )
    dropped = Lines(recording.header, [x for n, x in enumerate(recording.lines) if n not in copies])
    assert [d.how for d in judge(altered).differences] == [DifferenceKind.CHANGED]
    assert [d.how for d in judge(dropped).differences] == [DifferenceKind.MISSING]


def _is_copy(line: Line, of: Line) -> bool:
    return (
        isinstance(of, AnswerLine | EventLine)
        and isinstance(line, AnswerLine | EventLine)
        and line.value == of.value
    )


def _altered(line: Line) -> Line:
    assert isinstance(line, AnswerLine | EventLine)
    text = line.value.get().decode()
    return replace(line, value=RecordBytes(text=text.replace('"version":1', '"version":2')))


def with_early(recording: Lines, *early: AnswerLine) -> Lines:
    """Return the recording with these early answers in front of its outputs."""
    return Lines(recording.header, [*early, *recording.lines])


def test_early_answers_are_compared_with_the_log() -> None:
    recording = a_member_expires().recording()
    answers = [replace(line, is_early=True) for line in recording.lines if isinstance(line, AnswerLine)]
    same = judge(with_early(recording, *answers[1:], *answers[1:]))
    assert same.differences == []
    assert (same.total("early"), same.total("answers"), same.duplicates) == (4, 3, 0)
    assert "Early  4 answers of replicas" in verdict_text(same, recording.header)
    assert judge(with_early(recording, *answers), groups={"a"}).total("early") == 3
    other = replace(answers[-1], value=RecordBytes.of(answers[-1].value.get()[:-1] + b" }"))
    moved = replace(answers[-1], partition=answers[-1].partition + 1)
    clock = next(line for line in recording.lines if isinstance(line, ClockLine))
    no_request = b'"request":"requests-%d-%d"' % (clock.partition, clock.offset)
    nobodys = replace(
        answers[-1], value=RecordBytes.of(re.sub(rb'"request":"[^"]*"', no_request, answers[-1].value.get()))
    )
    for early, how in (
        (other, DifferenceKind.CHANGED),
        (moved, DifferenceKind.MISPLACED),
        (nobodys, DifferenceKind.UNEXPECTED),
    ):
        (difference,) = judge(with_early(recording, early)).differences
        assert (difference.what, difference.how) == (RecordKind.EARLY, how)


def test_early_answer_to_a_request_skipped_later_is_counted_separately() -> None:
    log, world, _ = with_member(T0)
    skipped = log.request(T0 + 1, heartbeat("a", "nobody"))
    world.configure(AT_ONCE, skip=[skipped.id])
    world.run([skipped, *log.clock(T0 + 2, T0 + 2)])
    recording = world.recording()
    answer = next(line for line in recording.lines if isinstance(line, AnswerLine))
    value = re.sub(rb'"request":"[^"]*"', b'"request":"%s"' % skipped.id.encode(), answer.value.get())
    early = replace(answer, value=RecordBytes.of(value), is_early=True)
    verdict = judge(with_early(recording, early))
    assert verdict.is_identical
    assert verdict.skipped == 1
    assert "1 early answer to requests that were skipped later" in verdict_text(verdict, recording.header)
