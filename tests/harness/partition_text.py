"""Partitions as text: `foo 0-2; bar 0,1`, with epochs `foo 0,1@2 2@3`."""

from collections.abc import Iterable, Mapping

Epochs = Mapping[str, Mapping[int, int]]
"""By topic and partition, the assignment epoch."""


def parse(text: str, default_topic: str = "foo") -> dict[str, list[int]]:
    """Parse `foo 0-2; bar 0,1`. Numbers without a topic belong to the default topic."""
    parsed = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        topic, _, numbers = part.rpartition(" ")
        parsed[topic or default_topic] = numbers_of(numbers)
    return parsed


def parse_epochs(text: str, default_topic: str = "foo") -> dict[str, dict[int, int]]:
    """Parse `foo 0,1@2; foo 2@3`."""
    parsed: dict[str, dict[int, int]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        numbers, _, epoch = part.partition("@")
        for topic, partitions in parse(numbers, default_topic).items():
            parsed.setdefault(topic, {}).update(dict.fromkeys(partitions, int(epoch)))
    return parsed


def text_of(partitions: Mapping[str, Iterable[int]]) -> str:
    """Return the inverse of `parse`, sorted: three or more numbers in a row are `0-2`."""
    return "; ".join(
        f"{topic} {format_numbers(numbers)}" for topic, numbers in sorted(partitions.items()) if numbers
    )


def text_of_epochs(epochs: Epochs) -> str:
    """Return the inverse of `parse_epochs`, sorted by topic, then by epoch."""
    return "; ".join(
        f"{topic} {format_numbers(n for n, epoch_of_n in epoch_of.items() if epoch_of_n == epoch)}@{epoch}"
        for topic, epoch_of in sorted(epochs.items())
        for epoch in sorted(set(epoch_of.values()))
    )


def numbers_of(text: str) -> list[int]:
    """Parse `0-2,5`."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def format_numbers(numbers: Iterable[int]) -> str:
    """Return the inverse of `numbers_of`, sorted: `0-2,5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 2 else ",".join(map(str, r)) for r in runs)
