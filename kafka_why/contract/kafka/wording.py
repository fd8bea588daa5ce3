"""Lists in the sentences of the history: short, because the fields of an entry have everything."""

from collections.abc import Iterable, Mapping, Sequence

from kafka_why.contract.kafka.snapshot import named

NAMED_AT_MOST = 10


def counted(number: int, noun: str) -> str:
    """Return the number with the noun: `1 topic`, `2 more topics`. `noun` is in the singular."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(texts: list[str], noun: str, most: int = NAMED_AT_MOST) -> str:
    """Return the first texts, and how many more there are. `noun` is what they name, in the singular."""
    left_out = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {counted(left_out, f'more {noun}')}" if left_out > 0 else "")


def listed_partitions(partitions: Mapping[bytes, Iterable[int]], names: Mapping[bytes, str]) -> str:
    """Return the partitions as `topic-number`. `names` are names of topics by topic id."""
    texts = [f"{topic}-{number}" for topic, numbers in named(partitions, names).items() for number in numbers]
    return listed(texts, "partition")


def names_change(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the rest of a sentence about a member: `subscribes to a, b and no longer to c`."""
    added, removed = sorted({*after}.difference(before)), sorted({*before}.difference(after))
    if not removed:
        return f"subscribes to {listed(added, 'topic')}"
    if not added:
        return f"no longer subscribes to {listed(removed, 'topic')}"
    return f"subscribes to {listed(added, 'topic')} and no longer to {listed(removed, 'topic')}"
