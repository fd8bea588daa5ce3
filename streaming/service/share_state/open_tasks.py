"""The open tasks of share groups, and the work that is due. No IO, no clock.

A task is to initialize or delete the state of some of a group's partitions at the cluster's share
coordinators. It is open while the group's view, its latest record on the groups topic, shows it. An open task
is carried out, and again after a pause that doubles (row SP10). Nothing survives a restart. All times are of
a monotonic clock.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType

from kafka_why.contract.kafka.share_requests import ShareStatePartition, ShareStateResult
from kafka_why.contract.kafka.snapshot import ShareTask, ShareTaskPartitions
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.service import ShareStateSummary
from state.kafka.share.state import RETRIABLE
from streaming.service.share_state.partition_tasks import NoOutcome, PartitionTask, Results, SharePartition

# A task that stays open after its outcomes were appended is carried out again after a pause, which doubles.
FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 300.0
# After this time the outcomes so far are appended, even if other partitions have none.
PARTIAL_REPORT_AFTER_S = 60.0
# A partition without an outcome is tried again after a back-off, which doubles. Creating the state topic
# takes half a second.
FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
# The time for which a broker may still process an unanswered request.
UNCERTAIN_S = 10.0
# The maximum number of partitions carried out at once, so that new tasks do not wait long for those of a
# large group.
PARTITIONS_AT_ONCE = 5_000
# The maximum number of partitions in one record, with about 130 bytes each.
PARTITIONS_PER_RECORD = 2_000
# A task that is open for longer raises an alarm.
OVERDUE_MS = 120_000

NOT_PERMITTED = (
    "the brokers refuse to initialize and delete the state of share groups' partitions: grant the "
    "coordinator's principal CLUSTER_ACTION on the cluster. Until then share groups get no further "
    "partitions, and their offsets cannot be reset or deleted"
)
LOST = "lost"


@dataclass(slots=True)
class TaskCounts:
    """The work done since the start."""

    # Numbers of partitions. Adopted ones had a state with a higher epoch, which the group then uses.
    initialized: int = 0
    adopted: int = 0
    deleted: int = 0
    # The number of failed attempts for a partition, by error code, or by LOST if no answer came.
    failures: Counter[str] = field(default_factory=Counter)
    # The number of reports with a success, and the sum of the times since their tasks were created.
    reported_tasks: int = 0
    reported_ms: int = 0
    refused: bool = False  # the brokers' last answer denied CLUSTER_ACTION to the principal

    def failed(self, error_code: int) -> None:
        """Count a failed attempt for a partition. `error_code` is 0 if no answer came."""
        has_answer = error_code != 0
        self.failures[str(error_code) if has_answer else LOST] += 1


class _Share(Struct, frozen=True):
    """The fields used of `kafka_why.contract.kafka.snapshot.ShareSnapshot`."""

    tasks: list[ShareTask] | UnsetType = UNSET


class _ConsumerRecord(Struct, frozen=True):
    """The fields used of `kafka_why.contract.kafka.snapshot.ConsumerGroupSnapshot`."""

    share: _Share | UnsetType = UNSET


class _GroupRecord(Struct, frozen=True):
    """The fields used of a record of the groups topic."""

    consumer: _ConsumerRecord | None = None


_group_record = msgspec.json.Decoder(_GroupRecord)


@dataclass(slots=True)
class _Attempts:
    """The attempts for a partition that has no outcome yet."""

    count: int = 0
    error_code: int = 0  # of the last attempt, 0 if no answer came
    due_s: float = 0.0  # when the next attempt is due


@dataclass(slots=True)
class _Task:
    """An open task of a group. It is carried out once for each time that it begins."""

    group_id: str
    asked_at_ms: int  # when the group created it
    is_deletion: bool
    due_s: float  # when it begins, or begins again
    # As the group's view shows the task.
    items: dict[SharePartition, PartitionTask] = field(default_factory=dict)
    shown_errors: dict[SharePartition, int] = field(default_factory=dict)  # error codes
    began_s: float | None = None  # None while it waits for `due_s`
    pause_s: float = FIRST_PAUSE_S  # until it begins again after the next report
    # Since it began. `refused` are partitions for which the brokers denied the permission.
    outcomes: dict[SharePartition, ShareStatePartition] = field(default_factory=dict)
    attempts: dict[SharePartition, _Attempts] = field(default_factory=dict)
    refused: set[SharePartition] = field(default_factory=set)

    def is_pending(self, key: SharePartition) -> bool:
        """Return True if the partition has no outcome yet and was not refused."""
        return key not in self.outcomes and key not in self.refused


class TaskReport(Struct, frozen=True):
    """The outcomes of a task so far, as records for the requests topic."""

    task: str
    records: list[ShareStateResult]


class OpenTasks:
    """The open tasks that the records of the groups topic show.

    It decides which partitions are due, and when outcomes are reported. `uncertain` are partitions whose last
    change has an unknown outcome, each with the time of its next attempt. They are shared with the OpenTasks
    that replaces this one after a lost connection.
    """

    def __init__(self, counts: TaskCounts, uncertain: dict[SharePartition, float]) -> None:
        self._counts = counts
        self._uncertain = uncertain
        self._tasks_by_group: dict[str, list[str]] = {}  # names of tasks
        self._tasks: dict[str, _Task] = {}  # by name, the oldest first

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def apply(self, key: bytes | None, value: bytes | None, due_s: float) -> None:
        """Apply a record of the groups topic. A new task is due from `due_s` on. Raises one of
        `kafka_why.contract.codec.UNREADABLE`.
        """
        group_id = (key or b"").decode()
        shown_tasks = _tasks_in(value)
        names = [shown.task for shown in shown_tasks]
        for name in self._tasks_by_group.pop(group_id, ()):
            if name not in names:
                del self._tasks[name]
        if names:
            self._tasks_by_group[group_id] = names
        for shown in shown_tasks:
            task = self._tasks.get(shown.task)
            if task is None:
                is_deletion = shown.kind == "delete"
                task = self._tasks[shown.task] = _Task(group_id, shown.asked_at_ms, is_deletion, due_s)
            self._update_partitions(task, shown)

    def _update_partitions(self, task: _Task, shown: ShareTask) -> None:
        """Set the task's partitions to those that the view shows, and drop the results of all others."""
        task.items, task.shown_errors = {}, {}
        for topic in shown.topics:
            for item in _partition_tasks(task.group_id, shown, topic):
                task.items[item.key] = item
                task.shown_errors[item.key] = topic.error_code
        for by_partition in (task.outcomes, task.attempts):
            for key in by_partition.keys() - task.items.keys():
                del by_partition[key]
        task.refused &= task.items.keys()

    @property
    def is_working(self) -> bool:
        """Return True if a task is being carried out."""
        return any(task.began_s is not None for task in self._tasks.values())

    def due(self, now_s: float) -> list[PartitionTask]:
        """Start the tasks that are due, and return their due partitions, each once. The maximum is
        PARTITIONS_AT_ONCE.
        """
        for key in [key for key, until_s in self._uncertain.items() if until_s <= now_s]:
            del self._uncertain[key]
        due: dict[SharePartition, PartitionTask] = {}
        for task in self._tasks.values():
            if task.due_s > now_s:
                continue
            if task.began_s is None:
                task.began_s = now_s
            for key, item in task.items.items():
                if len(due) == PARTITIONS_AT_ONCE:
                    return list(due.values())
                if key not in due and task.is_pending(key) and self._due_s(task, key) <= now_s:
                    due[key] = item
        return list(due.values())

    def _due_s(self, task: _Task, key: SharePartition) -> float:
        attempts = task.attempts.get(key)
        return max(0.0 if attempts is None else attempts.due_s, self._uncertain.get(key, 0.0))

    def apply_results(self, items: Sequence[PartitionTask], results: Results, now_s: float) -> None:
        """Apply the results of these items. An item without a result stays due."""
        for item in items:
            task, result = self._tasks[item.task], results.get(item.key)
            if result is None:
                continue
            if isinstance(result, NoOutcome):
                self._try_again(task, item.key, result, now_s)
            else:
                task.outcomes[item.key] = result
                if result.error_code not in (ErrorCode.NONE, ErrorCode.FENCED_STATE_EPOCH):
                    self._counts.failed(result.error_code)

    def _try_again(self, task: _Task, key: SharePartition, result: NoOutcome, now_s: float) -> None:
        """Schedule another attempt for a partition, unless the brokers have denied the permission."""
        self._counts.failed(result.error_code)
        if result.is_uncertain:
            self._uncertain[key] = now_s + UNCERTAIN_S
        if result.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            task.refused.add(key)
            return
        attempts = task.attempts.setdefault(key, _Attempts())
        attempts.due_s = now_s + min(FIRST_BACKOFF_S * 2**attempts.count, LONGEST_BACKOFF_S)
        attempts.count += 1
        attempts.error_code = result.error_code

    def reports(self, now_s: float) -> Iterator[TaskReport]:
        """Yield a report of each task whose partitions all have an outcome, and a report of the outcomes so
        far of each task that began PARTIAL_REPORT_AFTER_S ago. The caller has to call `reported` after each.
        """
        for name, task in list(self._tasks.items()):
            if task.began_s is None:
                continue
            is_done = not any(map(task.is_pending, task.items))
            if is_done or now_s - task.began_s >= PARTIAL_REPORT_AFTER_S:
                outcomes = [*task.outcomes.values(), *_errors(task)]
                yield TaskReport(name, list(_records(name, task.group_id, outcomes)))

    def reported(self, report: TaskReport, now_s: float, now_ms: int) -> None:
        """Record that the report is in the log: count the outcomes, and discard them. `now_ms` is of the wall
        clock.

        If a view still shows the task, it is carried out again after its pause.
        """
        task = self._tasks[report.task]
        # A fenced partition has a state already. The group adopts it.
        outcomes = task.outcomes.values()
        unfenced = [outcome for outcome in outcomes if outcome.error_code != ErrorCode.FENCED_STATE_EPOCH]
        succeeded = sum(outcome.error_code == ErrorCode.NONE for outcome in unfenced)
        counts, adopted = self._counts, len(task.outcomes) - len(unfenced)
        if task.is_deletion:
            counts.deleted += succeeded
        else:
            counts.initialized += succeeded
        counts.adopted += adopted
        if succeeded or adopted:
            counts.reported_tasks += 1
            counts.reported_ms += max(0, now_ms - task.asked_at_ms)
        counts.refused = counts.refused or bool(task.refused)
        task.began_s, task.due_s = None, now_s + task.pause_s
        task.pause_s = min(2 * task.pause_s, LONGEST_PAUSE_S)
        task.outcomes, task.attempts, task.refused = {}, {}, set()

    def make_all_due(self, now_s: float) -> None:
        """Make the tasks that wait for their pause due now."""
        for task in self._tasks.values():
            task.due_s = min(task.due_s, now_s)

    def summary(self, now_ms: int) -> ShareStateSummary:
        """Return the summary for operators at this time of the wall clock."""
        tasks, counts = self._tasks.values(), self._counts
        oldest = min(tasks, key=lambda task: task.asked_at_ms, default=None)
        oldest_age_ms = 0 if oldest is None else max(0, now_ms - oldest.asked_at_ms)
        alarm = None
        if counts.refused and tasks:
            alarm = NOT_PERMITTED
        elif oldest is not None and oldest_age_ms > OVERDUE_MS:
            alarm = (
                f"the share coordinators have not carried out {len(tasks)} tasks of share groups, the oldest "
                f"for {oldest_age_ms // 60_000} minutes, of group {oldest.group_id!r}"
            )
        return ShareStateSummary(
            tasks=len(tasks),
            partitions=sum(len(task.items) for task in tasks),
            oldest_age_ms=oldest_age_ms,
            initialized=counts.initialized,
            adopted=counts.adopted,
            deleted=counts.deleted,
            failures=tuple(sorted(counts.failures.items())),
            reported_tasks=counts.reported_tasks,
            reported_ms=counts.reported_ms,
            alarm=alarm,
        )


