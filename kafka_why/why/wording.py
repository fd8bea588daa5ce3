"""Lines of a report: labels in a column, long lists shortened."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

MAX_LISTED = 6
MAX_MEMBERS = 8
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
    texts = []
    for number, kind, by_client in counts:
        clients = [f"{name} {times}" if times > 1 else name for name, times in by_client.items()]
        texts.append(f"{number:>{digits}} x {kind:<{width}}  {shortened(clients, _MAX_CLIENTS)}")
    return listing(label, texts)


def listing(label: str, texts: Iterable[str], left_out: int = 0, noun: str = "") -> Lines:
    """Yield each text, the label before the first one, and how many are left out, if any."""
    for place, text in enumerate(texts):
        yield "" if place else label, text
    if left_out > 0:
        yield "", f"and {count(left_out, noun) if noun else left_out} more"


def member_listing(label: str, texts: Sequence[tuple[str, str]]) -> Lines:
    """Yield the names of members with a text for each, of the first MAX_MEMBERS."""
    shown = texts[:MAX_MEMBERS]
    width = max((len(name) for name, _ in shown), default=0)
    rows = (f"{name:<{width}}  {text}" for name, text in shown)
    return listing(label, rows, len(texts) - MAX_MEMBERS, "member")


def shortened(words: Sequence[str], most: int = MAX_LISTED) -> str:
    """Return a list of at most so many words, and how many more there are."""
    more = f", {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def count(number: int, noun: str) -> str:
    """`1 member`, `2 members`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def trigger_text(trigger: str) -> str:
    """Return a request's id, or a deadline or scan without its time, because its effect has the same time."""
    return re.sub(r" at \d+$", "", trigger)
