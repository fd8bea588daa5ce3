"""Early answers in a replay: each is compared with what the log leads to, and none stands for the query's."""

import re

from msgspec.structs import replace

from insight.replay.judge import judge
from insight.replay.recording import Answer, Bytes, Lines, LogClock
from insight.replay.text import verdict_text
from insight.replay.verdict import How, What
from tests.unit.insight.test_replay import a_member_expires


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
