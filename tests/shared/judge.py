"""The promises of share groups, judged by what producers wrote and what consumers saw. Imports nothing of the
project. Times are monotonic, in ns.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from tests.campaigns.verdict import Verdict

DONE = ("accept", "reject")
"""A record with one of these acknowledgements is never delivered again."""
REFUSED = frozenset({"InvalidRecordStateException"})
"""Errors after which an acknowledgement had no effect. After any other error nobody knows."""


class Violation(StrEnum):
    """The kinds of violations."""

    LOST = "lost"
    """A record was written, and no member of the group has accepted or rejected it."""
    TWICE = "done twice"
    """Two acknowledgements that end a record succeeded, the second one not for an older delivery. Leaders
    answer with success what concerns a record below their start offset.
    """
    RESET = "state reset"
    """The state epoch or the start offset of a partition fell."""


@dataclass(frozen=True)
class Place:
    """A partition of one of the topics that had the name one after the other."""

    topic: str
    life: int
    partition: int


@dataclass(frozen=True)
class Written:
    """The place of a record that the brokers have acknowledged, and the time of that (monotonic)."""

    place: Place
    offset: int
    at_ns: int


@dataclass(frozen=True)
class Event:
    """A line of a member: `kind` is delivered, sent, outcome or stuck. `member` is its process."""

    at_ns: int
    member: int
    group: str
    kind: str
    number: int
    words: tuple[str, ...]

    @property
    def is_done(self) -> bool:
        """Return True if an acknowledgement that ends a record succeeded."""
        return self.kind == "outcome" and self.words[0] in DONE and self.words[1] == "-"


@dataclass(frozen=True)
class Era:
    """The time from a change of the group's offsets, when it had no members, until the next one. Earlier
    acknowledgements no longer count. `starts` has the start offsets; other partitions start at their first
    record.
    """

    since_ns: int
    starts: Mapping[Place, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Story:
    """What happened, in the order of its times. `eras` are by group, without the first one. `lives` says how
    many topics had a name.
    """

    written: Mapping[int, Written]
    events: Sequence[Event]
    eras: Mapping[str, Sequence[Era]]
    lives: Mapping[str, int]
    groups: Iterable[str]


def era_of(eras: Sequence[Era], at_ns: int) -> int:
    """Return the number of the era, from 0."""
    return sum(era.since_ns <= at_ns for era in eras)


def pending(story: Story) -> dict[str, set[int]]:
    """By group: the records that are still to be accepted or rejected, and not with an unknown end."""
    ended: dict[str, set[int]] = defaultdict(set)
    unknown: dict[str, set[int]] = defaultdict(set)
    for event in story.events:
        eras = story.eras.get(event.group, ())
        if era_of(eras, event.at_ns) < len(eras):
            continue
        if event.is_done:
            ended[event.group].add(event.number)
        elif event.kind == "sent" and event.words[0] in DONE:
            unknown[event.group].add(event.number)
        elif event.kind == "outcome" and event.words[1] in REFUSED:
            unknown[event.group].discard(event.number)
    return {
        group: {number for number, written in story.written.items() if _is_wanted(story, group, written)}
        - ended[group]
        - unknown[group]
        for group in story.groups
    }


def _is_wanted(story: Story, group: str, written: Written) -> bool:
    """Return True if the topic is there, and the last change of offsets did not skip the record."""
    eras = story.eras.get(group, ())
    start = eras[-1].starts.get(written.place, 0) if eras else 0
    return written.place.life == story.lives[written.place.topic] and written.offset >= start


def judge(story: Story) -> Iterator[Verdict]:
    """Yield every violation about records, at the end."""
    seen: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in story.events:
        seen[event.group, event.number].append(event)
    for group, numbers in pending(story).items():
        for number in sorted(numbers):
            written = story.written[number]
            sentence = f"{written}: {_told(seen[group, number])}"
            yield Verdict(Violation.LOST, written.at_ns, f"{group} {number}", sentence)
    for (group, number), events in seen.items():
        for event in _ended_twice(events, story.eras.get(group, ())):
            sentence = f"{story.written.get(number)}: {_told(events)}"
            yield Verdict(Violation.TWICE, event.at_ns, f"{group} {number}", sentence)


def _ended_twice(events: Iterable[Event], eras: Sequence[Era]) -> Iterator[Event]:
    """Yield the acknowledgements that ended a record, of a delivery as new as one for which it was ended
    before. All events are of one record.
    """
    counts: dict[int, int] = {}
    ended: dict[int, int] = {}
    for event in events:
        if event.kind == "delivered":
            counts[event.member] = int(event.words[0])
        elif event.is_done:
            era, count = era_of(eras, event.at_ns), counts[event.member]
            if era in ended and count >= ended[era]:
                yield event
            ended[era] = max(count, ended.get(era, 0))


def _told(events: Iterable[Event]) -> str:
    told = [" ".join((f"{event.at_ns / 1e9:.3f}", event.kind, *event.words)) for event in events]
    return "; ".join(told) or "never delivered"


@dataclass(frozen=True)
class State:
    """A partition's state by ReadShareGroupStateSummary. The start offset is -1 before any progress."""

    at_ns: int
    state_epoch: int
    start_offset: int


def judge_states(group: str, place: Place, states: Sequence[State], eras: Sequence[Era]) -> Iterator[Verdict]:
    """Yield every violation about the states of one partition, in the order of their times. A change of
    offsets may lower the start offset. A deletion of the group may lower both.
    """
    for before, after in pairwise(states):
        if era_of(eras, before.at_ns) != era_of(eras, after.at_ns):
            continue
        if after.state_epoch < before.state_epoch or after.start_offset < before.start_offset:
            yield Verdict(Violation.RESET, after.at_ns, f"{group} {place}", f"{before} became {after}")
