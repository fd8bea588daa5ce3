"""The coordinator and Kafka as RocketMQ's client sees them: brokers, routes, and a store of offsets.

Queue n of a topic is partition n of the Kafka topic, on one broker of a fixed name. The offsets of a
clustering group are committed to the coordinator under a separate group name, because commits are requests of
Kafka's protocol. Each client of a broadcasting group keeps its own offsets in a file.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from concurrent.futures import Future
from pathlib import Path
from typing import TypedDict
from uuid import uuid4

import msgspec
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition
from kafka.errors import KafkaError

from clients.coordinator_client import CoordinatorClient
from clients.pending import CoordinatorError, R
from clients.rocketmq.api import ConsumerConfig
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommit,
    OffsetFetch,
    TopicPartitions,
)
from kafka_why.contract.kafka.responses import OffsetCommitResponse
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.contract.rocketmq.queues import OFFSET_GROUP_PREFIX, MessageQueue
from kafka_why.contract.rocketmq.requests import (
    ConsumeFromWhere,
    GetConsumerListByGroup,
    LockBatchMq,
    MessageModel,
    Request,
    SubscriptionGroupConfig,
    UnlockBatchMq,
    UnregisterConsumer,
)
from kafka_why.contract.rocketmq.responses import ResponseCode
from kafka_why.topic_reader import ClientError
from state.rocketmq.split import HeartbeatData, Origin, split_heartbeat

# A consumer's committed offsets: fetched when it gets queues, committed while it consumes.
#
# If a consumer dies, the next owner of a queue processes the uncommitted records again (at-least-once).


# The versions of Kafka's messages that these requests use. Source: *Request.json of Apache Kafka 4.
COMMIT_VERSION, FETCH_VERSION = 9, 9


class Committer:
    """Commits one consumer's positions, with one request in flight at a time.

    Newer positions gather while a request is in flight. The next request repeats the positions of a failed
    one. `tell` gets a line of text about each failure.
    """

    def __init__(self, client: CoordinatorClient, group_id: str, tell: Callable[[str], None]) -> None:
        self._client = client
        self._group_id = group_id
        self._tell = tell
        self._changed = threading.Condition()
        self._gathered: dict[TopicPartition, int] = {}
        self._under_way: dict[TopicPartition, int] = {}

    def fetch(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offset of each partition; one without a committed offset is left out.

        Raises ClientError if the coordinator does not answer or answers with an error.
        """
        topics = [TopicPartitions(topic, list(numbers)) for topic, numbers in _by_topic(partitions).items()]
        request = OffsetFetch(**self._client.header(self._group_id, FETCH_VERSION), topics=topics)
        answer = self._client.send(request).result()
        if answer.error_code is not ErrorCode.NONE:
            raise CoordinatorError(
                "OffsetFetch", self._group_id, answer.error_code, "the answer has no offsets"
            )
        return {
            TopicPartition(topic.name, p.partition_index): p.committed_offset
            for topic in answer.topics
            for p in topic.partitions
            if p.committed_offset >= 0
        }

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit these positions: all records before them are processed. Returns at once; see `flush`."""
        with self._changed:
            self._gathered.update(positions)
            self._send()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all positions are committed or a commit fails. Returns False after `timeout_s`."""
        with self._changed:
            self._send()
            return self._changed.wait_for(lambda: not self._under_way, timeout_s)

    def _send(self) -> None:
        """Send the gathered positions unless a commit is in flight. The caller holds the lock."""
        if self._under_way or not self._gathered:
            return
        positions, self._gathered = self._gathered, {}
        request = OffsetCommit(
            **self._client.header(self._group_id, COMMIT_VERSION),
            topics=_committed(positions),
        )
        self._under_way = positions
        try:
            sent = self._client.send(request)
        except ClientError as error:  # the client was closed
            self._done(str(error))
        else:
            sent.add_done_callback(lambda done: self._done(_problem(done)))

    def _done(self, problem: str | None) -> None:
        """End the commit in flight. `problem` describes its failure; None means success."""
        with self._changed:
            if problem is not None:
                # Under the lock: who has been told can commit again at once.
                self._tell(f"offsets were not committed, records may be processed again: {problem}")
                self._gathered = self._under_way | self._gathered
            self._under_way = {}
            if problem is None:
                self._send()
            self._changed.notify_all()


def _committed(positions: Mapping[TopicPartition, int]) -> list[CommittedTopic]:
    return [
        CommittedTopic(topic, [CommittedPartition(n, positions[TopicPartition(topic, n)]) for n in numbers])
        for topic, numbers in _by_topic(positions).items()
    ]


def _problem(done: Future[OffsetCommitResponse]) -> str | None:
    try:
        answer = done.result()
    except ClientError as error:
        return str(error)
    errors = {answer.error_code} | {p.error_code for topic in answer.topics for p in topic.partitions}
    errors.discard(ErrorCode.NONE)
    return ", ".join(sorted(error.name for error in errors)) or None


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


BROKER_NAME = "broker"
_RPC_TIMEOUT_MS = 10_000
_FLUSH_TIMEOUT_S = 10.0

_offsets_decoder = msgspec.json.Decoder(list[tuple[MessageQueue, int]])


class _Header(TypedDict):
    group_id: str
    connection: str
    client_id: str
    correlation_id: str
    reply_partition: int


