"""Formats parts of the history's sentences. Lists are cut, because an entry's fields have the whole lists."""

import re
from collections.abc import Iterable, Mapping, Sequence

from kafka_why.contract.kafka.snapshot import named

NAMED_AT_MOST = 10


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 topic` or `2 topics`. `noun` is singular."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(texts: list[str], noun: str, most: int = NAMED_AT_MOST) -> str:
    """Return a text such as `a, b and 3 more topics`, with at most `most` texts. `noun` is singular."""
    left_out = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {counted(left_out, f'more {noun}')}" if left_out > 0 else "")


def listed_partitions(partitions: Mapping[bytes, Iterable[int]], names: Mapping[bytes, str]) -> str:
    """Return a text such as `orders-0, orders-1`. `names` are topic names by topic id."""
    texts = [f"{topic}-{number}" for topic, numbers in named(partitions, names).items() for number in numbers]
    return listed(texts, "partition")


def names_change(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the predicate of a sentence about a member, such as `subscribes to a, b and no longer to c`."""
    added, removed = sorted({*after}.difference(before)), sorted({*before}.difference(after))
    if not removed:
        return f"subscribes to {listed(added, 'topic')}"
    if not added:
        return f"no longer subscribes to {listed(removed, 'topic')}"
    return f"subscribes to {listed(added, 'topic')} and no longer to {listed(removed, 'topic')}"


_NO_COMMIT = "none of its partitions had a commit since it got them"
_LAST_COMMIT = re.compile(r"the last commit of its partitions was (\d+\.\d) s before")


def last_commit(ago_ms: int | None) -> str:
    """Return a sentence about the last commit, `ago_ms` before the member's removal, or None without one."""
    if ago_ms is None:
        return _NO_COMMIT
    return f"the last commit of its partitions was {max(ago_ms, 0) / 1000:.1f} s before"


def last_commit_in(reason: str, earlier_ms: int = 0) -> str:
    """Return the sentence of `last_commit` in `reason`, or "" if it has none.

    The sentence is adjusted for a member that was removed `earlier_ms` before the removal in `reason`.
    """
    found = _LAST_COMMIT.search(reason)
    if found is not None:
        return last_commit(round(float(found[1]) * 1000) - earlier_ms)
    return _NO_COMMIT if _NO_COMMIT in reason else ""
