"""The share-state thread carries out tasks and reports them, although share coordinators lose requests and
answers (rows SP10 to SP13, SI10, SI11).
"""

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.share_requests import ShareStatePartition
from kafka_why.contract.kafka.snapshot import ShareSnapshot, ShareTask, ShareTaskPartitions
from kafka_why.contract.messages import ErrorCode
from streaming.service.share_state.open_tasks import (
    FIRST_BACKOFF_S,
    FIRST_PAUSE_S,
    LONGEST_BACKOFF_S,
    LONGEST_PAUSE_S,
    LOST,
    NOT_PERMITTED,
    OVERDUE_MS,
    PARTIAL_REPORT_AFTER_S,
    PARTITIONS_PER_RECORD,
    UNCERTAIN_S,
    OpenTasks,
    TaskCounts,
    TaskReport,
)
from streaming.service.share_state.partition_tasks import (
    NoAnswer,
    NoOutcome,
    PartitionTask,
    SharePartition,
    carry_out,
)
from tests.harness.group_views import view_with
from tests.harness.share_coordinators import TOPIC, Coordinators, State, deletion, done, item, key


class Groups:
    """Views of groups, and the thread's bookkeeping of them. `now_s` is the clock."""

    def __init__(self, brokers: Coordinators | None = None) -> None:
        self.brokers = brokers or Coordinators()
        self.now_s = 100.0
        self.settled_s = 0.0
        self.views: dict[str, list[ShareTask]] = {}
        self.counts, self.uncertain = TaskCounts(), dict[SharePartition, float]()
        self.tasks = OpenTasks(self.counts, self.uncertain)

    def show(self, group_id: str, *tasks: ShareTask) -> None:
        self.views[group_id] = list(tasks)
        self.tasks.apply(group_id.encode(), view(*tasks), self.now_s)

    def restart(self, *, is_same_process: bool) -> None:
        """Let the thread read everything again, as after a lost connection or in a new process."""
        if not is_same_process:
            self.counts, self.uncertain = TaskCounts(), {}
            self.settled_s = self.now_s + UNCERTAIN_S
        due_s = max(self.now_s, self.settled_s)
        self.tasks = OpenTasks(self.counts, self.uncertain)
        for group_id, tasks in self.views.items():
            self.tasks.apply(group_id.encode(), view(*tasks), due_s)

    def work(self) -> list[TaskReport]:
        """Run one round and return its reports."""
        items = self.tasks.due(self.now_s)
        if items:
            self.tasks.apply_results(items, carry_out(items, self.brokers), self.now_s)
        return list(self.tasks.reports(self.now_s))

    def tell(self) -> list[ShareStatePartition]:
        reports = self.work()
        for report in reports:
            self.tasks.reported(report, self.now_s, 2_000)
        return [one for report in reports for record in report.records for one in record.partitions]


def view(*tasks: ShareTask) -> bytes:
    return encode(view_with("g", share=ShareSnapshot({}, {}, {}, list(tasks))))


def asked(
    task: str = "1#0",
    numbers: Sequence[int] = (0,),
    epoch: int = 2,
    code: int = 0,
    at_ms: int = 1_000,
    *,
    altered: bool = False,
) -> ShareTask:
    topic = ShareTaskPartitions(str(TOPIC), "foo", list(numbers), epoch, -1, code, altered)
    return ShareTask(task, "initialize", at_ms, [topic])


def asked_to_delete(task: str, numbers: Sequence[int] = (0,)) -> ShareTask:
    return ShareTask(task, "delete", 1_000, [ShareTaskPartitions(str(TOPIC), "foo", list(numbers))])


