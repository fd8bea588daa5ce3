"""The share-state thread: it carries out the tasks of share groups at the cluster's share coordinators. A
task is to initialize or delete the state of some of a group's partitions.

The thread reads the tasks from the groups' views on the groups topic, and appends each outcome as a
ShareStateResult to the requests topic. So the log stays the only input of a group, and the query sends no
requests to brokers. The thread stores nothing, and two of them do no harm (docs/decisions/0032).
"""

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import new_class
from typing import Any
from uuid import UUID

import structlog
from kafka.errors import NodeNotReadyError, UnknownBrokerIdError, UnknownTopicOrPartitionError
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from kafka_why.connections import kafka_clients
from kafka_why.connections.broker_requests import send
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.service import ShareStateSummary
from kafka_why.lifetimes import Closeable
from kafka_why.topic_reader import TopicReader, TopicsFollower
from streaming.service.clock.ticker import Ticker
from streaming.service.ownership.owner import silence_ms
from streaming.service.request_appender import BROKER_TIMEOUT_MS, RequestAppender
from streaming.service.share_state.open_tasks import NOT_PERMITTED, UNCERTAIN_S, OpenTasks, TaskCounts
from streaming.service.share_state.partition_tasks import (
    NoAnswer,
    NoOutcome,
    NotOwnerNow,
    PartitionTask,
    RecordedState,
    SharePartition,
    carry_out,
)

# kafka-python lacks these messages to a share coordinator. They are built from Kafka's definitions in
# `schemas`, as kafka-python builds its own.
_SCHEMAS = "streaming.service.share_state.schemas"


def _message_class(name: str) -> Any:
    """Return the class of the message whose definition is in the file of this name."""
    return new_class(name, (ApiMessage,), {"load_json": _SCHEMAS})


InitializeShareGroupStateRequest = _message_class("InitializeShareGroupStateRequest")
InitializeShareGroupStateResponse = _message_class("InitializeShareGroupStateResponse")
ReadShareGroupStateSummaryRequest = _message_class("ReadShareGroupStateSummaryRequest")
ReadShareGroupStateSummaryResponse = _message_class("ReadShareGroupStateSummaryResponse")
DeleteShareGroupStateRequest = _message_class("DeleteShareGroupStateRequest")
DeleteShareGroupStateResponse = _message_class("DeleteShareGroupStateResponse")


SHARE_VERSION = "share.version"
# The first version of FindCoordinator that finds share coordinators, and the version of the other messages.
_FIND_VERSION = 6
_SHARE_STATE_VERSION = 0
# The maximum size of the keys in one FindCoordinator. kafka-python reads answers of up to 1 MB, and the
# answer repeats the keys.
_KEYS_MAX_BYTES = 200_000
_NO_LEADER_EPOCH = -1
# The group in the request of `is_permission_missing`. It need not exist.
_ANY_GROUP = "permission"


