"""The cluster's share coordinators, over the connections of kafka-python's admin client, which lacks their
requests.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import new_class
from typing import Any
from uuid import UUID

from kafka.errors import NodeNotReadyError, UnknownBrokerIdError, UnknownTopicOrPartitionError
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest

from kafka_why.connections import kafka_clients
from kafka_why.connections.broker_requests import send
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.messages import ErrorCode
from kafka_why.lifetimes import Closeable
from streaming.service.request_appender import BROKER_TIMEOUT_MS
from streaming.service.share_state.partition_tasks import (
    NoAnswer,
    NotOwnerNow,
    PartitionTask,
    RecordedState,
    SharePartition,
)

# Messages to a share coordinator, which kafka-python lacks: InitializeShareGroupState,
# ReadShareGroupStateSummary and DeleteShareGroupState. They are built from Kafka's definitions in `schemas`,
# as kafka-python builds its own.


_SCHEMAS = "streaming.service.share_state.schemas"


def _message(name: str) -> Any:
    """Return the class of the message whose definition is in the file of this name."""
    return new_class(name, (ApiMessage,), {"load_json": _SCHEMAS})


InitializeShareGroupStateRequest = _message("InitializeShareGroupStateRequest")
InitializeShareGroupStateResponse = _message("InitializeShareGroupStateResponse")
ReadShareGroupStateSummaryRequest = _message("ReadShareGroupStateSummaryRequest")
ReadShareGroupStateSummaryResponse = _message("ReadShareGroupStateSummaryResponse")
DeleteShareGroupStateRequest = _message("DeleteShareGroupStateRequest")
DeleteShareGroupStateResponse = _message("DeleteShareGroupStateResponse")


SHARE_VERSION = "share.version"
# The first version of FindCoordinator that finds share coordinators, and the first ones of the other
# messages.
_FIND_VERSION = 6
_VERSION = 0
# kafka-python reads answers of up to 1 MB, and that of FindCoordinator repeats the keys.
_KEYS_MAX_BYTES = 200_000
_NO_LEADER_EPOCH = -1
# The group in the request of `are_refused`. It need not exist.
_ANY_GROUP = "permission"


class BrokerCoordinators(Closeable):
    """The cluster's share coordinators (`ShareCoordinators`). For one thread. After NoAnswer a new object is
    needed, because a broker may have moved.

    A request that changes a state is sent only while `may_change` returns True. Raises KafkaError if no
    broker answers at the start.
    """

    def __init__(self, client_config: ClientConfig, may_change: Callable[[], bool]) -> None:
        self._may_change = may_change
        self._admin = kafka_clients.admin(
            client_config, bootstrap_timeout_ms=BROKER_TIMEOUT_MS, request_timeout_ms=BROKER_TIMEOUT_MS
        )

    def are_refused(self, topic: str) -> bool:
        """Return True if the brokers support share groups but do not permit the principal share-state
        requests. This changes nothing at the brokers. Raises KafkaError, NoAnswer.

        Any broker is queried for the state of a partition of `topic`, which must exist. It answers, or
        reports that it is not the share coordinator, and logs no error. A search for the share coordinator
        would create the state topic.
        """
        _, level = self._admin.describe_features().get(SHARE_VERSION, {}).get("finalized", (0, 0))
        if not level:
            return False
        (described,) = self._admin.describe_topics([topic])
        key = SharePartition(_ANY_GROUP, UUID(str(described["topic_id"])), 0)
        return self.read(None, [key])[key].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def find(self, keys: Sequence[SharePartition]) -> Mapping[SharePartition, tuple[int, int]]:
        by_name = {coordinator_key(key): key for key in keys}
        found: dict[SharePartition, tuple[int, int]] = {}
        for names in _key_batches(by_name):
            found |= {by_name[name]: node for name, node in self._find(names).items() if name in by_name}
        return found

    def _find(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        request = FindCoordinatorRequest(
            key_type=CoordinatorType.SHARE, coordinator_keys=names, version=_FIND_VERSION
        )
        return {one.key: (one.node_id, one.error_code) for one in self._send(request).coordinators}

    def read(
        self, node_id: int | None, keys: Sequence[SharePartition]
    ) -> Mapping[SharePartition, RecordedState]:
        """Return the recorded state of each partition, read from any broker if `node_id` is None."""
        kind = ReadShareGroupStateSummaryRequest.ReadStateSummaryData
        partitions = {
            key: kind.PartitionData(partition=key.partition, leader_epoch=_NO_LEADER_EPOCH) for key in keys
        }
        request = _request(ReadShareGroupStateSummaryRequest, kind, partitions)
        answers = _answers(self._send(request, node_id), keys)
        return {key: RecordedState(one.error_code, one.state_epoch, one.start_offset) for key, one in answers}

    def initialize(self, node_id: int, items: Sequence[PartitionTask]) -> Mapping[SharePartition, int]:
        kind = InitializeShareGroupStateRequest.InitializeStateData
        partitions = {
            item.key: kind.PartitionData(
                partition=item.key.partition, state_epoch=item.state_epoch, start_offset=item.start_offset
            )
            for item in items
        }
        return self._change(node_id, _request(InitializeShareGroupStateRequest, kind, partitions), partitions)

    def delete(self, node_id: int, keys: Sequence[SharePartition]) -> Mapping[SharePartition, int]:
        kind = DeleteShareGroupStateRequest.DeleteStateData
        partitions = {key: kind.PartitionData(partition=key.partition) for key in keys}
        return self._change(node_id, _request(DeleteShareGroupStateRequest, kind, partitions), partitions)

    def _change(
        self, node_id: int, request: Any, keys: Iterable[SharePartition]
    ) -> Mapping[SharePartition, int]:
        if not self._may_change():
            raise NotOwnerNow
        return {key: one.error_code for key, one in _answers(self._send(request, node_id), keys)}

    def deleted(self, topics: Mapping[UUID, str]) -> Collection[UUID]:
        try:
            described = self._admin.describe_topics(sorted(set(topics.values())))
        except Exception as error:
            raise NoAnswer(error) from error
        ids = {
            topic["name"]: None if topic["error_code"] else UUID(str(topic["topic_id"]))
            for topic in described
            if topic["error_code"] in (0, UnknownTopicOrPartitionError.errno)
        }
        return {topic_id for topic_id, name in topics.items() if name in ids and ids[name] != topic_id}

    def _send(self, request: Any, node_id: int | None = None) -> Any:
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
    some: list[str] = []
    size = 0
    for name in names:
        if some and size + len(name.encode()) > _KEYS_MAX_BYTES:
            yield some
            some, size = [], 0
        some.append(name)
        size += len(name.encode())
    if some:
        yield some


def _request(request: Any, kind: Any, partitions: Mapping[SharePartition, Any]) -> Any:
    """Return the request of one group for these partitions."""
    (group_id,) = {key.group_id for key in partitions}
    topics: dict[UUID, list[Any]] = {}
    for key, partition in partitions.items():
        topics.setdefault(key.topic_id, []).append(partition)
    data = [kind(topic_id=topic_id, partitions=of_topic) for topic_id, of_topic in topics.items()]
    return request(group_id=group_id, topics=data, version=_VERSION)


def _answers(response: Any, keys: Iterable[SharePartition]) -> Iterator[tuple[SharePartition, Any]]:
    """Yield the answers for these partitions. A partition may have none."""
    wanted = {(key.topic_id, key.partition): key for key in keys}
    for topic in response.results:
        for partition in topic.partitions:
            key = wanted.get((topic.topic_id, partition.partition))
            if key is not None:
                yield key, partition
