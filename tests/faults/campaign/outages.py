"""The outages that were in force, of those that the owners' records in the checkpoint name."""

from collections.abc import Collection

Outage = tuple[int, int]
"""Its begin and its end, in milliseconds."""


def in_force(before: Collection[Outage], newest: Collection[Outage]) -> set[Outage]:
    """Return the outages that are known now, from those known before and those of the newest owner's record.

    A record has the last ones only, and decides about the time from its first outage on: an owner that has
    lost the topics may have written one that nobody else ever knew.
    """
    first_ms = min((after_ms for after_ms, _ in newest), default=None)
    if first_ms is None:
        return set(before)
    return {outage for outage in before if outage[1] <= first_ms} | set(newest)
