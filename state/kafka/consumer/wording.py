"""Lists in the sentences of the history: short, because the fields of an entry have everything."""

from state.kafka.consumer_group import AssignedPartitions, Partitions
from state.kafka.snapshot import named

NAMED_AT_MOST = 10


def counted(number: int, noun: str) -> str:
    """Return the number with the noun: `1 topic`, `2 more topics`. `noun` is in the singular."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(texts: list[str], noun: str, most: int = NAMED_AT_MOST) -> str:
    """Return the first texts, and how many more there are. `noun` is what they name, in the singular."""
    left_out = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {counted(left_out, f'more {noun}')}" if left_out > 0 else "")


def listed_partitions(partitions: AssignedPartitions | Partitions, names: dict[bytes, str]) -> str:
    """Return the partitions as `topic-number`. `names` are names of topics by topic id."""
    texts = [f"{topic}-{number}" for topic, numbers in named(partitions, names).items() for number in numbers]
    return listed(texts, "partition")
