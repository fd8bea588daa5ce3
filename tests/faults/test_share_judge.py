"""The judge of the campaign of share groups."""

from collections.abc import Mapping, Sequence

from tests.campaigns.verdict import Verdict
from tests.shared.judge import Era, Event, Place, State, Story, Written, judge, judge_states

HERE = Place("orders", 1, 0)
GROUP = "g"
Said = tuple[int, str, int, str, int]
"""Time, kind, number, words, member."""


def story(
    *events: Said,
    eras: Sequence[Era] = (),
    lives: Mapping[str, int] | None = None,
    records: int = 2,
) -> Story:
    """Records 0, 1, … at their own offsets, and what happened."""
    return Story(
        {number: Written(HERE, number, 0) for number in range(records)},
        [
            Event(at, member, GROUP, kind, number, tuple(words.split()))
            for at, kind, number, words, member in events
        ],
        {GROUP: eras},
        lives or {"orders": 1},
        [GROUP],
    )


def acknowledged(
    number: int, at: int, word: str, error: str = "-", *, count: int = 1, member: int = 1
) -> list[Said]:
    return [
        (at, "delivered", number, str(count), member),
        (at + 1, "sent", number, word, member),
        (at + 2, "outcome", number, f"{word} {error}", member),
    ]


def accepted(number: int, at: int, *, count: int = 1, member: int = 1) -> list[Said]:
    return acknowledged(number, at, "accept", count=count, member=member)


def wrongs(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    return [(verdict.wrong.value, verdict.place) for verdict in verdicts]


def test_all_is_well_if_each_record_was_accepted_or_rejected_once() -> None:
    assert list(judge(story(*accepted(0, 1), *acknowledged(1, 4, "reject")))) == []


def test_a_record_that_nobody_accepted_is_lost() -> None:
    (verdict,) = judge(story(*accepted(0, 1)))
    assert wrongs([verdict]) == [("lost", "g 1")]
    assert "never delivered" in verdict.sentence


def test_released_and_renewed_records_are_not_ended() -> None:
    for word in ("release", "renew"):
        events = [*accepted(0, 1), *acknowledged(1, 4, word)]
        assert wrongs(list(judge(story(*events)))) == [("lost", "g 1")]


def test_an_acknowledgement_with_an_unknown_end_may_have_succeeded_and_a_refused_one_has_not() -> None:
    unknown = acknowledged(1, 4, "accept", "DisconnectException")
    assert list(judge(story(*accepted(0, 1), *unknown))) == []
    assert list(judge(story(*accepted(0, 1), *unknown[:2]))) == []
    refused = acknowledged(1, 4, "accept", "InvalidRecordStateException")
    assert wrongs(list(judge(story(*accepted(0, 1), *refused)))) == [("lost", "g 1")]


def test_a_record_is_ended_once() -> None:
    twice = story(*accepted(0, 1), *accepted(1, 4), *accepted(0, 7))
    assert wrongs(list(judge(twice))) == [("done twice", "g 0")]
    # One of two whose end is unknown may have failed.
    again = acknowledged(0, 7, "accept", "TimeoutException")
    assert list(judge(story(*accepted(0, 1), *accepted(1, 4), *again))) == []


def test_a_member_that_slept_may_end_what_was_delivered_and_ended_again_meanwhile() -> None:
    """But not the other way round."""
    delivered, *ended = accepted(0, 1, member=1)
    slept = [(at + 10, *rest) for at, *rest in ended]
    events = [delivered, *accepted(0, 4, count=2, member=2), *slept, *accepted(1, 20)]
    assert list(judge(story(*events))) == []  # type: ignore[arg-type]
    again = accepted(0, 30, count=2, member=1)
    assert wrongs(list(judge(story(*events, *again)))) == [("done twice", "g 0")]  # type: ignore[arg-type]


def test_a_change_of_offsets_begins_anew_from_its_offsets() -> None:
    before, after = [*accepted(0, 1), *accepted(1, 4)], accepted(1, 21)
    assert list(judge(story(*before, *after, eras=[Era(20, {HERE: 1})]))) == []
    assert wrongs(list(judge(story(*before, eras=[Era(20, {HERE: 1})])))) == [("lost", "g 1")]
    # Without offsets it begins at the first one.
    assert wrongs(list(judge(story(*before, *after, eras=[Era(20)])))) == [("lost", "g 0")]


def test_records_of_a_topic_that_was_deleted_are_not_missed() -> None:
    assert list(judge(story(lives={"orders": 2}))) == []


def test_the_state_of_a_partition_falls_only_by_a_change_of_offsets() -> None:
    states = [State(1, 2, -1), State(2, 2, 10), State(3, 3, 10), State(4, 3, 4)]
    assert [it.wrong.value for it in judge_states(GROUP, HERE, states, [])] == ["state reset"]
    assert list(judge_states(GROUP, HERE, states, [Era(4)])) == []
    assert [it.at for it in judge_states(GROUP, HERE, [State(1, 3, 7), State(2, 2, 7)], [])] == [2]
