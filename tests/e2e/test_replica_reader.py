"""The reader of the query's answers beside a real broker: when it says that one is missing."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException

from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.codec import encode
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode, ReleaseGroupResponse
from streaming.replica.audit import OVERDUE_AFTER_S, AnswerDifference, Audit, ReplicaPosition
from streaming.replica.responses_reader import ResponsesReader
from streaming.service.topics import prepare_topics
from tests.e2e.harness import new_layout, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

HERE = ReplicaPosition({0: 5}, 1_000)
BATCH_S = 100.0


def answer(request: str) -> bytes:
    return encode(
        ReleaseGroupResponse(group_id="g", correlation_id="c", request=request, error_code=ErrorCode.NONE)
    )


@contextmanager
def reading(broker: EmbeddedBroker, layout: TopicLayout, audit: Audit) -> Iterator[ResponsesReader]:
    """Yield a reader whose clock is far behind the only batch."""
    prepare_topics(broker.client_config, layout)
    reader = ResponsesReader(
        broker.client_config,
        layout,
        audit,
        lambda: None,
        ReplicaId(1, 1),
        compares=True,
        now_s=lambda: BATCH_S + 2 * OVERDUE_AFTER_S,
    )
    try:
        wait_until(lambda: begins(reader), "leaders of the new topic's partitions")
        yield reader
    finally:
        reader.stop()


def begins(reader: ResponsesReader) -> bool:
    try:
        reader.begin()
    except KafkaException:
        return False
    return True


def test_unread_answer_on_the_topic_is_not_missing(broker: EmbeddedBroker) -> None:
    """More answers than one look takes stand before it."""
    audit, layout = Audit(), new_layout()
    others = [f"other-{number}" for number in range(2_000)]
    with reading(broker, layout, audit) as reader:
        with closing(kafka_clients.producer(broker.client_config)) as producer:
            for request in (*others, "r"):
                producer.send(layout.responses_topic, answer(request), partition=0)
            producer.flush()
        audit.early({"r": answer("r")}, HERE)
        audit.committed(HERE, BATCH_S)
        reader.read()
        assert reader.difference is None
        assert audit.compared == 1


def test_no_answer_is_missing_while_brokers_are_unavailable(tmp_path: Path) -> None:
    """The query's answer may be on the topic. When the brokers are back, a later batch shows it."""
    audit, layout = Audit(), TopicLayout.named(f"test-{uuid4()}")
    with EmbeddedBroker(tmp_path / "broker") as broker, reading(broker, layout, audit) as reader:
        audit.early({"r": answer("r")}, HERE)
        audit.committed(HERE, BATCH_S)
        broker.kill()
        reader.read()
        assert reader.difference is None
        broker.start()

        def shows() -> bool:
            """Return True if a later batch shows it. The reader reconnects, and partitions get leaders."""
            audit.committed(HERE, BATCH_S)
            reader.read()
            return reader.difference is not None

        wait_until(shows, "the difference")
        assert reader.difference == AnswerDifference("r", answer("r"), None)
