"""What the share-state thread decides, with share coordinators in memory that lose requests and answers (rows
SP10 to SP13, SP18, SI10, SI11, SK5, SK8, SK11).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import FindCoordinatorResponse
from msgspec import structs

from records.codec import encode
from state.errors import ErrorCode
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.protocols import view_of
from state.kafka.share_requests import ShareStatePartition
from state.kafka.snapshot import ConsumerGroupSnapshot, ShareSnapshot, ShareTask, ShareTaskPartitions
from streaming.service.share_state import messages
from streaming.service.share_state.broker_coordinators import coordinator_key
from streaming.service.share_state.carrying_out import Again, Item, Key, Lost, NotOwnerNow, Summary, carry_out
from streaming.service.share_state.open_tasks import (
    FIRST_BACKOFF_S,
    FIRST_PAUSE_S,
    LONGEST_BACKOFF_S,
    LONGEST_PAUSE_S,
    PART_AFTER_S,
    PARTITIONS_PER_RECORD,
    UNCERTAIN_S,
    OpenTasks,
    Report,
)
from streaming.service.share_state.summary import LOST, NOT_PERMITTED, OVERDUE_MS, Counts

TOPIC, OTHER = UUID(int=1), UUID(int=2)
NODES = 2
NEVER_LOST = 0.0


@dataclass
class State:
    """What a share coordinator has of a partition. `progress` is what the group has done since."""

    epoch: int
    start_offset: int
    progress: int = 0


@dataclass
class Coordinators:
    """Share coordinators in memory. A call may be lost before it arrives, or its answer; a change that was
    lost on its way arrives later (`arrive`).
    """

    random: Random = field(default_factory=lambda: Random(0))
    lossy: float = NEVER_LOST
    states: dict[Key, State] = field(default_factory=dict)
    codes: dict[Key, int] = field(default_factory=dict)  # errors that the coordinators answer with
    find_codes: dict[Key, int] = field(default_factory=dict)
    gone_topics: set[UUID] = field(default_factory=set)
    is_owner: bool = True
    now_s: float = 0.0
    may_be_late: bool = True
    late: list[tuple[float, str, Item]] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)
    overwritten: list[Key] = field(default_factory=list)

    def find(self, keys: Sequence[Key]) -> Mapping[Key, tuple[int, int]]:
        self._call("find", keys)
        return {key: (key.partition % NODES, self.find_codes.get(key, 0)) for key in keys}

    def read(self, node_id: int, keys: Sequence[Key]) -> Mapping[Key, Summary]:
        self._call("read", keys)
        return {key: self._summary(key) for key in keys}

    def _summary(self, key: Key) -> Summary:
        state = self.states.get(key, State(0, -1))
        return Summary(self.codes.get(key, 0), state.epoch, state.start_offset)

    def initialize(self, node_id: int, items: Sequence[Item]) -> Mapping[Key, int]:
        self._change("initialize", items)
        return {item.key: self._initialize(item) for item in items}

    def _initialize(self, item: Item) -> int:
        if code := self.codes.get(item.key):
            return code
        state = self.states.get(item.key)
        if state is not None and state.epoch > item.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        if state is not None and state.epoch == item.state_epoch and state.progress:
            self.overwritten.append(item.key)
        self.states[item.key] = State(item.state_epoch, item.start_offset)
        return ErrorCode.NONE

    def delete(self, node_id: int, keys: Sequence[Key]) -> Mapping[Key, int]:
        self._change("delete", [Item("", key, "", True) for key in keys])
        return {key: self._delete(key) for key in keys}

    def _delete(self, key: Key) -> int:
        if key.topic_id in self.gone_topics:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.states.pop(key, None)
        return self.codes.get(key, 0)

    def gone(self, topics: Mapping[UUID, str]) -> Collection[UUID]:
        self._call("gone", list(topics))
        return self.gone_topics & topics.keys()

    def arrive(self, before_s: float = float("inf")) -> None:
        """The brokers process what was sent until then and not answered."""
        arrived = [one for one in self.late if one[0] <= before_s]
        self.late = [one for one in self.late if one[0] > before_s]
        for _, what, item in arrived:
            if what == "initialize":
                self._initialize(item)
            else:
                self._delete(item.key)

    def count(self, what: str) -> int:
        return sum(name == what for name, _ in self.calls)

    def _call(self, what: str, of: Sequence[object]) -> None:
        self.calls.append((what, len(of)))
        if self.random.random() < self.lossy:
            raise Lost(what)

    def _change(self, what: str, items: Sequence[Item]) -> None:
        if not self.is_owner:
            raise NotOwnerNow
        self.calls.append((what, len(items)))
        if self.random.random() >= self.lossy:
            return
        match self.random.randrange(3 if self.may_be_late else 2):
            case 0:
                raise Lost("never sent", is_sent=False)
            case 2:
                self.late += [(self.now_s, what, item) for item in items]
            case 1:
                for item in items:
                    self._initialize(item) if what == "initialize" else self._delete(item.key)
        raise Lost("no answer")


def key(partition: int = 0, group_id: str = "g", topic_id: UUID = TOPIC) -> Key:
    return Key(group_id, topic_id, partition)


def item(partition: int = 0, epoch: int = 2, offset: int = -1) -> Item:
    return Item("t", key(partition), "foo", False, epoch, offset)


def deletion(partition: int = 0) -> Item:
    return Item("t", key(partition), "foo", True)


def done(partition: int = 0, code: int = 0, **fields: int) -> ShareStatePartition:
    return ShareStatePartition(TOPIC, partition, code, **fields)


def test_what_has_no_state_is_initialized_after_a_reading() -> None:
    """Row SP11: in one request per coordinator and group."""
    brokers = Coordinators()
    others = [structs_item(group_id="h"), structs_item(partition=1, group_id="h")]
    assert carry_out([item(0), item(1), item(2), *others], brokers) == {
        **{key(n): done(n) for n in range(3)},
        **{key(n, "h"): done(n) for n in range(2)},
    }
    assert brokers.calls[0] == ("find", 5)
    assert [name for name, _ in brokers.calls[1:]] == ["read", "initialize"] * 4
    assert sum(size for name, size in brokers.calls if name == "initialize") == 5


def structs_item(partition: int = 0, group_id: str = "h") -> Item:
    return Item("t", key(partition, group_id), "foo", False, 2, -1)


def test_a_state_of_this_epoch_is_left_as_it_is() -> None:
    """Rows SK8, SP13: a thread was killed after InitializeShareGroupState, before its record."""
    brokers = Coordinators(states={key(): State(2, 40, progress=5)})
    assert carry_out([item(epoch=2)], brokers) == {key(): done()}
    assert brokers.count("initialize") == 0
    assert brokers.states[key()].progress == 5


def test_a_state_of_a_later_epoch_is_told_and_left_as_it_is() -> None:
    """Row SK11."""
    brokers = Coordinators(states={key(): State(7, 40)})
    fenced = done(code=ErrorCode.FENCED_STATE_EPOCH, state_epoch=7, start_offset=40)
    assert carry_out([item(epoch=2)], brokers) == {key(): fenced}
    assert brokers.count("initialize") == 0


def test_a_state_of_an_earlier_epoch_is_replaced() -> None:
    brokers = Coordinators(states={key(): State(3, 40, progress=5)})
    assert carry_out([item(epoch=4, offset=20)], brokers) == {key(): done()}
    assert brokers.states == {key(): State(4, 20)}


@pytest.mark.parametrize("code", [3, 14, 15, 16, 31])
@pytest.mark.parametrize("what", [item(), deletion()])
def test_an_error_that_passes_is_no_end(code: int, what: Item) -> None:
    """Row SI10. CLUSTER_AUTHORIZATION_FAILED passes, too: the permission may be granted."""
    assert carry_out([what], Coordinators(find_codes={key(): code})) == {key(): Again(code)}
    assert carry_out([what], Coordinators(codes={key(): code})) == {key(): Again(code)}


@pytest.mark.parametrize("code", [42, -1])
def test_another_error_is_an_end(code: int) -> None:
    assert carry_out([item()], Coordinators(find_codes={key(): code})) == {key(): done(code=code)}
    assert carry_out([item()], Coordinators(codes={key(): code})) == {key(): done(code=code)}
    assert carry_out([deletion()], Coordinators(codes={key(): code})) == {key(): done(code=code)}


def test_the_state_of_a_topic_that_is_gone_counts_as_deleted() -> None:
    """Row SK5."""
    assert carry_out([deletion(), deletion(1)], Coordinators(gone_topics={TOPIC})) == {
        key(n): done(n) for n in range(2)
    }


def test_nothing_is_changed_by_who_may_not_be_the_owner() -> None:
    """Row SP18. What was not reached has no result."""
    brokers = Coordinators(is_owner=False, states={key(1): State(2, -1)})
    assert carry_out([item(0), deletion(2)], brokers) == {}
    assert carry_out([item(1)], brokers) == {key(1): done(1)}, "this needs no change"


def test_nobody_waits_twice_for_a_broker_that_is_away() -> None:
    brokers = Coordinators(lossy=1.0)
    assert carry_out([item(n) for n in range(3_000)], brokers) == {key(n): Again() for n in range(3_000)}
    assert brokers.calls == [("find", 1_000)]


def test_large_requests_are_sent_in_parts() -> None:
    brokers = Coordinators()
    carry_out([item(n) for n in range(5_000)], brokers)
    assert max(size for _, size in brokers.calls) == 1_000


class Groups:
    """Views of groups, and the thread's bookkeeping of them. `now_s` is the clock."""

    def __init__(self, brokers: Coordinators | None = None) -> None:
        self.brokers = brokers or Coordinators()
        self.now_s = 100.0
        self.settled_s = 0.0
        self.views: dict[str, list[ShareTask]] = {}
        self.counts, self.uncertain = Counts(), dict[Key, float]()
        self.tasks = OpenTasks(self.counts, self.uncertain)

    def show(self, group_id: str, *tasks: ShareTask) -> None:
        self.views[group_id] = list(tasks)
        self.tasks.apply(group_id.encode(), view(*tasks), self.now_s)

    def restart(self, *, is_same_process: bool) -> None:
        """The thread reads everything anew, after a lost connection or in a new process."""
        if not is_same_process:
            self.counts, self.uncertain = Counts(), {}
            self.settled_s = self.now_s + UNCERTAIN_S
        due_s = max(self.now_s, self.settled_s)
        self.tasks = OpenTasks(self.counts, self.uncertain)
        for group_id, tasks in self.views.items():
            self.tasks.apply(group_id.encode(), view(*tasks), due_s)

    def work(self) -> list[Report]:
        """One round, and what it tells."""
        items = self.tasks.due(self.now_s)
        if items:
            self.tasks.take(items, carry_out(items, self.brokers), self.now_s)
        return list(self.tasks.reports(self.now_s))

    def tell(self) -> list[ShareStatePartition]:
        reports = self.work()
        for report in reports:
            self.tasks.told(report, self.now_s, 2_000)
        return [one for report in reports for record in report.records for one in record.partitions]


