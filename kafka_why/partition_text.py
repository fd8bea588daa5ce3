"""Lists of partitions as short text."""

from collections.abc import Iterable

from kafka_why.contract.protocols.subscriptions import TopicPartition, by_topic


def partition_list(partitions: Iterable[TopicPartition]) -> str:
    """Return the partitions by topic, with runs of numbers joined: `orders 0-3 7, prices 1`."""
    return ", ".join(f"{topic} {number_list(numbers)}" for topic, numbers in by_topic(partitions).items())


def number_list(numbers: Iterable[int]) -> str:
    """Return the numbers with runs joined: `0-3 7`."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
