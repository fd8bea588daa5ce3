"""What is wrong with the output of applications that should have handled each input record exactly once.

Pure, and without a package of this project: it knows only what went in and what came out.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from tests.campaigns.verdict import Verdict


class Violation(StrEnum):
    """The kinds of violations, in the words of the table."""

    LOST = "lost"
    TWICE = "twice"
    ORDER = "out of order"
    UNKNOWN = "never sent"
    OFFSET = "offsets wrong"
    PENDING = "pending for too long"


class Copy(NamedTuple):
    """A record of the output."""

    partition: int
    key: bytes | None
    value: bytes


def copied_value(partition: int, number: int) -> bytes:
    """Return the value of an input record, for applications that copy it."""
    return b"%d-%d" % (partition, number)


def judge_copies(inputs: Mapping[int, int], outputs: Iterable[Copy]) -> Iterator[Verdict]:
    """Check that each value is once in the output, in the partition and order of the input. `inputs` is the
    number of input records by partition.
    """
    found: dict[int, list[bytes]] = {partition: [] for partition in inputs}
    for copy in outputs:
        found.setdefault(copy.partition, []).append(copy.value)
    for partition, values in found.items():
        expected = [copied_value(partition, number) for number in range(inputs.get(partition, 0))]
        if values != expected:
            yield from _differences(f"partition {partition}", expected, values)


def _differences(place: str, expected: Sequence[bytes], values: Sequence[bytes]) -> Iterator[Verdict]:
    places = {value: at for at, value in enumerate(expected)}
    counts = Counter(values)
    for wrong, names in (
        (Violation.LOST, [value for value in expected if not counts[value]]),
        (Violation.TWICE, [value for value in expected if counts[value] > 1]),
        (Violation.UNKNOWN, [value for value in counts if value not in places]),
    ):
        for name in names:
            yield Verdict(wrong, 0, place, f"{name.decode(errors='replace')} stands {counts[name]} times")
    firsts = [places[value] for value in dict.fromkeys(values) if value in places]
    for before, after in pairwise(firsts):
        if after < before:
            yield Verdict(Violation.ORDER, 0, place, f"number {after} stands behind number {before}")


def word_of(partition: int, number: int, partitions: int, words: int) -> str:
    """Return the word of an input record, for applications that count words."""
    return f"w{(number * partitions + partition) % words}"


def judge_counts(words: Mapping[str, int], outputs: Iterable[Copy]) -> Iterator[Verdict]:
    """Check that the counts of each word in the output are 1, 2, 3 and so on, up to the number of times it
    went in.
    """
    found: dict[str, list[int]] = {word: [] for word in words}
    for output in outputs:
        found.setdefault((output.key or b"").decode(), []).append(int.from_bytes(output.value))
    for word, counts in found.items():
        times = words.get(word, 0)
        if counts == [*range(1, times + 1)]:
            continue
        if times == 0:
            yield Verdict(Violation.UNKNOWN, 0, word, "this word never went in")
            continue
        highest = max(counts, default=0)
        for missing in sorted({*range(1, times + 1)} - {*counts}):
            yield Verdict(Violation.LOST, 0, word, f"of {times} counts there is no {missing}")
        if highest > times:
            yield Verdict(
                Violation.TWICE, 0, word, f"it went in {times} times, and was counted {highest} times"
            )
        for count, often in Counter(counts).items():
            if often > 1:
                yield Verdict(Violation.TWICE, 0, word, f"the count {count} stands {often} times")
        if [*dict.fromkeys(counts)] != sorted({*counts}):
            yield Verdict(Violation.ORDER, 0, word, "its counts do not grow")


def judge_offsets(
    ends: Mapping[int, int], committed: Mapping[int, int], pending: Iterable[int]
) -> Iterator[Verdict]:
    """Check that the group has committed everything, and nothing is pending. `pending` are the partitions for
    which a fetch of stable offsets gets UNSTABLE_OFFSET_COMMIT.
    """
    waiting = {*pending}
    for partition in sorted(waiting):
        yield Verdict(Violation.PENDING, 0, f"partition {partition}", "its offset is not stable")
    for partition, end in ends.items():
        if partition not in waiting and committed.get(partition, 0) != end:
            sentence = f"{committed.get(partition, 0)} is committed, and the partition ends at {end}"
            yield Verdict(Violation.OFFSET, 0, f"partition {partition}", sentence)