def view(*tasks: ShareTask) -> bytes:
    consumer = ConsumerGroupSnapshot(
        assignment_epoch=1,
        assignor_name="",
        topics={},
        resolved_regexes={},
        unknown_topics=[],
        unresolved_regexes=[],
        share=ShareSnapshot({}, {}, {}, list(tasks)),
    )
    return encode(structs.replace(view_of(ConsumerGroup(group_id="g", incarnation="i")), consumer=consumer))


def asked(
    task: str = "1#0", numbers: Sequence[int] = (0,), epoch: int = 2, code: int = 0, at_ms: int = 1_000
) -> ShareTask:
    topic = ShareTaskPartitions(str(TOPIC), "foo", list(numbers), epoch, -1, code)
    return ShareTask(task, "initialize", at_ms, [topic])


def asked_to_delete(task: str, numbers: Sequence[int] = (0,)) -> ShareTask:
    return ShareTask(task, "delete", 1_000, [ShareTaskPartitions(str(TOPIC), "foo", list(numbers))])


def test_a_task_is_told_once_and_again_while_it_is_open() -> None:
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


def test_a_group_without_a_view_has_no_task() -> None:
    groups = Groups()
    groups.show("g", asked())
    groups.tasks.apply(b"g", None, groups.now_s)
    assert not groups.tasks and groups.tell() == []


