"""The follower of transactions beside a real broker, without a coordinator: the test writes the pending
offsets. Rows TW1, TW3 and TW7, and timeline 5.12. tests/unit/streaming/test_transactions_pending.py has its
decisions.
"""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec
import pytest
from click.testing import CliRunner
from kafka.errors import KafkaError

from cli.groups import groups
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import PendingTransaction, encode, transaction_key
from kafka_why.contract.kafka.requests import TransactionMarker
from kafka_why.contract.layout import TopicLayout
from streaming.service.topics import prepare_topics
from streaming.service.transactions import follower as follower_module
from streaming.service.transactions.follower import TransactionsFollower
from streaming.service.transactions.pending import Fetched, MarkersReader, read_markers
from tests.e2e.harness import create_topic, new_layout, read_topic
from tests.harness.shared import PREFIX
from tests.harness.transactions import (
    FETCH,
    NONE,
    NOTHING,
    TV1,
    TV2,
    Producer,
    Wire,
    pend,
    producer_of,
    stable_offset,
    wait_for,
)

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


@dataclass
class Followed:
    """A coordinator's topics, and a follower of them."""

    client_config: ClientConfig
    layout: TopicLayout
    wire: Wire
    followers: list[TransactionsFollower] = field(default_factory=list)

    def follow(self) -> TransactionsFollower:
        """Start a follower, in place of an earlier one."""
        self.stop()
        self.followers.append(TransactionsFollower(self.client_config, self.layout))
        self.followers[-1].start()
        return self.followers[-1]

    def stop(self) -> None:
        for follower in self.followers:
            follower.stop()
        self.followers.clear()

    def joined(self) -> Producer:
        """Return a producer whose open transaction has the partition of markers."""
        producer = producer_of(self.wire, TV2)
        assert producer.add(self.layout.txn_markers_topic) == NONE
        return producer

    def pending(self, producer: Producer, group_id: str) -> bytes:
        """Write the record of a coordinator that accepts a TxnOffsetCommit. Return its key."""
        key, value = self.entry(producer, group_id)
        self.write(key, value)
        return key

    def entry(self, producer: Producer, group_id: str) -> tuple[bytes, bytes]:
        """Return the record of a TxnOffsetCommit that is pending."""
        topic_id, end = wait_for(self._position, "the leader of the markers")
        request = f"{self.layout.requests_topic}-0-{uuid.uuid4()}"
        entry = PendingTransaction(
            group_id=group_id,
            incarnation="i",
            transactional_id=producer.transactional_id,
            producer_id=producer.identity.producer_id,
            producer_epoch=producer.identity.epoch,
            txn_version=2,
            txn_partition=0,
            txn_position=end,
            txn_topic_id=topic_id,
            request=request,
            at_ms=round(time.time() * 1000),
            partitions=1,
        )
        return transaction_key(group_id, producer.identity.producer_id, request), encode(entry)

    def _position(self) -> tuple[UUID, int] | None:
        """Return the id of the markers topic and its end, or None if it was created a moment ago."""
        with MarkersReader(self.client_config, self.layout.txn_markers_topic) as markers:
            try:
                return markers.find_topic(), markers.fetch(0, 0, 100).end
            except KafkaError:
                return None

    def write(self, key: bytes, value: bytes | None) -> None:
        with closing(kafka_clients.producer(self.client_config)) as producer:
            producer.send(self.layout.transactions_topic, key=key, value=value).get(30)

    def asked(self, group_id: str) -> list[TransactionMarker]:
        """Return the requests that the follower sent to the group."""
        return [
            msgspec.json.decode(record.value, type=TransactionMarker)
            for record in read_topic(self.client_config, self.layout.requests_topic)
            if record.key == group_id.encode()
        ]


@pytest.fixture
def followed(broker: EmbeddedBroker) -> Iterator[Followed]:
    layout = new_layout()
    prepare_topics(broker.client_config, layout)
    with Wire(broker.client_config.bootstrap_servers) as wire:
        topics = Followed(broker.client_config, layout, wire)
        yield topics
        topics.stop()


