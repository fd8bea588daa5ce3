"""The judge of the campaign of share groups."""

from collections.abc import Mapping, Sequence

import pytest

from tests.shared.judge import Era, Event, Place, State, Story, Written, judge, judge_states

HERE = Place("orders", 1, 0)
GROUP = "g"
Said = tuple[int, str, int, str, int]
"""Time, kind, number, words, member."""


def story(
    *events: Said, eras: Sequence[Era] = (), lives: Mapping[str, int] | None = None, records: int = 2
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


UNKNOWN = acknowledged(1, 4, "accept", "DisconnectException")
# A member sleeps until what was delivered to it was delivered and ended again.
DELIVERED, *ENDED = accepted(0, 1, member=1)
SLEPT = [
    DELIVERED,
    *accepted(0, 4, count=2, member=2),
    *[(at + 10, kind, number, words, member) for at, kind, number, words, member in ENDED],
    *accepted(1, 20),
]
BOTH = [*accepted(0, 1), *accepted(1, 4)]
STORIES: dict[str, tuple[Story, list[tuple[str, str]]]] = {
    "accepted or rejected once": (story(*accepted(0, 1), *acknowledged(1, 4, "reject")), []),
    "never accepted": (story(*accepted(0, 1)), [("lost", "g 1")]),
    "released": (story(*accepted(0, 1), *acknowledged(1, 4, "release")), [("lost", "g 1")]),
    "renewed": (story(*accepted(0, 1), *acknowledged(1, 4, "renew")), [("lost", "g 1")]),
    "an unknown end may have succeeded": (story(*accepted(0, 1), *UNKNOWN), []),
    "no end at all may have succeeded": (story(*accepted(0, 1), *UNKNOWN[:2]), []),
    "a refused one has not": (
        story(*accepted(0, 1), *acknowledged(1, 4, "accept", "InvalidRecordStateException")),
        [("lost", "g 1")],
    ),
    "accepted twice": (story(*BOTH, *accepted(0, 7)), [("done twice", "g 0")]),
    "one of two ends is unknown": (story(*BOTH, *acknowledged(0, 7, "accept", "TimeoutException")), []),
    "a member that slept ends an older delivery": (story(*SLEPT), []),
    "but not the other way round": (
        story(*SLEPT, *accepted(0, 30, count=2, member=1)),
        [("done twice", "g 0")],
    ),
    "offsets are changed": (story(*BOTH, *accepted(1, 21), eras=[Era(20, {HERE: 1})]), []),
    "and begin anew": (story(*BOTH, eras=[Era(20, {HERE: 1})]), [("lost", "g 1")]),
    "without offsets, at the first one": (story(*BOTH, *accepted(1, 21), eras=[Era(20)]), [("lost", "g 0")]),
    "the topic was deleted": (story(lives={"orders": 2}), []),
}


@pytest.mark.parametrize(("told", "found"), STORIES.values(), ids=STORIES)
def test_share_judge_finds_exactly_the_planted_errors(told: Story, found: list[tuple[str, str]]) -> None:
    assert [(verdict.violation.value, verdict.place) for verdict in judge(told)] == found


def test_share_partition_offset_goes_back_only_after_an_offset_change() -> None:
    states = [State(1, 2, -1), State(2, 2, 10), State(3, 3, 10), State(4, 3, 4)]
    assert [it.violation.value for it in judge_states(GROUP, HERE, states, [])] == ["state reset"]
    assert list(judge_states(GROUP, HERE, states, [Era(4)])) == []
    assert [it.at for it in judge_states(GROUP, HERE, [State(1, 3, 7), State(2, 2, 7)], [])] == [2]