def test_outcomes_are_told_when_all_are_there_or_after_a_minute() -> None:
    """Row SP11. An error that passes is told then, once (row SP26)."""
    groups = Groups(Coordinators(codes={key(1): 15}))
    groups.show("g", asked(numbers=[0, 1]))
    while groups.now_s < 100.0 + PART_AFTER_S:
        assert groups.tell() == []
        groups.now_s += 1.0
    assert groups.tell() == [done(0), done(1, 15)]
    groups.show("g", asked(numbers=[1], code=15))
    groups.now_s += FIRST_PAUSE_S
    assert groups.tell() == []
    groups.now_s += PART_AFTER_S
    assert groups.tell() == [], "it is no news"
    groups.brokers.codes.clear()
    groups.now_s += 2 * FIRST_PAUSE_S
    assert groups.tell() == [done(1)]


def test_tries_are_apart() -> None:
    """Row SI10: a back-off that doubles, with a new look-up."""
    groups = Groups(Coordinators(find_codes={key(): 15}))
    groups.show("g", asked())
    tried = 0
    while groups.now_s < 100.0 + PART_AFTER_S - 1:
        groups.work()
        if groups.brokers.count("find") > tried:
            tried = groups.brokers.count("find")
            groups.now_s += min(FIRST_BACKOFF_S * 2 ** (tried - 1), LONGEST_BACKOFF_S) - 0.05
            groups.work()
            assert groups.brokers.count("find") == tried
        groups.now_s += 0.1
    assert 6 <= tried <= 10


