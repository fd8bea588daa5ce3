"""Counts of the protocols that a group's members offer. Source: ClassicGroup.supportedProtocols."""

from collections import Counter
from typing import TypeVar

from msgspec import Struct

from kafka_why.contract.kafka.requests import Protocol

K = TypeVar("K")

Names = tuple[str, ...]
"""The names of a member's protocols in the member's order, each once."""


class SupportedProtocols(Struct):
    """The number of members, of members by protocol name, and of members by their whole list of names.

    The lists are few, because the members of one application list the same protocols. A name or a list
    without members is absent.
    """

    members: int = 0
    by_name: dict[str, int] = {}
    by_list: dict[Names, int] = {}

    def add(self, protocols: list[Protocol], by: int = 1) -> None:
        """Count a member that offers these protocols. With `by` -1, no longer count it."""
        # A name that a member lists twice counts once (Kafka counts it twice, and then finds no protocol).
        names = tuple(dict.fromkeys([protocol.name for protocol in protocols]))
        self.members += by
        _add(self.by_list, names, by)
        for name in names:
            _add(self.by_name, name, by)

    def select(self, listed_first: list[Protocol]) -> str:
        """Return the protocol with the most votes. Each member votes for the first of its protocols that all
        members support. A tie goes to the protocol that is first in `listed_first`.
        """
        votes: Counter[str] = Counter()
        for names, members in self.by_list.items():
            votes[next(name for name in names if self.is_shared(name))] += members
        shared = [protocol.name for protocol in listed_first if self.is_shared(protocol.name)]
        return max(shared, key=lambda name: votes[name])

    def is_shared(self, name: str) -> bool:
        """Whether all members offer the protocol."""
        return self.by_name.get(name, 0) == self.members


def _add(counts: dict[K, int], key: K, by: int) -> None:
    count = counts.get(key, 0) + by
    if count:
        counts[key] = count
    else:
        del counts[key]
