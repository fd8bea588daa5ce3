"""Finds the differences between both sides' answers, and matches each with an accepted (kept) one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import zip_longest

from tests.conformance.kept import Kept
from tests.conformance.servers import Played


@dataclass(frozen=True)
class Difference:
    """A value that differs between the two sides' answers, None for a side whose answer lacks it."""

    case: str
    step: str
    path: str
    kafkas: str | None
    ours: str | None

    def __str__(self) -> str:
        kafkas, ours = ("no such value" if value is None else value for value in (self.kafkas, self.ours))
        return f"{self.case}: {self.step}: {self.path}: Kafka {kafkas}, ours {ours}"

    def kept(self, keeps: Iterable[Kept]) -> Kept | None:
        """Return the first of these accepted differences that this one matches, or None."""
        return next((kept for kept in keeps if self._is(kept)), None)

    def _is(self, kept: Kept) -> bool:
        pairs = [
            (self.case, kept.case),
            (self.step, kept.step),
            (self.path, kept.path),
            (str(self.kafkas), kept.kafkas),
            (str(self.ours), kept.ours),
        ]
        return all(any(fnmatchcase(value, one) for one in patterns.split("|")) for value, patterns in pairs)


def differences(played: Played) -> list[Difference]:
    """Return all differences in one case."""
    found = []
    steps = zip_longest(played.case.steps, played.kafkas, played.ours)
    for number, (step, kafkas, ours) in enumerate(steps, 1):
        for path in dict.fromkeys([*kafkas, *ours]):
            pair = kafkas.get(path), ours.get(path)
            if pair[0] != pair[1]:
                where = f"{number} {step.text}"
                found.append(Difference(played.case.title, where, path, *pair))
    return found


def unkept(all_played: Iterable[Played], keeps: Sequence[Kept]) -> list[Difference]:
    """Return the differences that match none of these."""
    return [found for played in all_played for found in differences(played) if found.kept(keeps) is None]


def unused(all_played: Sequence[Played], keeps: Sequence[Kept]) -> list[Kept]:
    """Return the accepted differences that did not occur and have to be removed."""
    shown = {found.kept(keeps) for played in all_played for found in differences(played)}
    return [kept for kept in keeps if kept.is_always_shown and kept not in shown]