def test_records_have_room_for_their_partitions() -> None:
    groups = Groups()
    groups.show("g", asked(numbers=range(4_500)))
    (report,) = groups.work()
    assert [len(record.partitions) for record in report.records] == [
        PARTITIONS_PER_RECORD,
        PARTITIONS_PER_RECORD,
        500,
    ]
    assert max(len(encode(record)) for record in report.records) < 512 * 1024


def test_a_task_that_the_brokers_refuse_stays_open_with_an_alarm() -> None:
    """CLUSTER_AUTHORIZATION_FAILED ends no task, or each heartbeat would ask again. Once it is granted, tasks
    go on at once.
    """
    groups = Groups(Coordinators(find_codes={key(): 31}))
    groups.show("g", asked())
    assert groups.tell() == []
    assert groups.tasks.summary(1_000).alarm == NOT_PERMITTED
    assert groups.tasks.summary(1_000).failures == (("31", 1),)
    groups.brokers.find_codes.clear()
    groups.counts.refused = False
    assert groups.tell() == []
    groups.tasks.hurry(groups.now_s)
    assert groups.tell() == [done()]
    assert groups.tasks.summary(1_000).alarm is None


def test_what_operators_see() -> None:
    """Row SM4."""
    groups = Groups(Coordinators(states={key(1): State(9, 5)}, codes={key(2): 42}))
    groups.show("g", asked(numbers=[0, 1, 2], at_ms=1_500))
    groups.tell()
    summary = groups.tasks.summary(2_500)
    assert (summary.tasks, summary.partitions, summary.oldest_age_ms) == (1, 3, 1_000)
    assert (summary.initialized, summary.adopted, summary.failures) == (1, 1, (("42", 1),))
    assert (summary.told_tasks, summary.told_ms) == (1, 500)
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


def test_a_new_task_of_a_partition_waits_for_what_is_of_unknown_fate() -> None:
    """Row SK6: no change follows one that a broker may still process."""
    brokers = Coordinators()
    groups = Groups(brokers)
    groups.show("g", asked())
    brokers.lossy, brokers.random = 0.0, Random(1)
    initialize = brokers.initialize

    def lose(node_id: int, items: Sequence[Item]) -> Mapping[Key, int]:
        brokers.late += [(0.0, "initialize", item) for item in items]
        raise Lost("no answer")

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
        self.is_open = False

    def turn(self) -> None:
        match self.random.randrange(6):
            case 0 if not self.is_open:
                self.epoch += 1
                self.is_open = True
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
        tasks = [asked(f"{self.epoch}#0", epoch=self.epoch)] if self.is_open else []
        for thread in self.threads:
            thread.show("g", *tasks)

    def work(self, thread: Groups) -> None:
        for one in thread.tell():
            if self.is_open and one.error_code == 0 and self.brokers.states[key()].epoch == self.epoch:
                self.is_open = False
                self.brokers.states[key()].progress += 1
        if not self.is_open:
            self.show()


@given(st.integers(0, 2**32))
def test_no_state_in_use_is_ever_overwritten(seed: int) -> None:
    """Rows SI11, SP11 to SP13: whatever is lost, restarted or repeated."""
    play = Play(seed)
    for _ in range(60):
        play.turn()
    assert not play.brokers.overwritten


def test_the_keys_of_share_coordinators() -> None:
    """Row SW10: the id in its 22 characters."""
    topic_id = UUID("f3f8db93-b85c-48c9-8c53-937b9636da24")
    assert coordinator_key(Key("a:b", topic_id, 7)) == "a:b:8_jbk7hcSMmMU5N7ljbaJA:7"


def test_the_messages_are_kafkas() -> None:
    """Each has Kafka's key; its bytes are read as they were written."""
    requests = [
        messages.InitializeShareGroupStateRequest,
        messages.DeleteShareGroupStateRequest,
        messages.ReadShareGroupStateSummaryRequest,
    ]
    assert [request.API_KEY for request in requests] == [83, 86, 87]
    kind = messages.InitializeShareGroupStateRequest.InitializeStateData
    partition = kind.PartitionData(partition=1, state_epoch=2, start_offset=-1)
    request = requests[0](group_id="g", topics=[kind(topic_id=TOPIC, partitions=[partition])], version=0)
    assert (
        request.encode().hex()
        == "026702" + TOPIC.bytes.hex() + "02" + "0000000100000002" + "ff" * 8 + "000000"
    )
    assert FindCoordinatorResponse.max_version >= 6
