"""The tasks of an application's instances, and what is wrong with them. Imports nothing of the project."""

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum

from tests.campaigns.verdict import Verdict


class Violation(StrEnum):
    """The kinds of violations, in the words of the table."""

    OWNERS = "task without one owner"
    IDLE = "instance without tasks"
    STANDBY = "store without a standby"
    ERROR = "ended in ERROR"


def judge_tasks(held: Mapping[str, Collection[str]], partitions: int, at: int) -> Iterator[Verdict]:
    """Check that each task is active in one instance, each instance has some, and each store has a standby
    in another one. `held` has the tasks of each instance, such as `active:0_1`. Subtopology 0 makes words,
    subtopology 1 has a store of counts.
    """
    for task in (f"{subtopology}_{number}" for subtopology in range(2) for number in range(partitions)):
        owners = [name for name, tasks in held.items() if f"active:{task}" in tasks]
        if len(owners) != 1:
            yield Verdict(Violation.OWNERS, at, task, f"it is active in {owners}")
    for name in (name for name, tasks in held.items() if not any(it.startswith("active:") for it in tasks)):
        yield Verdict(Violation.IDLE, at, name, "it has no active task")
    for task in (f"1_{number}" for number in range(partitions)):
        copies = [name for name, tasks in held.items() if f"standby:{task}" in tasks]
        if len(copies) != (len(held) > 1):
            yield Verdict(Violation.STANDBY, at, task, f"it has a standby in {copies}")
