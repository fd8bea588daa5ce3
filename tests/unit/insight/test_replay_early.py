"""Early answers in a replay: each is compared with what the log leads to, and none stands for the query's."""

import re

from msgspec.structs import replace

from insight.replay.judge import judge
from insight.replay.recording import Answer, Bytes, LogClock
from insight.replay.text import verdict_text
from insight.replay.verdict import How, What
from tests.harness.coordinated_log import CoordinatedLog
from tests.harness.recordings import Lines
from tests.spark.log import T0, Log, heartbeat
from tests.unit.insight.test_replay import CONFIG, a_member_expires


def with_early(recording: Lines, *early: Answer) -> Lines:
    """The recording with these early answers in front of its outputs."""
    return Lines(recording.header, [*early, *recording.lines])


def test_early_answers_are_compared_with_the_log() -> None:
    recording = a_member_expires().recording()
    answers = [replace(line, is_early=True) for line in recording.lines if isinstance(line, Answer)]
    same = judge(with_early(recording, *answers[1:], *answers[1:]))
    assert same.differences == []
    assert (same.total("early"), same.total("answers"), same.duplicates) == (4, 3, 0)
    assert "Early  4 answers of replicas" in verdict_text(same, recording.header)
    assert judge(with_early(recording, *answers), groups={"a"}).total("early") == 3
    other = replace(answers[-1], value=Bytes.of(answers[-1].value.get()[:-1] + b" }"))
    moved = replace(answers[-1], partition=answers[-1].partition + 1)
    clock = next(line for line in recording.lines if isinstance(line, LogClock))
    no_request = b'"request":"requests-%d-%d"' % (clock.partition, clock.offset)
    nobodys = replace(
        answers[-1], value=Bytes.of(re.sub(rb'"request":"[^"]*"', no_request, answers[-1].value.get()))
    )
    for early, how in ((other, How.CHANGED), (moved, How.MISPLACED), (nobodys, How.UNEXPECTED)):
        (difference,) = judge(with_early(recording, early)).differences
        assert (difference.what, difference.how) == (What.EARLY, how)


def test_an_early_answer_is_not_the_querys() -> None:
    recording = a_member_expires().recording()
    early = [replace(x, is_early=True) if isinstance(x, Answer) else x for x in recording.lines]
    assert {(d.what, d.how) for d in judge(Lines(recording.header, early)).differences} == {
        (What.ANSWER, How.MISSING)
    }


def test_an_early_answer_to_a_request_that_was_skipped_later_is_counted_by_itself() -> None:
    log, world = Log(), CoordinatedLog(CONFIG)
    world.run([*log.stable_member(T0, "a")[0], *log.clock(T0, T0)])
    skipped = log.request(T0 + 1, heartbeat("a", "nobody"))
    world.configure(CONFIG, skip=[skipped.id])
    world.run([skipped, *log.clock(T0 + 2, T0 + 2)])
    recording = world.recording()
    answer = next(line for line in recording.lines if isinstance(line, Answer))
    value = re.sub(rb'"request":"[^"]*"', b'"request":"%s"' % skipped.id.encode(), answer.value.get())
    early = replace(answer, value=Bytes.of(value), is_early=True)
    verdict = judge(with_early(recording, early))
    assert verdict.is_identical
    assert verdict.skipped == 1
    assert "1 early answer to requests that were skipped later" in verdict_text(verdict, recording.header)