class CoordinatorBroker:
    """The `clients.rocketmq.api.Broker` of one consumer. `connection` is the name of the present connection.

    `local_offsets` is the offsets file of a broadcasting consumer; with None the offsets stay in memory.
    `tell` gets a line of text about each failure.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        consumer: KafkaConsumer,
        group_id: str,
        local_offsets: Path | None,
        tell: Callable[[str], None],
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._tell = tell
        self._committer = Committer(client, f"{OFFSET_GROUP_PREFIX}{group_id}", tell)
        self._local_offsets = local_offsets
        self._local = _read_offsets(local_offsets)
        self.connection = ""
        self.reconnect()

    def reconnect(self) -> None:
        """Take a new connection name, so that the broker sees a new connection."""
        self.connection = f"{self._client.client_id}/{uuid4()}"

    def heartbeat(self, data: HeartbeatData) -> bool:
        groups = {consumer.group_name: SubscriptionGroupConfig() for consumer in data.consumer_data_set}
        correlation_id = self._client.next_correlation_id()
        origin = Origin(self.connection, correlation_id, self._client.reply_partition)
        answers = [self._ask(part) for part in split_heartbeat(data, origin, groups)]
        return all(answer is not None and answer.code is ResponseCode.SUCCESS for answer in answers)

    def unregister(self, group_id: str) -> None:
        self._ask(UnregisterConsumer(**self._header(group_id)))

    def topic_queues(self, topic: str) -> list[MessageQueue] | None:
        try:
            partitions = self._consumer.partitions_for_topic(topic)
        except KafkaError as error:
            self._tell(f"no route to topic {topic}: {error}")
            return None
        return [MessageQueue(topic, BROKER_NAME, number) for number in sorted(partitions or ())] or None

    def consumer_ids(self, group_id: str) -> list[str] | None:
        answer = self._ask(GetConsumerListByGroup(**self._header(group_id)))
        if answer is None or answer.code is not ResponseCode.SUCCESS:
            return None
        return list(answer.consumer_id_list)

    def lock(self, group_id: str, queues: Collection[MessageQueue]) -> Set[MessageQueue]:
        request = LockBatchMq(**self._header(group_id), mq_set=tuple(queues))
        answer = self._ask(request)
        return frozenset() if answer is None else frozenset(answer.lock_ok_mq_set)

    def unlock(self, group_id: str, queues: Collection[MessageQueue]) -> None:
        request = UnlockBatchMq(**self._header(group_id), mq_set=tuple(queues))
        self._send(request)

    def start_offsets(
        self, config: ConsumerConfig, queues: Collection[MessageQueue]
    ) -> dict[MessageQueue, int]:
        try:
            stored = self._stored(config, queues)
            fresh = [queue for queue in queues if queue not in stored]
            return stored | (self._first_offsets(config, fresh) if fresh else {})
        except (ClientError, KafkaError) as error:
            self._tell(f"the start offsets are not known: {error}")
            return {}

    def persist(self, config: ConsumerConfig, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets without waiting until the commits are answered."""
        if config.message_model is MessageModel.BROADCASTING:
            self._local.update(offsets)
            if self._local_offsets is not None:
                self._local_offsets.write_bytes(msgspec.json.encode(list(self._local.items())))
        else:
            self._committer.commit({_partition(queue): offset for queue, offset in offsets.items()})

    def flush(self) -> None:
        """Wait until the persisted offsets are committed."""
        if not self._committer.flush(_FLUSH_TIMEOUT_S):
            self._tell("a commit had no answer in time; records may be processed again")

    def _stored(self, config: ConsumerConfig, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        if config.message_model is MessageModel.BROADCASTING:
            return {queue: self._local[queue] for queue in queues if queue in self._local}
        found = self._committer.fetch(map(_partition, queues))
        return {queue: found[_partition(queue)] for queue in queues if _partition(queue) in found}

    def _first_offsets(
        self, config: ConsumerConfig, queues: Collection[MessageQueue]
    ) -> dict[MessageQueue, int]:
        partitions = {queue: KafkaTopicPartition(*_partition(queue)) for queue in queues}
        if config.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            found = self._consumer.beginning_offsets(list(partitions.values()))
        else:
            found = self._consumer.end_offsets(list(partitions.values()))
        return {queue: found[partition] for queue, partition in partitions.items()}

    def _header(self, group_id: str) -> _Header:
        return {
            "group_id": group_id,
            "connection": self.connection,
            "client_id": self._client.client_id,
            "correlation_id": self._client.next_correlation_id(),
            "reply_partition": self._client.reply_partition,
        }

    def _ask(self, request: Request[R]) -> R | None:
        """Send a request and return the answer, or None if there is none."""
        sent = self._send(request)
        try:
            return None if sent is None else sent.result()
        except ClientError as error:
            self._tell(str(error))
            return None

    def _send(self, request: Request[R]) -> Future[R] | None:
        try:
            return self._client.send(request, timeout_ms=_RPC_TIMEOUT_MS)
        except ClientError as error:
            self._tell(str(error))
            return None


def _partition(queue: MessageQueue) -> TopicPartition:
    return TopicPartition(queue.topic, queue.queue_id)


def _read_offsets(path: Path | None) -> dict[MessageQueue, int]:
    if path is None or not path.exists():
        return {}
    return dict(_offsets_decoder.decode(path.read_bytes()))
