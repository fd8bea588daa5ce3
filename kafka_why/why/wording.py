"""Lines of a report: labels in a column, long lists shortened."""

import re
from collections.abc import Iterator, Mapping, Sequence

MAX_LISTED = 6
INDENT = "    "
_MAX_CLIENTS = 3

Lines = Iterator[tuple[str, str]]  # a label, "" to continue the last one, and the text


def columns(lines: Lines) -> Iterator[str]:
    """Yield each line behind its label, padded to the longest label."""
    rows = list(lines)
    width = max((len(label) for label, _ in rows), default=0)
    for label, text in rows:
        yield f"{label:<{width}}  {text}"


def tally(label: str, counts: Sequence[tuple[int, str, Mapping[str, int]]]) -> Lines:
    """Yield counts, kinds and counts by client: `12 x member joined  worker-1 9, worker-2 3`."""
    digits = max((len(str(number)) for number, _, _ in counts), default=0)
    width = max((len(kind) for _, kind, _ in counts), default=0)
    for place, (number, kind, by_client) in enumerate(counts):
        clients = [f"{name} {times}" if times > 1 else name for name, times in by_client.items()]
        more = f", {len(clients) - _MAX_CLIENTS} more" if len(clients) > _MAX_CLIENTS else ""
        listed = f"{', '.join(clients[:_MAX_CLIENTS])}{more}"
        yield "" if place else label, f"{number:>{digits}} x {kind:<{width}}  {listed}"


def shortened(words: Sequence[str]) -> str:
    """Return a list of at most MAX_LISTED words, and how many more there are."""
    more = f", {len(words) - MAX_LISTED} more" if len(words) > MAX_LISTED else ""
    return ", ".join(words[:MAX_LISTED]) + more


def count(number: int, noun: str) -> str:
    """`1 member`, `2 members`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def trigger_text(trigger: str) -> str:
    """Return a request's id, or a deadline or scan without its time, because its effect has the same time."""
    return re.sub(r" at \d+$", "", trigger)
