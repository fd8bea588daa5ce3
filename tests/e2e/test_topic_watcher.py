"""The topic watcher on a real broker: it reads groups' views, and reports topics that come, grow and go
(rows MI4, MI5).
"""

import uuid
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from connections import kafka_clients
from embedded.broker import EmbeddedBroker
from records.codec import Refusal, decode_request, encode
from records.layout import TopicLayout
from state.kafka.requests import RegexResolved, TopicMetadata
from state.kafka.snapshot import TopicSnapshot
from state.kafka.topic_images import TopicImage
from streaming.service.topic_watch.watcher import TopicWatcher
from streaming.service.topics import prepare_topics
from tests.e2e.harness import create_topic, new_layout, read_topic, topic_id_of, wait_until
from tests.harness.group_views import view_with

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

INTERVAL_MS = 200


class Watched:
    """The views that groups publish, and what the watcher sends them."""

    def __init__(self, broker: EmbeddedBroker, layout: TopicLayout, producer: KafkaProducer) -> None:
        self.broker, self.layout = broker, layout
        self._producer = producer

    def publish(self, group_id: str, **fields: object) -> None:
        view = view_with(group_id, **fields)
        self._producer.send(self.layout.groups_topic, key=group_id.encode(), value=encode(view)).get(60)

    def sent(self, group_id: str) -> list[TopicMetadata | RegexResolved]:
        """The group's records, without those that repeat the one before: a group whose view does not fit yet
        gets its record again after a pause.
        """
        requests = [
            decode_request(record.value)
            for record in read_topic(self.broker.client_config, self.layout.requests_topic)
        ]
        assert not [request for request in requests if isinstance(request, Refusal)]
        sent = [
            request
            for request in requests
            if isinstance(request, TopicMetadata | RegexResolved) and request.group_id == group_id
        ]
        return [one for n, one in enumerate(sent) if n == 0 or content(one) != content(sent[n - 1])]

    def wait_for(self, group_id: str, number: int) -> TopicMetadata | RegexResolved:
        """The group's record of this number."""
        wait_until(lambda: len(self.sent(group_id)) >= number, f"record {number} for {group_id}")
        sent = self.sent(group_id)
        assert len(sent) == number
        return sent[-1]


def content(request: TopicMetadata | RegexResolved) -> object:
    """What the record says, without the time."""
    if isinstance(request, TopicMetadata):
        return request.topics
    return {pattern: resolution.topics for pattern, resolution in request.patterns.items()}


@pytest.fixture
def watched(broker: EmbeddedBroker) -> Iterator[Watched]:
    layout = new_layout(request_partitions=2)
    prepare_topics(broker.client_config, layout)
    producer = kafka_clients.producer(broker.client_config)
    watcher = TopicWatcher(broker.client_config, layout, interval_ms=INTERVAL_MS)
    watcher.start()
    try:
        yield Watched(broker, layout, producer)
    finally:
        watcher.stop()
        producer.close()


def test_groups_get_their_topics_as_they_come_grow_and_go(watched: Watched, admin: KafkaAdminClient) -> None:
    topic = f"orders-{uuid.uuid4()}"
    pattern = f"{topic[:-1]}[0-9a-f]"
    create_topic(watched.broker.client_config, topic, 1, {})
    image = TopicImage(uuid.UUID(topic_id_of(watched.broker.client_config, topic)), 1)

    watched.publish("by-name", unknown_topics=[topic])
    assert watched.wait_for("by-name", 1) == TopicMetadata(group_id="by-name", topics={topic: image})
    watched.publish("by-pattern", unresolved_regexes=[pattern])
    resolved = watched.wait_for("by-pattern", 1)
    assert isinstance(resolved, RegexResolved)
    assert {p: resolution.topics for p, resolution in resolved.patterns.items()} == {pattern: {topic: image}}

    known = {topic: TopicSnapshot(str(image.id), 1)}
    watched.publish("by-name", topics=known)
    watched.publish("by-pattern", topics=known, resolved_regexes={pattern: [topic]})
    admin.create_partitions({topic: 3})
    grown: dict[str, TopicImage | None] = {topic: TopicImage(image.id, 3)}
    assert watched.wait_for("by-name", 2) == TopicMetadata(group_id="by-name", topics=grown)
    assert watched.wait_for("by-pattern", 2) == TopicMetadata(group_id="by-pattern", topics=grown)

    watched.publish("by-name", topics={topic: TopicSnapshot(str(image.id), 3)})
    admin.delete_topics([topic])
    assert watched.wait_for("by-name", 3) == TopicMetadata(group_id="by-name", topics={topic: None})