def test_tw1_tw3_outcome_is_sent_again_until_the_pending_offsets_are_settled(followed: Followed) -> None:
    """5.12: a restarted follower sends it again."""
    follower = followed.follow()
    producer, hanging = followed.joined(), followed.joined()
    began = producer.identity
    key = followed.pending(producer, "g")
    followed.pending(hanging, "open")
    wait_for(lambda: follower.summary.pending == 2, "both entries")
    assert producer.end(commit=True) == NONE
    # It asks again where the answer takes long.
    asked, *_ = wait_for(lambda: followed.asked("g"), "the request")
    assert (asked.producer_id, asked.producer_epoch) == (began.producer_id, began.epoch + 1)
    assert (asked.txn_partition, asked.committed) == (0, True)
    with MarkersReader(followed.client_config, followed.layout.txn_markers_topic) as markers:
        assert asked.txn_topic_id == markers.find_topic()
    assert asked.first_position <= asked.txn_position
    followed.stop()
    before = len(followed.asked("g"))
    followed.follow()
    wait_for(lambda: len(followed.asked("g")) > before, "the request of a new follower")
    followed.write(key, None)
    last = followed.followers[-1]
    wait_for(lambda: last.summary.pending == 1 and dict(last.summary.decided) == {"commit": 1}, "its end")
    assert followed.asked("open") == []
    assert hanging.end(commit=False) == NONE
    wait_for(lambda: [one.committed for one in followed.asked("open")] == [False], "the abort")


def test_tw7_recreated_marker_topic_leaves_earlier_offsets_pending(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier offsets stay pending, with an alarm. Later ones are settled."""
    monkeypatch.setattr(follower_module, "_TOPIC_CHECK_S", 0.5)
    monkeypatch.setattr(follower_module, "FAILING_ALARM_S", 0.5)
    follower = followed.follow()
    lost = followed.joined()
    followed.pending(lost, "lost")
    wait_for(lambda: follower.summary.pending == 1, "the entry")
    topic = followed.layout.txn_markers_topic
    with closing(kafka_clients.admin(followed.client_config)) as admin:
        admin.delete_topics([topic])
    wait_for(lambda: "cannot be read" in (follower.summary.alarm or ""), "the alarm of a missing topic")
    create_topic(followed.client_config, topic, 1, {})
    wait_for(lambda: "another topic" in (follower.summary.alarm or ""), "the alarm of what was pending")
    producer = followed.joined()
    followed.pending(producer, "later")
    assert producer.end(commit=True) == NONE
    wait_for(lambda: followed.asked("later"), "the request")
    assert followed.asked("lost") == []


def test_s4_fetch_response_contains_the_transaction_markers(followed: Followed) -> None:
    """The gateway's codec and the coordinator's reader see the same control records, and skip data."""
    topic, producer = followed.layout.txn_markers_topic, followed.joined()
    wait_for(lambda: producer.produce(topic) == NONE, "the leader of the new partition")
    assert producer.end(commit=True) == NONE
    with MarkersReader(followed.client_config, topic) as reader:
        fetched = wait_for(lambda: [it for it in [reader.fetch(0, 0, 100)] if it.markers], "the marker")[0]
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
        topics = [{"topic": topic, "partitions": [partition]}]
        answer = followed.wire.ask(FETCH, 12, replica_id=-1, max_wait_ms=100, min_bytes=1, topics=topics)
        (found,) = answer.responses[0].partitions
        raw, next_offset = read_markers(bytes(found.records), 0)
        assert fetched == Fetched(raw, next_offset, 0, next_offset)
        assert reader.fetch(0, raw[-1].offset, 100).markers == raw[-1:]
        assert reader.fetch(0, next_offset + 7, 100).is_out_of_range
        at_end = reader.fetch(0, next_offset, 100)
        assert (at_end.markers, at_end.is_out_of_range) == ([], False)


def test_abort_pending_drops_the_offsets(broker: EmbeddedBroker, wire: Wire, group: str, topic: str) -> None:
    """`groups abort-pending`: a later outcome at the brokers changes nothing."""

    def abort_pending(*options: str) -> list[dict[str, Any]]:
        servers = broker.client_config.bootstrap_servers
        given = ["abort-pending", "--bootstrap-servers", servers, "--prefix", PREFIX, "--group", group]
        result = CliRunner().invoke(groups, [*given, "-o", "json", *options])
        assert result.exit_code == 0, result.output
        return list(json.loads(result.stdout))

    producers = [producer_of(wire, protocol) for protocol in (TV1, TV2)]
    for partition, producer in enumerate(producers):
        pend(producer, group, topic, 100, partition)
    shown = abort_pending()
    assert [(one["transactional_id"], one["dropped"]) for one in shown] == [
        (producer.transactional_id, False) for producer in producers
    ]
    for partition, producer in enumerate(producers):
        (dropped,) = abort_pending("--transactional-id", producer.transactional_id, "--execute")
        assert (dropped["producer_id"], dropped["dropped"]) == (producer.identity.producer_id, True)
        assert stable_offset(wire, group, topic, partition) == NOTHING
        assert producer.end(commit=True) == NONE
    assert abort_pending() == []
    assert [stable_offset(wire, group, topic, partition) for partition in (0, 1)] == [NOTHING, NOTHING]
