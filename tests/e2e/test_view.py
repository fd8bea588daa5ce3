"""The live view on a real broker, as a table on a terminal and as lines elsewhere."""

import threading
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import count
from typing import Any

import msgspec
import pytest
from kafka import KafkaProducer
from rich.console import Console

from assignors.kafka.api import Assignment, TopicPartition
from assignors.kafka.consumer_protocol import encode_assignment
from connections import kafka_clients
from embedded.broker import EmbeddedBroker
from insight.view import LiveView
from records.layout import TopicLayout
from state.kafka.history import EntryType, HistoryEntry
from state.kafka.snapshot import GroupSnapshot, MemberSnapshot
from streaming.service.topics import prepare_topics
from tests.e2e.harness import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

PATIENCE_S = 30.0
_names = (f"view-test-{number}" for number in count())


@pytest.fixture
def layout(broker: EmbeddedBroker) -> TopicLayout:
    layout = TopicLayout.named(next(_names), request_partitions=2, reply_partitions=1)
    prepare_topics(broker.client_config, layout)
    return layout


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[KafkaProducer]:
    producer = kafka_clients.producer(broker.client_config)
    yield producer
    producer.close()


class Screen(StringIO):
    """What was printed, for those who wait for it."""

    def wait_for(self, found: Callable[[str], bool]) -> None:
        wait_until(lambda: found(self.getvalue()), "on the screen", PATIENCE_S)


@pytest.fixture
def show(broker: EmbeddedBroker, layout: TopicLayout) -> Iterator[Callable[..., Screen]]:
    """Runs a view in a thread; it is stopped at the end."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def show(*, terminal: bool) -> Screen:
        screen = Screen()
        console = Console(file=screen, width=160, force_terminal=terminal)
        view = LiveView(broker.client_config, layout, console, replica=lambda: "answering")
        threads.append(threading.Thread(target=view.run, args=(stop,)))
        threads[-1].start()
        return screen

    yield show
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def entry(seq: int, kind: EntryType = EntryType.STABLE, reason: str = "the leader assigned") -> bytes:
    fields: dict[str, Any] = {"group_id": "orders", "incarnation": "requests-0-1", "seq": seq}
    return msgspec.json.encode(
        HistoryEntry(
            version=1,
            type=kind,
            at_ms=1_700_000_000_123,
            from_state="CompletingRebalance",
            to_state="Stable",
            generation=4,
            reason=reason,
            rule="S8",
            cause="requests-0-9",
            **fields,
        )
    )


def snapshot(seq: int) -> bytes:
    member = MemberSnapshot(
        member_id="worker-1",
        group_instance_id=None,
        client_id="worker",
        client_host="host",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        metadata=b"",
        assignment=encode_assignment(Assignment((TopicPartition("prices", 0), TopicPartition("prices", 1)))),
        rejoined=False,
    )
    return msgspec.json.encode(
        GroupSnapshot(
            group_id="orders",
            incarnation="requests-0-1",
            seq=seq,
            at_ms=1_000,
            state="Stable",
            state_timestamp_ms=1_000,
            generation=4,
            protocol_type="consumer",
            protocol_name="range",
            leader_id="worker-1",
            members=[member],
            pending_members=[],
            last_rebalance_at_ms=1_000,
            last_rebalance_reason="new member worker-1 joined",
            subscribed_topics=None,
            quarantined=None,
        )
    )


def test_elsewhere_each_entry_is_a_line_once(
    show: Callable[..., Screen], layout: TopicLayout, producer: KafkaProducer
) -> None:
    producer.send(layout.events_topic, key=b"orders", value=entry(1, reason="before the view")).get(30)
    screen = show(terminal=False)
    events = layout.events_topic

    def send_until_seen(value: bytes, text: str) -> None:
        """The view begins at the end of the topic: only what comes once it is there is sure to be seen."""

        def seen() -> bool:
            producer.send(events, key=b"orders", value=value).get(30)
            return text in screen.getvalue()

        wait_until(seen, f"{text!r} on the screen", PATIENCE_S)

    send_until_seen(b'{"type":"CoordinatorStarted","at_ms":5,"from_batch":0,"settings":{}}', "started")
    for value in (entry(2), entry(2), b"not JSON", b'{"type":"SomethingNew"}', entry(3, reason="the end")):
        producer.send(events, key=b"orders", value=value).get(30)
    screen.wait_for(lambda text: "the end" in text)
    lines = [line for line in screen.getvalue().splitlines() if "started" not in line]
    assert [line.split("  ", 1)[1] for line in lines] == [
        "orders  generation 4  Stable (CompletingRebalance -> Stable): the leader assigned",
        "orders  generation 4  Stable (CompletingRebalance -> Stable): the end",
    ]


def test_on_a_terminal_the_groups_are_a_table(
    show: Callable[..., Screen], layout: TopicLayout, producer: KafkaProducer
) -> None:
    groups = layout.groups_topic
    producer.send(groups, key=b"orders", value=snapshot(3)).get(30)
    screen = show(terminal=True)
    screen.wait_for(lambda text: "* worker-1: prices 0-1" in text)
    assert "new member worker-1 joined" in screen.getvalue()
    producer.send(groups, key=b"orders", value=snapshot(3)).get(30)
    screen.wait_for(lambda text: "1 records were read twice" in text)
    assert "replica answering" in screen.getvalue()
    producer.send(groups, key=b"orders").get(30)
    screen.wait_for(lambda text: "worker-1" not in text.rsplit("Last rebalance", 1)[-1])