def test_result_of_an_open_share_task_is_sent_again_with_growing_pauses() -> None:
    """Row SP10: after a pause that doubles up to five minutes. A task that was closed is forgotten."""
    groups = Groups()
    groups.show("g", asked())
    assert groups.tell() == [done()]
    for pause_s in (30.0, 60.0, 120.0, 240.0, 300.0, 300.0):
        assert pause_s in (FIRST_PAUSE_S, LONGEST_PAUSE_S) or pause_s % FIRST_PAUSE_S == 0
        groups.now_s += pause_s - 0.1
        assert groups.tell() == []
        groups.now_s += 0.1
        assert groups.tell() == [done()]
    assert groups.brokers.count("initialize") == 1
    groups.show("g")
    groups.now_s += 1_000
    assert groups.tell() == [] and not groups.tasks
    groups.show("g", asked("2#0"))
    groups.tasks.apply(b"g", None, groups.now_s)
    assert groups.tell() == [] and not groups.tasks, "a group without a view has no task"


def test_share_task_results_are_sent_when_complete_or_after_a_minute() -> None:
    """Row SP11. A temporary error is reported then, once (row SP26)."""
    groups = Groups(Coordinators(codes={key(1): 15}))
    groups.show("g", asked(numbers=[0, 1]))
    while groups.now_s < 100.0 + PARTIAL_REPORT_AFTER_S:
        assert groups.tell() == []
        groups.now_s += 1.0
    assert groups.tell() == [done(0), done(1, 15)]
    groups.show("g", asked(numbers=[1], code=15))
    groups.now_s += FIRST_PAUSE_S
    assert groups.tell() == []
    groups.now_s += PARTIAL_REPORT_AFTER_S
    assert groups.tell() == [], "it is no news"
    groups.brokers.codes.clear()
    groups.now_s += 2 * FIRST_PAUSE_S
    assert groups.tell() == [done(1)]


def test_failed_share_task_is_retried_with_back_off() -> None:
    """Row SI10: the back-off doubles, and the coordinator is looked up again."""
    groups = Groups(Coordinators(find_codes={key(): 15}))
    groups.show("g", asked())
    tried = 0
    while groups.now_s < 100.0 + PARTIAL_REPORT_AFTER_S - 1:
        groups.work()
        if groups.brokers.count("find") > tried:
            tried = groups.brokers.count("find")
            groups.now_s += min(FIRST_BACKOFF_S * 2 ** (tried - 1), LONGEST_BACKOFF_S) - 0.05
            groups.work()
            assert groups.brokers.count("find") == tried
        groups.now_s += 0.1
    assert 6 <= tried <= 10


def test_share_task_results_and_requests_are_split_to_fit_size_limits() -> None:
    groups = Groups()
    groups.show("g", asked(numbers=range(4_500)))
    (report,) = groups.work()
    assert [len(record.partitions) for record in report.records] == [
        PARTITIONS_PER_RECORD,
        PARTITIONS_PER_RECORD,
        500,
    ]
    assert max(len(encode(record)) for record in report.records) < 512 * 1024
    assert max(size for _, size in groups.brokers.calls) == 1_000, "so are the requests to coordinators"


def test_share_task_refused_by_the_brokers_stays_open_with_an_alarm() -> None:
    """CLUSTER_AUTHORIZATION_FAILED ends no task, or each heartbeat would send it again. Once the right is
    granted, tasks continue at once.
    """
    groups = Groups(Coordinators(find_codes={key(): 31}))
    groups.show("g", asked())
    assert groups.tell() == []
    assert groups.tasks.summary(1_000).alarm == NOT_PERMITTED
    assert groups.tasks.summary(1_000).failures == (("31", 1),)
    groups.brokers.find_codes.clear()
    groups.counts.refused = False
    assert groups.tell() == []
    groups.tasks.make_all_due(groups.now_s)
    assert groups.tell() == [done()]
    assert groups.tasks.summary(1_000).alarm is None


