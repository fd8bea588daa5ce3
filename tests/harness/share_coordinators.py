"""Share coordinators in memory, which lose requests and answers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from kafka_why.contract.kafka.share_requests import ShareStatePartition
from kafka_why.contract.messages import ErrorCode
from streaming.service.share_state.partition_tasks import (
    NoAnswer,
    NotOwnerNow,
    PartitionTask,
    RecordedState,
    SharePartition,
)

TOPIC = UUID(int=1)
NODES = 2
NEVER_LOST = 0.0


@dataclass
class State:
    """A share coordinator's state of a partition. `progress` counts the group's changes since then."""

    epoch: int
    start_offset: int
    progress: int = 0


@dataclass
class Coordinators:
    """Share coordinators in memory. Calls and answers may be lost, and some arrive later (`arrive`)."""

    random: Random = field(default_factory=lambda: Random(0))
    lossy: float = NEVER_LOST
    states: dict[SharePartition, State] = field(default_factory=dict)
    codes: dict[SharePartition, int] = field(default_factory=dict)  # errors that the coordinators answer with
    find_codes: dict[SharePartition, int] = field(default_factory=dict)
    gone_topics: set[UUID] = field(default_factory=set)
    is_owner: bool = True
    now_s: float = 0.0
    may_be_late: bool = True
    late: list[tuple[float, str, PartitionTask]] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)
    overwritten: list[SharePartition] = field(default_factory=list)

    def find(self, keys: Sequence[SharePartition]) -> Mapping[SharePartition, tuple[int, int]]:
        self._call("find", keys)
        return {key: (key.partition % NODES, self.find_codes.get(key, 0)) for key in keys}

    def read(self, node_id: int, keys: Sequence[SharePartition]) -> Mapping[SharePartition, RecordedState]:
        self._call("read", keys)
        return {key: self._summary(key) for key in keys}

    def _summary(self, key: SharePartition) -> RecordedState:
        state = self.states.get(key, State(0, -1))
        return RecordedState(self.codes.get(key, 0), state.epoch, state.start_offset)

    def initialize(self, node_id: int, items: Sequence[PartitionTask]) -> Mapping[SharePartition, int]:
        self._change("initialize", items)
        return {item.key: self._initialize(item) for item in items}

    def _initialize(self, item: PartitionTask) -> int:
        if code := self.codes.get(item.key):
            return code
        state = self.states.get(item.key)
        if state is not None and state.epoch > item.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        is_wanted = item.is_altered and state is not None and state.epoch < item.state_epoch
        if state is not None and state.progress and not is_wanted:
            self.overwritten.append(item.key)
        self.states[item.key] = State(item.state_epoch, item.start_offset)
        return ErrorCode.NONE

    def delete(self, node_id: int, keys: Sequence[SharePartition]) -> Mapping[SharePartition, int]:
        self._change("delete", [PartitionTask("", key, "", True) for key in keys])
        return {key: self._delete(key) for key in keys}

    def _delete(self, key: SharePartition) -> int:
        if key.topic_id in self.gone_topics:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.states.pop(key, None)
        return self.codes.get(key, 0)

    def find_deleted(self, topics: Mapping[UUID, str]) -> Collection[UUID]:
        self._call("gone", list(topics))
        return self.gone_topics & topics.keys()

    def arrive(self, before_s: float = float("inf")) -> None:
        """Let the brokers process what was sent until then and not answered."""
        arrived = [call for call in self.late if call[0] <= before_s]
        self.late = [call for call in self.late if call[0] > before_s]
        for _, name, item in arrived:
            if name == "initialize":
                self._initialize(item)
            else:
                self._delete(item.key)

    def count(self, what: str) -> int:
        return sum(name == what for name, _ in self.calls)

    def _call(self, what: str, keys: Sequence[object]) -> None:
        self.calls.append((what, len(keys)))
        if self.random.random() < self.lossy:
            raise NoAnswer(what)

    def _change(self, what: str, items: Sequence[PartitionTask]) -> None:
        if not self.is_owner:
            raise NotOwnerNow
        self.calls.append((what, len(items)))
        if self.random.random() >= self.lossy:
            return
        match self.random.randrange(3 if self.may_be_late else 2):
            case 0:
                raise NoAnswer("never sent", is_sent=False)
            case 2:
                self.late += [(self.now_s, what, item) for item in items]
            case 1:
                for item in items:
                    self._initialize(item) if what == "initialize" else self._delete(item.key)
        raise NoAnswer("no answer")


def key(partition: int = 0, group_id: str = "g", topic_id: UUID = TOPIC) -> SharePartition:
    return SharePartition(group_id, topic_id, partition)


def item(partition: int = 0, epoch: int = 2, offset: int = -1, *, altered: bool = False) -> PartitionTask:
    return PartitionTask("t", key(partition), "foo", False, epoch, offset, altered)


def deletion(partition: int = 0) -> PartitionTask:
    return PartitionTask("t", key(partition), "foo", True)


def done(partition: int = 0, code: int = 0, **fields: int) -> ShareStatePartition:
    return ShareStatePartition(TOPIC, partition, code, **fields)