class BrokerCoordinators(Closeable):
    """The cluster's share coordinators (`ShareCoordinators`), over kafka-python's connections. For one
    thread.

    After NoAnswer a new object is needed, because a broker may have moved. A request that changes a state is
    sent only while `may_change` returns True. Raises KafkaError if no broker answers at the start.
    """

    def __init__(self, client_config: ClientConfig, may_change: Callable[[], bool]) -> None:
        self._may_change = may_change
        self._admin = kafka_clients.admin(
            client_config, bootstrap_timeout_ms=BROKER_TIMEOUT_MS, request_timeout_ms=BROKER_TIMEOUT_MS
        )

    def is_permission_missing(self, topic: str) -> bool:
        """Return True if the brokers support share groups but deny the principal share-state requests.

        This changes nothing at the brokers. Any broker is queried for the state of a partition of `topic`,
        which must exist. That broker answers, or reports that it is not the share coordinator, and logs no
        error. A search for the share coordinator would create the state topic. Raises KafkaError, NoAnswer.
        """
        _, level = self._admin.describe_features().get(SHARE_VERSION, {}).get("finalized", (0, 0))
        if not level:
            return False
        (described,) = self._admin.describe_topics([topic])
        key = SharePartition(_ANY_GROUP, UUID(str(described["topic_id"])), 0)
        return self.read(None, [key])[key].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def find(self, keys: Sequence[SharePartition]) -> Mapping[SharePartition, tuple[int, int]]:
        by_name = {coordinator_key(key): key for key in keys}
        nodes: dict[SharePartition, tuple[int, int]] = {}
        for names in _key_batches(by_name):
            nodes |= {by_name[name]: node for name, node in self._find(names).items() if name in by_name}
        return nodes

    def _find(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Return the node id and the error code of each state's coordinator, by the state's name."""
        request = FindCoordinatorRequest(
            key_type=CoordinatorType.SHARE, coordinator_keys=names, version=_FIND_VERSION
        )
        coordinators = self._send(request).coordinators
        return {found.key: (found.node_id, found.error_code) for found in coordinators}

    def read(
        self, node_id: int | None, keys: Sequence[SharePartition]
    ) -> Mapping[SharePartition, RecordedState]:
        """Return the recorded state of each partition, read from any broker if `node_id` is None."""
        data_class = ReadShareGroupStateSummaryRequest.ReadStateSummaryData
        partitions = {
            key: data_class.PartitionData(partition=key.partition, leader_epoch=_NO_LEADER_EPOCH)
            for key in keys
        }
        request = _build_request(ReadShareGroupStateSummaryRequest, data_class, partitions)
        return {
            key: RecordedState(answer.error_code, answer.state_epoch, answer.start_offset)
            for key, answer in _answers_for(self._send(request, node_id), keys)
        }

    def initialize(self, node_id: int, items: Sequence[PartitionTask]) -> Mapping[SharePartition, int]:
        data_class = InitializeShareGroupStateRequest.InitializeStateData
        partitions = {
            item.key: data_class.PartitionData(
                partition=item.key.partition, state_epoch=item.state_epoch, start_offset=item.start_offset
            )
            for item in items
        }
        return self._change(
            node_id, _build_request(InitializeShareGroupStateRequest, data_class, partitions), partitions
        )

    def delete(self, node_id: int, keys: Sequence[SharePartition]) -> Mapping[SharePartition, int]:
        data_class = DeleteShareGroupStateRequest.DeleteStateData
        partitions = {key: data_class.PartitionData(partition=key.partition) for key in keys}
        return self._change(
            node_id, _build_request(DeleteShareGroupStateRequest, data_class, partitions), partitions
        )

    def _change(
        self, node_id: int, request: Any, keys: Iterable[SharePartition]
    ) -> Mapping[SharePartition, int]:
        """Send a request that changes states. Return the error code of each of these partitions."""
        if not self._may_change():
            raise NotOwnerNow
        answers = _answers_for(self._send(request, node_id), keys)
        return {key: answer.error_code for key, answer in answers}

    def find_deleted(self, topics: Mapping[UUID, str]) -> Collection[UUID]:
        try:
            described = self._admin.describe_topics(sorted(set(topics.values())))
        except Exception as error:
            raise NoAnswer(error) from error
        # By name: the topic's present id, None if it does not exist. A topic with another error is left out.
        ids = {
            topic["name"]: None if topic["error_code"] else UUID(str(topic["topic_id"]))
            for topic in described
            if topic["error_code"] in (0, UnknownTopicOrPartitionError.errno)
        }
        return {topic_id for topic_id, name in topics.items() if name in ids and ids[name] != topic_id}

    def _send(self, request: Any, node_id: int | None = None) -> Any:
        """Return the response of this node, or of any broker if `node_id` is None. Raises NoAnswer."""
        try:
            return send(self._admin, request, node_id)
        except (NodeNotReadyError, UnknownBrokerIdError) as error:
            raise NoAnswer(error, is_sent=False) from error
        except Exception as error:  # for any error, the request may have been sent
            raise NoAnswer(error) from error

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()


def coordinator_key(key: SharePartition) -> str:
    """Return the name of the partition's state among the share coordinators (row SW10)."""
    topic_id = urlsafe_b64encode(key.topic_id.bytes).rstrip(b"=").decode()
    return f"{key.group_id}:{topic_id}:{key.partition}"


def _key_batches(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield the names in lists that fit into one request."""
    batch: list[str] = []
    size = 0
    for name in names:
        if batch and size + len(name.encode()) > _KEYS_MAX_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += len(name.encode())
    if batch:
        yield batch


def _build_request(request_class: Any, data_class: Any, partitions: Mapping[SharePartition, Any]) -> Any:
    """Return a request for these partitions, which are of one group. `data_class` is the request's class for
    the data of a topic.
    """
    (group_id,) = {key.group_id for key in partitions}
    topics: dict[UUID, list[Any]] = {}
    for key, partition in partitions.items():
        topics.setdefault(key.topic_id, []).append(partition)
    data = [data_class(topic_id=topic_id, partitions=of_topic) for topic_id, of_topic in topics.items()]
    return request_class(group_id=group_id, topics=data, version=_SHARE_STATE_VERSION)


def _answers_for(response: Any, keys: Iterable[SharePartition]) -> Iterator[tuple[SharePartition, Any]]:
    """Yield the response's answer for each of these partitions. A partition may have none."""
    wanted = {(key.topic_id, key.partition): key for key in keys}
    for topic in response.results:
        for partition in topic.partitions:
            key = wanted.get((topic.topic_id, partition.partition))
            if key is not None:
                yield key, partition


_REST_POLL_MS = 500
_POLL_MS = 50  # while a task is being carried out
# The pause between two checks of the permission while it is missing.
_CHECK_PAUSE_S = 10.0
# The maximum age of the records that a change is based on. A new owner changes nothing for UNCERTAIN_S, so
# the old owner's changes end before (row SP18).
ROUND_MAX_S = UNCERTAIN_S / 2
# The clock for ROUND_MAX_S. Where there is CLOCK_BOOTTIME, it advances even while the machine sleeps.
_ROUND_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

log = structlog.get_logger()


class ShareStateThread(TopicsFollower):
    """A thread of the coordinator's process that carries out tasks until stopped.

    It continues when a broker is unreachable. `summary` is the last known state. `may_change` returns True
    while this process is the owner of the topics (row SP18). A task that was open before the start waits
    `settle_s`, because a broker may still process requests of the last owner.

    The thread works in rounds: it reads records, then carries out the due tasks. ROUND_MAX_S after its begin,
    a round changes nothing more, because the process may have been paused and lost the topics.
    """

    _retried_errors = Exception  # without this thread, share groups get no partitions

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        may_change: Callable[[], bool],
        *,
        settle_s: float = UNCERTAIN_S,
    ) -> None:
        self._may_change = may_change
        super().__init__("share-state", "carrying out the tasks of share groups", client_config, layout)
        self.summary = ShareStateSummary()
        self._settle_s = settle_s
        self._settled_at_s = 0.0  # `settle_s` after the start
        self._round_began_s = 0.0  # by _ROUND_CLOCK
        self._counts = TaskCounts()
        # The partitions whose last change has an unknown outcome (`OpenTasks`). A new connection needs them.
        self._uncertain: dict[SharePartition, float] = {}
        self._coordinators: BrokerCoordinators | None = None  # None until needed, and after a lost connection
        self._permission_checked_s: float | None = None  # None before the first check

    def start(self) -> None:
        self._settled_at_s = time.monotonic() + self._settle_s
        super().start()

    def _connect_and_follow(self) -> None:
        with (
            TopicReader(
                self._client_config,
                max_record_bytes=self._layout.response_record_max_bytes,
                timeout_ms=BROKER_TIMEOUT_MS,
            ) as reader,
            RequestAppender(self._client_config, self._layout) as requests,
        ):
            try:
                self._follow(reader, requests)
            finally:
                self._disconnect()

    def _follow(self, reader: TopicReader, requests: RequestAppender) -> None:
        """Read the groups topic from its start, and carry out tasks until stopped. Raises KafkaError."""
        tasks = OpenTasks(self._counts, self._uncertain)
        partitions = reader.partitions_of(self._layout.groups_topic)
        reader.start(beginning=partitions)
        ends = reader.ends(partitions)
        is_behind = True
        while not self._stopped.is_set():
            self._round_began_s = time.clock_gettime(_ROUND_CLOCK)
            due_s = max(time.monotonic(), self._settled_at_s) if is_behind else time.monotonic()
            self._apply_records(reader, tasks, due_s)
            is_behind = is_behind and not reader.has_read(ends)
            if not is_behind and self._may_change():
                self._check_permission(tasks)
                self._carry_out(tasks.due(time.monotonic()), tasks)
                for report in tasks.reports(time.monotonic()):
                    requests.append(report.records)
                    tasks.reported(report, time.monotonic(), _wall_ms())
                self._worked()
            self.summary = tasks.summary(_wall_ms())

    def _apply_records(self, reader: TopicReader, tasks: OpenTasks, due_s: float) -> None:
        """Apply the available records of the groups topic. A new task is due from `due_s` on."""
        for record in reader.poll(_POLL_MS if tasks.is_working else _REST_POLL_MS):
            try:
                tasks.apply(record.key, record.value, due_s)
            except UNREADABLE as error:
                log.warning("a view of a group cannot be read", error=str(error))

    def _carry_out(self, items: list[PartitionTask], tasks: OpenTasks) -> None:
        """Carry out the due items. A lost connection is replaced at the next call. Raises KafkaError."""
        if not items:
            return
        results = carry_out(items, self._connected())
        tasks.apply_results(items, results, time.monotonic())
        if any(isinstance(result, NoOutcome) and not result.error_code for result in results.values()):
            self._disconnect()

    def _check_permission(self, tasks: OpenTasks) -> None:
        """Check at the start if the permission is missing, and repeat the check while it is.

        Raises KafkaError, NoAnswer.
        """
        now_s, were_refused = time.monotonic(), self._counts.refused
        checked_s = self._permission_checked_s
        if checked_s is not None and (not were_refused or now_s - checked_s <= _CHECK_PAUSE_S):
            return
        self._counts.refused = self._connected().is_permission_missing(self._layout.requests_topic)
        self._permission_checked_s = now_s
        if self._counts.refused and not were_refused:
            log.error(NOT_PERMITTED)
        if were_refused and not self._counts.refused:
            log.info("the brokers initialize and delete the state of share groups' partitions again")
            tasks.make_all_due(now_s)

    def _connected(self) -> BrokerCoordinators:
        """Return the connection to the share coordinators, a new one if there is none. Raises KafkaError."""
        if self._coordinators is None:
            self._coordinators = BrokerCoordinators(self._client_config, self._may_still_change)
        return self._coordinators

    def _may_still_change(self) -> bool:
        """Return True if this process is the owner, and the round began less than ROUND_MAX_S ago."""
        return self._may_change() and time.clock_gettime(_ROUND_CLOCK) - self._round_began_s < ROUND_MAX_S

    def _disconnect(self) -> None:
        if self._coordinators is not None:
            self._coordinators.close()
        self._coordinators = None


def is_surely_owner(ticker: Ticker | None) -> bool:
    """Return True if the last clock record is so recent that no standby can have taken over.

    Its age is then less than half of the silence that a standby waits for.
    """
    if ticker is None:
        return False
    return ticker.age_s() * 1000 < silence_ms(ticker.pace.longest_interval_ms) / 2


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