def test_share_task_progress_is_visible_to_operators() -> None:
    """Row SM4."""
    groups = Groups(Coordinators(states={key(1): State(9, 5)}, codes={key(2): 42}))
    groups.show("g", asked(numbers=[0, 1, 2], at_ms=1_500))
    groups.tell()
    summary = groups.tasks.summary(2_500)
    assert (summary.tasks, summary.partitions, summary.oldest_age_ms) == (1, 3, 1_000)
    assert (summary.initialized, summary.adopted, summary.failures) == (1, 1, (("42", 1),))
    assert (summary.reported_tasks, summary.reported_ms) == (1, 500)
    assert summary.alarm is None
    overdue = groups.tasks.summary(1_500 + OVERDUE_MS + 1)
    assert overdue.alarm is not None and "'g'" in overdue.alarm
    groups.show("h", asked_to_delete("2#0"))
    groups.tell()
    groups.brokers.lossy = 1.0
    groups.show("i", asked("3#0", numbers=[0]))
    groups.tell()
    summary = groups.tasks.summary(2_500)
    assert (summary.deleted, dict(summary.failures)[LOST]) == (1, 1)


def test_new_share_task_waits_for_an_earlier_one_with_unknown_outcome() -> None:
    """Row SK6: no change follows one that a broker may still process."""
    brokers = Coordinators()
    groups = Groups(brokers)
    groups.show("g", asked())
    brokers.lossy, brokers.random = 0.0, Random(1)
    initialize = brokers.initialize

    def lose(node_id: int, items: Sequence[PartitionTask]) -> Mapping[SharePartition, int]:
        brokers.late += [(0.0, "initialize", item) for item in items]
        raise NoAnswer("no answer")

    brokers.initialize = lose  # type: ignore[method-assign]
    assert groups.tell() == []
    brokers.initialize = initialize  # type: ignore[method-assign]
    groups.show("g", asked_to_delete("2#0"))
    groups.restart(is_same_process=True)
    groups.now_s += UNCERTAIN_S - 0.1
    assert groups.tell() == [] and brokers.count("delete") == 0
    brokers.arrive()
    groups.now_s += 0.1
    assert groups.tell() == [done()]
    assert not brokers.states


