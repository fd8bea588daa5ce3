"""A word count with Kafka Streams by the streams protocol (KIP-1071) and `kafka-streams-groups` through the
gateway. The application has a repartition topic and a changelog topic, which the gateway creates.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from tests.campaigns.reading import read
from tests.e2e.harness import create_topic, history_of, wait_until
from tests.harness.kafkas_word_count import JavaWordCounts, WordCountInstance
from tests.harness.ports import free_port

pytestmark = pytest.mark.e2e

PARTITIONS = 2
TASKS = {f"active:{subtopology}_{number}" for subtopology in (0, 1) for number in range(PARTITIONS)}
STANDBYS = {f"standby:1_{number}" for number in range(PARTITIONS)}


@pytest.fixture
def java(gateway: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[JavaWordCounts]:
    """Yield a JVM with Kafka 4.4, or 4.3 if the test's parameter says so."""
    with JavaWordCounts(gateway, tmp_path, is_older=getattr(request, "param", False)) as java:
        yield java


@pytest.fixture
def topics(broker: EmbeddedBroker, group: str) -> tuple[str, str]:
    """Return the input and the output topic of an application."""
    names = f"{group}-in", f"{group}-out"
    for name in names:
        create_topic(broker.client_config, name, PARTITIONS, {})
    return names


def write(servers: str, topic: str, lines: Sequence[str]) -> None:
    with closing(kafka_clients.producer(ClientConfig(servers))) as producer:
        for number, line in enumerate(lines):
            producer.send(topic, line.encode(), partition=number % PARTITIONS)


def outputs(servers: str, topic: str) -> list[tuple[str, int]]:
    """Return the committed words and counts of the output topic, sorted."""
    found = read(servers, topic, "read_committed")
    return sorted(((it.key or b"").decode(), int(it.value or b"")) for it in found)


def endpoint() -> str:
    return f"127.0.0.1:{free_port()}"


def have_all(*instances: WordCountInstance) -> bool:
    """Return True if the instances share all active tasks, and each has some."""
    held = [set(instance.active()) for instance in instances]
    return all(held) and sum(map(len, held)) == len(TASKS) and set().union(*held) == TASKS


def test_streams_standby_takes_over_without_restoring_its_state(
    gateway: str,
    broker: EmbeddedBroker,
    layout: TopicLayout,
    java: JavaWordCounts,
    group: str,
    topics: tuple[str, str],
) -> None:
    """A standby is promoted when the member that has the task active does not leave, but expires."""
    java.configure(group, "streams.num.standby.replicas=1")
    write(gateway, topics[0], ["a b a", "c a"])
    one, two = (java.start(name, group, topics, endpoint()) for name in ("one", "two"))
    wait_until(lambda: have_all(one, two), "the instances share the tasks")
    wait_until(lambda: {*one.tasks(), *two.tasks()} >= STANDBYS, "each store has a standby")
    wait_until(lambda: "3" in (one.counted("a"), two.counted("a")), "all words are counted")
    lost = [task for task in two.active() if task.startswith("active:1_")]
    two.stop(leaves=False)
    wait_until(lambda: have_all(one), "the session of the other instance has expired")
    assert one.counted("a") == "3"
    history = history_of(broker.client_config, layout, group)
    last = [entry.task_states for entry in history if entry.task_states is not None][-1]
    assert [(task, state.role) for task, state in last.items()] == [
        (task.split(":")[1], "standby") for task in lost
    ]
    one.stop()
    assert one.errors == two.errors == []


