"""The tasks for the cluster's share coordinators, as a coordinator's process reports them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareStateSummary:
    """The open tasks with their partitions, the age of the oldest in ms, the partitions that were done so
    far, the failures by error code, the tasks whose outcomes were appended, with the sum of their times from
    the asking in ms, and the alarm.
    """

    tasks: int = 0
    partitions: int = 0
    oldest_age_ms: int = 0
    initialized: int = 0
    adopted: int = 0
    deleted: int = 0
    failures: tuple[tuple[str, int], ...] = ()
    told_tasks: int = 0
    told_ms: int = 0
    alarm: str | None = None