def _tasks_in(value: bytes | None) -> list[ShareTask]:
    """Return the tasks that a view shows, none for a tombstone."""
    if value is None or b'"tasks"' not in value:
        # Views without share state are not decoded.
        return []
    consumer = _group_record.decode(value).consumer
    share = UNSET if consumer is None else consumer.share
    tasks = UNSET if share is UNSET else share.tasks
    return [] if tasks is UNSET else tasks


def _partition_tasks(group_id: str, task: ShareTask, topic: ShareTaskPartitions) -> Iterator[PartitionTask]:
    """Yield the task for each of these partitions of a topic."""
    topic_id = UUID(topic.topic_id)
    for number in topic.partitions:
        yield PartitionTask(
            task.task,
            SharePartition(group_id, topic_id, number),
            topic.topic_name,
            is_deletion=task.kind == "delete",
            state_epoch=topic.state_epoch or 0,
            start_offset=topic.start_offset or 0,
            is_altered=topic.altered,
        )


def _errors(task: _Task) -> Iterable[ShareStatePartition]:
    """Yield each retriable last error of a partition without an outcome, unless the view already shows it."""
    for key, attempts in task.attempts.items():
        error_code = attempts.error_code
        if error_code in RETRIABLE and error_code != task.shown_errors[key] and task.is_pending(key):
            yield ShareStatePartition(key.topic_id, key.partition, error_code)


def _records(
    name: str, group_id: str, partitions: Sequence[ShareStatePartition]
) -> Iterator[ShareStateResult]:
    for begin in range(0, len(partitions), PARTITIONS_PER_RECORD):
        part = list(partitions[begin : begin + PARTITIONS_PER_RECORD])
        yield ShareStateResult(group_id=group_id, task=name, partitions=part)