@pytest.mark.parametrize("java", [False, True], ids=["4.4", "4.3"], indirect=True)
def test_word_count_moves_between_instances_and_counts_each_word_once(
    gateway: str, java: JavaWordCounts, group: str, topics: tuple[str, str]
) -> None:
    lines = [f"w{number % 7} x" for number in range(200)]
    expected = Counter(word for line in lines for word in line.split())
    exactly_once = {"processing_guarantee": "exactly_once_v2"}
    one = java.start("one", group, topics, endpoint(), **exactly_once)
    write(gateway, topics[0], lines[:100])
    wait_until(lambda: have_all(one) and one.counted("x") == "100", "the first instance has all tasks")
    two = java.start("two", group, topics, endpoint(), **exactly_once)
    wait_until(lambda: have_all(one, two), "the instances share the tasks")

    def is_found() -> bool:
        at = {f"at {instance.endpoint}" for instance in (one, two)}
        answers = {one.counted("x"), two.counted("x")}
        return "100" in answers and bool(answers & at)

    wait_until(is_found, "one instance has the count, and the other one knows where it is")
    write(gateway, topics[0], lines[100:])
    wait_until(lambda: "200" in (one.counted("x"), two.counted("x")), "the new words are counted")
    two.stop()
    wait_until(lambda: have_all(one), "the first instance has all tasks again")
    counted = {word: str(times) for word, times in expected.items()}
    wait_until(lambda: {word: one.counted(word) for word in counted} == counted, "the counts are restored")
    one.stop()
    total = sum(expected.values())
    wait_until(lambda: len(outputs(gateway, topics[1])) >= total, "the last transaction has ended")
    counts = [(word, n + 1) for word, times in expected.items() for n in range(times)]
    assert outputs(gateway, topics[1]) == sorted(counts)
    assert one.errors == two.errors == []


def lines_of(group: str, printed: list[list[str]]) -> list[list[str]]:
    return [line for line in printed if line[0] == group]


def committed(servers: str, group: str, topic: str) -> set[int]:
    """Return the offsets of the group in the topic. The tool shows none of a group without members."""
    with closing(kafka_clients.admin(ClientConfig(servers))) as admin:
        found = admin.list_group_offsets({group: None})[group]
    return {offset.offset for partition, offset in found.items() if partition.topic == topic}


def test_kafka_streams_groups_tool_supports_every_command(
    gateway: str, java: JavaWordCounts, group: str, topics: tuple[str, str]
) -> None:
    source, words = topics[0], f"{group}-words-repartition"
    write(gateway, source, ["a b a", "c a"])
    one = java.start("one", group, topics, endpoint())
    wait_until(lambda: have_all(one) and one.counted("a") == "3", "all words are counted")
    assert [group] in java.groups("--list")
    assert [group, "Stable"] in java.groups("--list", "--state", "stable")
    about = "--describe", "--group", group
    (state,) = lines_of(group, java.groups(*about, "--state", "--verbose"))
    assert (state[3:5], state[-1]) == (["sticky", "Stable"], "1")
    (member,) = lines_of(group, java.groups(*about, "--members", "--verbose"))
    tasks = ["ACTIVE:", "0:[0,1];", "1:[0,1];"]
    assert member[4] == "streams"
    assert [*map("".join, (member[-6:-3], member[-3:]))] == ["".join(tasks), "TARGET-" + "".join(tasks)]

    def lags() -> dict[tuple[str, ...], str]:
        return {tuple(line[1:3]): line[-1] for line in lines_of(group, java.groups(*about, "--offsets"))}

    wait_until(lambda: set(lags().values()) == {"0"}, "all offsets are committed")
    assert {topic for topic, _ in lags()} == {source, words}
    assert "topology description" in " ".join(map(" ".join, java.groups(*about, "--topology")))
    assert lines_of(group, java.groups("--describe", "--all-groups", "--members"))
    one.stop()
    to_start = "--reset-offsets", "--group", group, "--to-earliest"
    moved = [[group, source, str(number), "0"] for number in range(PARTITIONS)]
    assert sorted(lines_of(group, java.groups(*to_start, "--input-topic", source, "--dry-run"))) == moved
    assert committed(gateway, group, source) == {1}
    reset = java.groups(*to_start, "--all-input-topics", "--execute", "--delete-all-internal-topics")
    assert sorted(lines_of(group, reset)) == moved
    assert committed(gateway, group, source) == {0}
    deleted = java.groups("--delete-offsets", "--group", group, "--input-topic", source)
    assert sorted(deleted[-PARTITIONS:]) == [[source, str(n), "Successful"] for n in range(PARTITIONS)]
    assert committed(gateway, group, source) == set()
    assert "successful." in " ".join(map(" ".join, java.groups("--delete", "--group", group)))
    assert [group] not in java.groups("--list")
