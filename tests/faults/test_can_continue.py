"""Changes of the topic on a real broker after which a query can or can never continue, and their reports."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import NewPartitions

from checkpoints.checkpoint import Checkpoint
from embedded.broker import EmbeddedBroker
from streaming.service.can_continue import CannotContinue, RequestsLost, check_can_continue
from streaming.service.topics import prepare_topics
from tests.e2e.harness import new_layout, wait_until
from tests.harness.checkpoints import spark_of

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

HANDLED, PLANNED = 2, 5


class Log:
    """A requests topic with six records. A checkpoint has handled two of them, and planned three more."""

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self.client_config = broker.client_config
        self.layout = new_layout()
        self.topic = self.layout.requests_topic
        self.admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        self.checkpoint = Checkpoint.at(folder)
        self.checkpoint.pin(prepare_topics(self.client_config, self.layout))
        self.checkpoint.own(1)
        for log, batch, end in (("offsets", 0, HANDLED), ("commits", 0, HANDLED), ("offsets", 1, PLANNED)):
            path = spark_of(self.checkpoint) / log / str(batch)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"{self.topic}":{{"0":{end}}}}}')
        self.append(6)

    def append(self, records: int) -> None:
        with closing(KafkaProducer(bootstrap_servers=str(self.client_config), acks="all")) as producer:
            for _ in range(records):
                producer.send(self.topic, value=b"{}", partition=0).get(timeout=30)

    def delete_before(self, offset: int) -> None:
        self.admin.delete_records({TopicPartition(self.topic, 0): offset}, timeout_ms=30_000)

    def delete_topic(self) -> None:
        self.admin.delete_topics([self.topic])
        wait_until(lambda: self.topic not in self.admin.list_topics(), "the end of the topic")

    def check(self) -> None:
        check_can_continue(self.client_config, self.checkpoint)

    def loss(self, says: str) -> dict[int, tuple[int, int | None]]:
        with pytest.raises(RequestsLost, match=says) as raised:
            self.check()
        return dict(raised.value.lost)


@pytest.fixture
def log(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Log]:
    log = Log(broker, tmp_path)
    with closing(log.admin):
        yield log


def test_deleted_records_are_a_loss_unless_a_committed_batch_has_handled_them(log: Log) -> None:
    log.delete_before(HANDLED)
    log.check()
    log.delete_before(HANDLED + 2)
    said = rf"before they were handled: {log.topic}\[0\] 2 to 3\. .*Requests that were deleted unread"
    assert log.loss(said) == {0: (HANDLED, HANDLED + 2)}


def test_deleted_topic_is_a_loss_even_if_it_was_created_again(log: Log) -> None:
    """Spark would continue in the new topic, from the offset in the checkpoint."""
    log.delete_topic()
    assert log.loss(f"the topic {log.topic} does not exist any more") == {0: (HANDLED, None)}
    prepare_topics(log.client_config, log.layout)
    log.append(7)
    assert log.loss("belongs to another topic: requests_topic_id was") == {0: (HANDLED, None)}


def test_requests_log_that_ends_before_the_handled_offset_cannot_be_continued(log: Log) -> None:
    """As after an unclean election. Spark would skip new records at the offsets that it has read."""
    path = spark_of(log.checkpoint) / "offsets" / "0"
    path.write_text(path.read_text().replace('"0":2', '"0":9'))
    with pytest.raises(
        CannotContinue, match=rf"lost records that were handled: {log.topic}\[0\] ends before"
    ):
        log.check()


def test_added_partitions_stop_the_query_but_are_no_loss(log: Log) -> None:
    log.admin.create_partitions({log.topic: NewPartitions(log.layout.request_partitions + 1)})
    wait_until(lambda: len(log.admin.describe_topics([log.topic])[0]["partitions"]) == 2, "the partition")
    with pytest.raises(CannotContinue, match="request_partitions was 1 and is 2") as raised:
        log.check()
    assert not isinstance(raised.value, RequestsLost)
