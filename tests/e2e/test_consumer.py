"""Workers under a real coordinator: who gets what, and what becomes of it when somebody goes."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest

from cli.processes.child import Children
from clients.consumer import ConsumerOptions, ConsumerStopped, GroupConsumer
from clients.coordinator_client import DEFAULT_REQUEST_TIMEOUT_MS, CoordinatorClient, layout_on
from connections import kafka_clients
from embedded.broker import EmbeddedBroker
from records.layout import TopicLayout
from state.errors import ErrorCode
from state.kafka.requests import Heartbeat, JoinGroup, LeaveGroup, OffsetCommit, OffsetFetch, SyncGroup
from state.kafka.responses import (
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)
from tests.e2e.harness import wait_until
from tests.e2e.other_side import OtherSide
from tests.harness.shared import PREFIX

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
_names = (f"worker-test-{number}" for number in count())


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """A topic of four partitions with ten records in each."""
    name = next(_names)
    admin = kafka_clients.admin(broker.client_config)
    admin.create_topics({name: {"num_partitions": 4, "replication_factor": 1}}, wait_for_metadata=True)
    admin.close()
    produce(broker, name, range(10))
    return name


def produce(broker: EmbeddedBroker, topic: str, numbers: range) -> None:
    """A record of each number to each of the four partitions."""
    producer = kafka_clients.producer(broker.client_config)
    for number in numbers:
        for partition in range(4):
            producer.send(topic, value=b"%d-%d" % (partition, number), partition=partition)
    producer.close()


def values(numbers: range) -> set[str]:
    return {f"{partition}-{number}" for partition in range(4) for number in numbers}


class RunningConsumer:
    """A consumer in a thread: what it told, what it consumed, how it ended."""

    def __init__(self, broker: EmbeddedBroker, name: str, prefix: str = PREFIX, **options: Any) -> None:
        self.told: list[str] = []
        self.consumed: Counter[str] = Counter()
        self.error: ConsumerStopped | None = None
        self._changed = threading.Condition()
        self._stack = ExitStack()
        servers = broker.client_config
        client = self._stack.enter_context(
            CoordinatorClient(servers, layout_on(servers, prefix), client_id=name)
        )
        consumer = kafka_clients.working_consumer(servers, "test")
        self._stack.callback(consumer.close)
        self._running = GroupConsumer(ConsumerOptions(**options), client, consumer, self._process, self._tell)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for(self, seen: Callable[["RunningConsumer"], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: seen(self), PATIENCE_S), self.told

    def wait_for_line(self, text: str) -> None:
        self.wait_for(lambda consumer: any(text in line for line in consumer.told))

    def stop(self) -> None:
        self._running.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with self._stack:
            try:
                self._running.run()
            except ConsumerStopped as error:
                self.error = error

    def _process(self, records: Sequence[Any]) -> None:
        with self._changed:
            self.consumed.update(record.value.decode() for record in records)
            self._changed.notify_all()

    def _tell(self, line: str) -> None:
        with self._changed:
            self.told.append(line)
            self._changed.notify_all()


@pytest.fixture
def start(
    broker: EmbeddedBroker, layout: TopicLayout, topic: str
) -> Iterator[Callable[..., RunningConsumer]]:
    """Starts consumers of one group; those that still run at the end are stopped."""
    started: list[RunningConsumer] = []

    def start(name: str, **options: Any) -> RunningConsumer:
        given: dict[str, Any] = {
            "group_id": f"group-of-{topic}",
            "topics": (topic,),
            "heartbeat_interval_ms": 500,
        }
        started.append(RunningConsumer(broker, name, **given | options))
        return started[-1]

    yield start
    for consumer in started:
        consumer.stop()


def test_one_running_gets_everything_from_the_beginning(
    start: Callable[..., RunningConsumer], topic: str
) -> None:
    consumer = start("a")
    consumer.wait_for_line(f"got partitions {topic} 0-3")
    consumer.wait_for(lambda w: w.consumed.keys() == values(range(10)))
    assert consumer.told[0].startswith("joined generation 1 as leader, member id a-")
    consumer.stop()
    assert consumer.told[-2:] == [
        f"lost partitions {topic} 0-3: the consumer was stopped",
        "left the group: the consumer was stopped",
    ]


@pytest.mark.parametrize("assignor", ["range", "coordinator:range"])
def test_partitions_change_hands_without_loss_or_repetition(
    start: Callable[..., RunningConsumer], broker: EmbeddedBroker, topic: str, assignor: str
) -> None:
    first = start("a", assignors=(assignor,))
    first.wait_for(lambda w: w.consumed.keys() == values(range(10)))
    second = start("b", assignors=(assignor,))
    second.wait_for_line("joined generation 2 as follower")
    second.wait_for_line(f"got partitions {topic} 2-3")
    first.wait_for_line(f"lost partitions {topic} 0-3: REBALANCE_IN_PROGRESS: the group rebalances")
    first.wait_for_line(f"got partitions {topic} 0-1")
    produce(broker, topic, range(10, 20))
    second.wait_for(lambda w: len(w.consumed) == 20)
    first.wait_for(lambda w: len(w.consumed) == 60)
    first.stop()
    second.wait_for_line(f"got partitions {topic} 0-3")
    produce(broker, topic, range(20, 30))
    second.wait_for(lambda w: len(w.consumed) == 60)
    assert set(first.consumed + second.consumed) == values(range(30))
    assert (first.consumed + second.consumed).total() == 120, "nothing was consumed twice"


def test_more_runnings_than_partitions(start: Callable[..., RunningConsumer], topic: str) -> None:
    workers = [start(name) for name in "abcde"]
    for consumer in workers:
        consumer.wait_for(lambda w: any("got partitions" in line for line in w.told))
    idle = workers[-1]  # range gives to the first members by their ids, which begin with the names
    idle.wait_for_line("got partitions (none)")
    workers[0].stop()
    idle.wait_for_line(f"got partitions {topic} 3")


def test_a_static_member_comes_back_without_a_rebalance(
    start: Callable[..., RunningConsumer], topic: str
) -> None:
    first, second = start("a", group_instance_id="one"), start("b", group_instance_id="two")
    for consumer in (first, second):
        consumer.wait_for(
            lambda w: any("got partitions" in line and not line.endswith(" 0-3") for line in w.told)
        )
    wait_until(
        lambda: first.consumed.keys() | second.consumed.keys() == values(range(10)), "all are consumed"
    )
    generation = _generation(second)
    second.stop()
    assert "left the group" not in second.told[-1]
    back = start("b", group_instance_id="two")
    back.wait_for(lambda w: any("got partitions" in line for line in w.told))
    assert _generation(back) == generation
    assert [line for line in back.told if "got" in line] == [line for line in second.told if "got" in line][
        -1:
    ]
    assert not back.consumed, "its predecessor had consumed everything"


def _generation(consumer: RunningConsumer) -> str:
    return [line for line in consumer.told if line.startswith("joined generation")][-1].split()[2]


def test_a_fenced_running_stops_and_says_why(start: Callable[..., RunningConsumer], topic: str) -> None:
    first = start("a", group_instance_id="one")
    first.wait_for_line("got partitions")
    second = start("b", group_instance_id="one")
    second.wait_for_line(f"got partitions {topic} 0-3")
    first.join()
    assert "FENCED_INSTANCE_ID: another process has joined under the same" in str(first.error)


def test_a_running_the_coordinator_refuses_stops_and_says_why(start: Callable[..., RunningConsumer]) -> None:
    consumer = start("a", session_timeout_ms=1)
    consumer.join()
    refused = "INVALID_SESSION_TIMEOUT: the coordinator does not allow this session timeout"
    assert str(consumer.error) == refused


def test_the_command_consumes_and_leaves_on_sigterm(
    broker: EmbeddedBroker, layout: TopicLayout, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "consumed.jsonl"
    arguments = ["consume", "--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX]
    arguments += ["--group", f"group-of-{topic}", "--topic", topic, "--consumed", str(path)]
    with Children(tmp_path) as children:
        child = children.start("consumer", *arguments, "--assignor", "roundrobin")
        child.wait_for_line(lambda line: f"consumer: got partitions {topic} 0-3" in line, PATIENCE_S)
        wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") == 40, "all records are consumed")
        child.terminate()
        child.wait_for_line(lambda line: "consumer: left the group: stopped by SIGTERM" in line, PATIENCE_S)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["value"] for line in lines} == values(range(10))
    assert lines[0].keys() == {"topic", "partition", "offset", "key", "value"}


@pytest.fixture
def other_side(broker: EmbeddedBroker, topic: str) -> Iterator[OtherSide]:
    """Here the test is the coordinator, with the topic's name as its prefix."""
    layout = TopicLayout.named(topic, request_partitions=1, reply_partitions=1)
    with OtherSide(broker.client_config, layout) as other_side:
        yield other_side


