"""What operators see of the share-state thread. No IO, no clock."""

from collections import Counter
from dataclasses import dataclass, field

from kafka_why.contract.service import ShareStateSummary

# A task that is open for longer raises an alarm.
OVERDUE_MS = 120_000

NOT_PERMITTED = (
    "the brokers refuse to initialize and delete the state of share groups' partitions: grant the "
    "coordinator's principal CLUSTER_ACTION on the cluster. Until then share groups get no further "
    "partitions, and their offsets cannot be reset or deleted"
)
LOST = "lost"


@dataclass(slots=True)
class Counts:
    """What was done since the start. `refused`: the principal lacks CLUSTER_ACTION, as the brokers said last.

    `failures` are by error code, of answers and of requests without one (LOST).
    """

    initialized: int = 0
    adopted: int = 0
    deleted: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    told_tasks: int = 0
    told_ms: int = 0
    refused: bool = False

    def failed(self, error_code: int) -> None:
        """Count a partition that was not changed."""
        self.failures[str(error_code) if error_code else LOST] += 1

    def told(self, good: int, adopted: int, *, is_deletion: bool, took_ms: int) -> None:
        """Count a task whose outcomes were appended, of which so many partitions are good."""
        if is_deletion:
            self.deleted += good
        else:
            self.initialized += good
        self.adopted += adopted
        if good or adopted:
            self.told_tasks += 1
            self.told_ms += max(0, took_ms)


def summary_of(
    counts: Counts, *, tasks: int, partitions: int, oldest_age_ms: int, oldest_group: str | None
) -> ShareStateSummary:
    """Return the summary for these open tasks."""
    alarm = None
    if counts.refused and tasks:
        alarm = NOT_PERMITTED
    elif oldest_age_ms > OVERDUE_MS:
        alarm = (
            f"the share coordinators have not carried out {tasks} tasks of share groups, the oldest for "
            f"{oldest_age_ms // 60_000} minutes, of group {oldest_group!r}"
        )
    return ShareStateSummary(
        tasks,
        partitions,
        oldest_age_ms,
        counts.initialized,
        counts.adopted,
        counts.deleted,
        tuple(sorted(counts.failures.items())),
        counts.told_tasks,
        counts.told_ms,
        alarm,
    )
