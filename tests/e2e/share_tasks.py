"""For tests of the share-state thread: a topic and its share coordinators, the views of groups and what the
thread tells them, the thread itself.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import KafkaProducer

from connections.client_config import ClientConfig
from records.codec import decode_request, encode
from records.layout import TopicLayout
from state.kafka.share_requests import ShareStatePartition, ShareStateResult
from state.kafka.snapshot import ShareSnapshot, ShareTask, ShareTaskPartitions
from streaming.service.share_state.broker_coordinators import BrokerCoordinators
from streaming.service.share_state.carrying_out import Item, Key, Summary
from streaming.service.share_state.thread import ShareStateThread
from streaming.service.topics import prepare_topics
from tests.e2e.harness import create_topic, new_layout, read_topic, topic_id_of, wait_until
from tests.harness.group_views import view_with

NO_STATE = Summary(0, 0, -1)


class Topic:
    """A topic of three partitions, and the share coordinators of a group's partitions of it."""

    def __init__(self, client_config: ClientConfig, calls: BrokerCoordinators) -> None:
        self.name = f"orders-{uuid.uuid4()}"
        create_topic(client_config, self.name, 3, {})
        self.id = uuid.UUID(topic_id_of(client_config, self.name))
        self.group_id = f"workers:{uuid.uuid4()}"  # with the separator of the coordinators' keys
        self._calls = calls

    def key(self, partition: int = 0) -> Key:
        return Key(self.group_id, self.id, partition)

    def item(self, state_epoch: int, start_offset: int = -1, partition: int = 0) -> Item:
        return Item("t", self.key(partition), self.name, False, state_epoch, start_offset)

    def deletion(self, partition: int = 0) -> Item:
        return Item("t", self.key(partition), self.name, True)

    def recorded(self, partition: int = 0) -> Summary:
        """What the share coordinator has recorded, by a reading of its own."""
        found: list[Summary] = []

        def is_read() -> bool:
            node_id, code = self._calls.find([self.key()])[self.key()]
            found[:] = [] if code else [self._calls.read(node_id, [self.key(partition)])[self.key(partition)]]
            return bool(found) and found[0].error_code not in (3, 14, 15, 16)

        wait_until(is_read, "a share coordinator answers")
        return found[0]

    def write(self, item: Item) -> int:
        """Initialize whatever is recorded, as nobody should: the error code."""
        node_id, _ = self._calls.find([item.key])[item.key]
        return self._calls.initialize(node_id, [item])[item.key]


class Groups:
    """The views that share groups publish, and what the thread tells them."""

    def __init__(self, client_config: ClientConfig, producer: KafkaProducer) -> None:
        self.client_config = client_config
        self.layout = new_layout(request_partitions=2)
        prepare_topics(client_config, self.layout)
        self._producer = producer

    def publish(self, group_id: str, *tasks: ShareTask) -> None:
        view = view_with(group_id, share=ShareSnapshot({}, {}, {}, list(tasks)))
        self._producer.send(self.layout.groups_topic, key=group_id.encode(), value=encode(view)).get(60)

    def told(self) -> list[ShareStateResult]:
        requests = [
            decode_request(record.value)
            for record in read_topic(self.client_config, self.layout.requests_topic)
            if record.key is not None
        ]
        return [request for request in requests if isinstance(request, ShareStateResult)]

    def wait_for(self, task: str) -> list[ShareStatePartition]:
        """The outcomes of the task, in one record."""
        wait_until(lambda: any(one.task == task for one in self.told()), f"outcomes of {task}")
        (told,) = [one for one in self.told() if one.task == task]
        return told.partitions


@contextmanager
def working(
    client_config: ClientConfig, layout: TopicLayout, settle_s: float = 0.0
) -> Iterator[ShareStateThread]:
    thread = ShareStateThread(client_config, layout, lambda: True, settle_s=settle_s)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def to_initialize(task: str, topic: Topic, numbers: list[int], epoch: int, offset: int = -1) -> ShareTask:
    partitions = ShareTaskPartitions(str(topic.id), topic.name, numbers, epoch, offset)
    return ShareTask(task, "initialize", time.time_ns() // 1_000_000, [partitions])


def to_delete(task: str, topic: Topic, numbers: list[int]) -> ShareTask:
    partitions = ShareTaskPartitions(str(topic.id), topic.name, numbers)
    return ShareTask(task, "delete", time.time_ns() // 1_000_000, [partitions])