class Play:
    """A group's partition with its epochs, by turns of a thread or two, with losses and restarts.

    Whoever sees a NONE for the task of an epoch uses the partition from then on. A request is processed up to
    UNCERTAIN_S after it was lost. Two threads at once are guarded by the ticker's age, not by this, so then
    requests are not late.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.brokers = Coordinators(random=self.random, lossy=0.4)
        self.threads = [Groups(self.brokers) for _ in range(self.random.randint(1, 2))]
        self.brokers.may_be_late = len(self.threads) == 1
        self.brokers.now_s = self.threads[0].now_s
        self.epoch = 1
        self.is_open = self.is_altered = False

    def turn(self) -> None:
        match self.random.randrange(6):
            case 0 if not self.is_open:
                self.epoch += 1
                self.is_open, self.is_altered = True, bool(self.random.getrandbits(1))
                self.show()
            case 1:
                thread = self.random.choice(self.threads)
                thread.restart(is_same_process=bool(self.random.getrandbits(1)))
            case 2:
                self.advance(self.random.choice([0.3, 3.0, 30.0, 300.0]))
            case _:
                self.work(self.random.choice(self.threads))

    def advance(self, by_s: float) -> None:
        for thread in self.threads:
            thread.now_s += by_s
        self.brokers.now_s += by_s
        self.brokers.arrive(self.brokers.now_s - (UNCERTAIN_S if self.random.getrandbits(1) else 0.0))

    def show(self) -> None:
        task = asked(f"{self.epoch}#0", epoch=self.epoch, altered=self.is_altered)
        tasks = [task] if self.is_open else []
        for thread in self.threads:
            thread.show("g", *tasks)

    def work(self, thread: Groups) -> None:
        for one in thread.tell():
            epoch = self.brokers.states[key()].epoch
            if self.is_open and not one.error_code and (epoch == self.epoch or not self.is_altered):
                self.is_open = False
                self.brokers.states[key()].progress += 1
        if not self.is_open:
            self.show()


@given(st.integers(0, 2**32))
def test_share_state_in_use_is_never_overwritten(seed: int) -> None:
    """Rows SI11, SP11 to SP13: whatever is lost, restarted or repeated."""
    play = Play(seed)
    for _ in range(60):
        play.turn()
    assert not play.brokers.overwritten


def test_share_partition_is_initialized_only_after_its_state_was_read() -> None:
    """Row SP11: in one request per coordinator and group."""
    brokers = Coordinators()
    others = [PartitionTask("t", key(n, "h"), "foo", False, 2, -1) for n in range(2)]
    assert carry_out([item(0), item(1), item(2), *others], brokers) == {
        **{key(n): done(n) for n in range(3)},
        **{key(n, "h"): done(n) for n in range(2)},
    }
    assert brokers.calls[0] == ("find", 5)
    assert [name for name, _ in brokers.calls[1:]] == ["read", "initialize"] * 4
    assert sum(size for name, size in brokers.calls if name == "initialize") == 5


FENCED = done(code=ErrorCode.FENCED_STATE_EPOCH, state_epoch=7, start_offset=40)


@pytest.mark.parametrize(
    ("state", "asked", "told", "left"),
    [
        # A thread was killed after InitializeShareGroupState, before its record.
        pytest.param(State(2, 40, 5), item(epoch=2), done(), State(2, 40, 5), id="SK8, SP13 of this epoch"),
        pytest.param(State(7, 40), item(epoch=2), FENCED, State(7, 40), id="SK11 of a later epoch"),
        # The brokers' own coordinator had the group.
        pytest.param(State(3, 40, 5), item(epoch=4), done(), State(3, 40, 5), id="SK11 of an earlier epoch"),
        pytest.param(
            State(3, 40, 5),
            item(epoch=4, offset=20, altered=True),
            done(),
            State(4, 20),
            id="SO10 an administrator replaces it",
        ),
    ],
)
def test_only_an_administrators_task_replaces_a_share_state(
    state: State, asked: PartitionTask, told: ShareStatePartition, left: State
) -> None:
    brokers = Coordinators(states={key(): state})
    assert carry_out([asked], brokers) == {key(): told}
    assert brokers.states == {key(): left}
    assert brokers.count("initialize") == asked.is_altered


@pytest.mark.parametrize("code", [3, 14, 15, 16, 31, 42, -1])
@pytest.mark.parametrize("what", [item(), deletion()])
def test_only_a_fatal_broker_error_ends_a_share_task(code: int, what: PartitionTask) -> None:
    """Row SI10. CLUSTER_AUTHORIZATION_FAILED is temporary, too: the permission may be granted."""
    outcome = done(code=code) if code in (42, -1) else NoOutcome(code)
    assert carry_out([what], Coordinators(find_codes={key(): code})) == {key(): outcome}
    assert carry_out([what], Coordinators(codes={key(): code})) == {key(): outcome}


def test_share_state_of_a_topic_that_is_gone_counts_as_deleted() -> None:
    """Row SK5."""
    assert carry_out([deletion(), deletion(1)], Coordinators(gone_topics={TOPIC})) == {
        key(n): done(n) for n in range(2)
    }


def test_coordinator_without_ownership_changes_no_share_state() -> None:
    """Row SP18. What was not reached has no result."""
    brokers = Coordinators(is_owner=False, states={key(1): State(2, -1)})
    assert carry_out([item(0), deletion(2)], brokers) == {}
    assert carry_out([item(1)], brokers) == {key(1): done(1)}, "this needs no change"


def test_unavailable_share_coordinator_is_awaited_only_once() -> None:
    brokers = Coordinators(lossy=1.0)
    assert carry_out([item(n) for n in range(3_000)], brokers) == {key(n): NoOutcome() for n in range(3_000)}
    assert brokers.calls == [("find", 1_000)]