@pytest.mark.one_form
def test_heartbeats_keep_time_whether_answered_or_not(
    other_side: OtherSide, broker: EmbeddedBroker, topic: str
) -> None:
    options: dict[str, Any] = {"group_id": "g", "topics": (topic,), "heartbeat_interval_ms": 200}
    with RunningConsumer(broker, "a", topic, **options) as consumer:
        began_s = time.monotonic()
        _let_in(other_side, member_id="")
        for _ in range(6):  # and not one is answered
            asked = other_side.next_where(lambda a: isinstance(a.request, Heartbeat))
            assert isinstance(asked.request, Heartbeat)
            assert (asked.request.member_id, asked.request.generation_id) == ("a-1", 1)
        # Each after an interval, and none after the time in which an answer may come.
        assert 6 * 0.2 < time.monotonic() - began_s < DEFAULT_REQUEST_TIMEOUT_MS / 1000
        consumer.stop()
        other_side.next_where(lambda a: isinstance(a.request, LeaveGroup))
        assert consumer.told[-1] == "left the group, without waiting for the answer any longer"


@pytest.mark.one_form
def test_a_refused_heartbeat_makes_it_join_again_as_somebody_new(
    other_side: OtherSide, broker: EmbeddedBroker, topic: str
) -> None:
    options: dict[str, Any] = {"group_id": "g", "topics": (topic,), "heartbeat_interval_ms": 200}
    with RunningConsumer(broker, "a", topic, **options) as consumer:
        _let_in(other_side, member_id="")
        asked = other_side.next_where(lambda a: isinstance(a.request, Heartbeat))
        other_side.answer(asked, JoinGroupResponse)  # not an answer of its kind: told, and no more
        consumer.wait_for_line("no answer to a heartbeat: Heartbeat for group 'g' was refused")
        asked = other_side.next_where(lambda a: isinstance(a.request, Heartbeat))
        other_side.answer(asked, HeartbeatResponse, error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        _let_in(other_side, member_id="")
        consumer.wait_for_line("UNKNOWN_MEMBER_ID: the coordinator has removed this member")


def _let_in(other_side: OtherSide, member_id: str) -> None:
    """Answer the next JoinGroup, which has to carry this member id, and the SyncGroup that follows."""
    asked = other_side.next_where(lambda a: isinstance(a.request, JoinGroup))
    assert isinstance(asked.request, JoinGroup)
    assert asked.request.member_id == member_id
    other_side.answer(
        asked,
        JoinGroupResponse,
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        leader="a-1",
        member_id="a-1",
        members=[JoinGroupMember("a-1", None, asked.request.protocols[0].metadata)],
    )
    asked = other_side.next_where(lambda a: isinstance(a.request, SyncGroup))
    assert isinstance(asked.request, SyncGroup)
    other_side.answer(asked, SyncGroupResponse, assignment=asked.request.assignments[0].assignment)
    asked = other_side.next_where(lambda a: isinstance(a.request, OffsetFetch))
    other_side.answer(asked, OffsetFetchResponse)
    asked = other_side.next_where(lambda a: isinstance(a.request, OffsetCommit))
    other_side.answer(asked, OffsetCommitResponse)
