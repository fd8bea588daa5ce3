"""Windows of time: pairs of the times at which they begin and end. Results are sorted."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

Window: TypeAlias = tuple[int, int]


def merged(windows: Iterable[Window]) -> list[Window]:
    """Return the times that are in any of the windows."""
    union: list[Window] = []
    for since_ms, to_ms in sorted(windows):
        if union and since_ms <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], to_ms)
        elif since_ms < to_ms:
            union.append((since_ms, to_ms))
    return union


def overlaps(windows: Iterable[Window]) -> list[Window]:
    """Return the times that are in two of the windows or more."""
    overlapping: list[Window] = []
    latest_end_ms: int | None = None  # of the windows so far
    for since_ms, to_ms in sorted(windows):
        if latest_end_ms is not None:
            # Empty if the window begins after all earlier ones have ended. `merged` drops empty windows.
            overlapping.append((since_ms, max(since_ms, min(latest_end_ms, to_ms))))
        latest_end_ms = to_ms if latest_end_ms is None else max(latest_end_ms, to_ms)
    return merged(overlapping)


def without(windows: Iterable[Window], others: Iterable[Window]) -> list[Window]:
    """Return the parts of `windows` that are in none of the others."""
    return list(_parts(merged(windows), merged(others)))


def _parts(windows: Sequence[Window], others: Sequence[Window]) -> Iterator[Window]:
    """Yield the parts of `without`. Both arguments are merged, so they are sorted and do not overlap."""
    for since_ms, to_ms in windows:
        for other_since_ms, other_to_ms in others:
            if other_to_ms <= since_ms or to_ms <= other_since_ms:
                continue
            if since_ms < other_since_ms:
                yield since_ms, other_since_ms
            since_ms = other_to_ms
        if since_ms < to_ms:
            yield since_ms, to_ms


def length(windows: Iterable[Window]) -> int:
    """Return the sum of the windows' lengths."""
    return sum(to_ms - since_ms for since_ms, to_ms in windows)
