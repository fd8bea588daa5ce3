"""The gateway's requests to the brokers about clients' transactions (docs/decisions/0023).

A broker coordinates a transaction, and writes a marker with the outcome to each partition that takes part.
For a transaction that has offsets of a group, this is a partition of the project's own markers topic. The
group's id determines the partition.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from cachetools import FIFOCache
from kafka.protocol.api_key import ApiKey

from gateway.fairness import CapacityLimiter
from gateway.log_text import RateLimitedWarning
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import CLIENT_ID, Address, Upstream, UpstreamLost
from gateway.wire import codec, offload
from gateway.wire.codec import GatewayError
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from kafka_why.partitioner import partition_of

# The gateway's own requests to chosen brokers, over pooled connections.


# A broker handles the requests of one connection one after the other.
CONNECTIONS_PER_BROKER = 8


class OwnRequests:
    """The gateway's own requests to brokers by node id.

    Each broker has at most CONNECTIONS_PER_BROKER connections, each with one request at a time. Idle
    connections stay open. An idle connection may have ended unnoticed, so requests may be sent twice and have
    to be repeatable.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = count(1)
        self._idle: dict[Address, list[Upstream]] = {}
        self._capacity: dict[Address, CapacityLimiter] = {}

    async def ask(self, node_id: int | None, api_key: int, version: int, body: codec.Fields) -> Any:
        """Return the response of this broker, or of any broker if `node_id` is None. Raises UpstreamLost."""
        if node_id is not None:
            return await self._ask(await self._address(node_id), api_key, version, body)
        for live_id in self._cluster.live:
            with suppress(UpstreamLost):
                return await self._ask(self._cluster.nodes[live_id], api_key, version, body)
        # No broker is known or answers, so try the bootstrap servers as well.
        return await self._cluster.ask(api_key, version, body)

    async def _ask(self, address: Address, api_key: int, version: int, body: codec.Fields) -> Any:
        """Send a request on an idle connection, or on a new one if all idle ones are lost."""
        async with self._capacity.setdefault(address, CapacityLimiter(CONNECTIONS_PER_BROKER)):
            idle = self._idle.setdefault(address, [])
            while idle:
                with suppress(UpstreamLost):
                    return await self._ask_on(idle.pop(), idle, api_key, version, body)
            upstream = await self._cluster.connect(address)
            return await self._ask_on(upstream, idle, api_key, version, body)

    def close(self) -> None:
        """Close the idle connections. Other connections end with their requests."""
        for idle in self._idle.values():
            for upstream in idle:
                upstream.close()
            idle.clear()

    async def _address(self, node_id: int) -> Address:
        """Return the address of a broker, from new metadata if it is unknown. Raises UpstreamLost."""
        if node_id not in self._cluster.nodes:
            await self._cluster.refresh()
        if node_id not in self._cluster.nodes:
            raise UpstreamLost(f"no broker has the node id {node_id}")
        return self._cluster.nodes[node_id]

    async def _ask_on(
        self, upstream: Upstream, idle: list[Upstream], api_key: int, version: int, body: codec.Fields
    ) -> Any:
        """Send a request on this connection, which becomes idle when the broker has answered."""
        request = await offload.encode_request(api_key, version, next(self._numbers), CLIENT_ID, body)
        answer = await upstream.request(request)
        idle.append(upstream)
        return await offload.decode_response(api_key, version, answer)


_METADATA_VERSION, _LIST_OFFSETS_VERSION, _FIND_COORDINATOR_VERSION, _DESCRIBE_VERSION = 12, 7, 3, 0
# The last version of AddPartitionsToTxn for clients. Later versions are for brokers.
ADD_PARTITIONS_LAST_VERSION = 3
_TRANSACTION = 1  # FindCoordinatorRequest.CoordinatorType
_LATEST, _NO_REPLICA, _READ_UNCOMMITTED = -1, -1, 0

_CACHED_COORDINATORS_MAX = 10_000
_CACHED_ID_MAX_CHARS = 250  # an id may have 32 KiB
_TOPIC_AGE_MAX_S = 5.0
_RETRY_PAUSE_S = 0.05

# Errors after which the transaction's coordinator is looked up again: it moves, or has moved, to another
# broker.
_RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        GatewayError.COORDINATOR_LOAD_IN_PROGRESS,
        GatewayError.NOT_COORDINATOR,
    }
)

T = TypeVar("T")


class CoordinatorRefused(Exception):
    """The brokers refuse to name a transaction's coordinator. `error_code` is Kafka's."""

    def __init__(self, error_code: int) -> None:
        super().__init__(f"the coordinator of the transaction is not named: error {error_code}")
        self.error_code = error_code


class TxnProducer(NamedTuple):
    """The producer that a request names."""

    transactional_id: str
    producer_id: int
    epoch: int


class MarkersEnd(NamedTuple):
    """The end of a markers partition, and the id of its topic."""

    topic_id: UUID | None
    offset: int


class Transactions:
    """Requests about clients' transactions.

    A request waits while its coordinator or leader moves to another broker, so callers have to limit the
    time. `warning` is for problems that an operator has to fix.
    """

    def __init__(self, cluster: Cluster, layout: TopicLayout) -> None:
        self.topic = layout.txn_markers_topic
        self.warning = RateLimitedWarning("the topic of markers cannot be used")
        self._cluster = cluster
        self._partitions = layout.txn_marker_partitions
        self._own = OwnRequests(cluster)
        self._coordinators: FIFOCache[str, int] = FIFOCache(_CACHED_COORDINATORS_MAX)
        # The leaders of the markers partitions, and the topic's id, are read again after _TOPIC_AGE_MAX_S, or
        # at the next use if `_refreshed_at_s` is -inf.
        self._leaders: dict[int, int] = {}
        self._topic_id: UUID | None = None
        self._refreshed_at_s = float("-inf")

    def partition(self, group_id: str) -> int:
        """Return the markers partition of a group."""
        return partition_of(group_id, self._partitions)

    async def add_partition(
        self, node_id: int | None, version: int, producer: TxnProducer, partition: int
    ) -> int:
        """Add a markers partition to a transaction, and return the error code. Raises UpstreamLost.

        The request goes to this broker, or to any broker if `node_id` is None.
        """
        body = {
            "v3_and_below_transactional_id": producer.transactional_id,
            "v3_and_below_producer_id": producer.producer_id,
            "v3_and_below_producer_epoch": producer.epoch,
            "v3_and_below_topics": [{"name": self.topic, "partitions": [partition]}],
        }
        answer = await self._own.ask(node_id, ApiKey.AddPartitionsToTxn, version, body)
        (topic,) = answer.results_by_topic_v3_and_below
        (result,) = topic.results_by_partition
        return int(result.partition_error_code)

    async def add_partition_at_coordinator(self, producer: TxnProducer, partition: int) -> int:
        """Add a markers partition at the transaction's coordinator. Raises UpstreamLost,
        CoordinatorRefused.
        """

        def ask(node_id: int) -> Awaitable[int]:
            return self.add_partition(node_id, ADD_PARTITIONS_LAST_VERSION, producer, partition)

        return await self._at_coordinator(producer.transactional_id, ask, error_of=int)

    async def describe(self, transactional_id: str) -> Any:
        """Return the coordinator's description of a transaction, an entry of DescribeTransactionsResponse.
        Raises UpstreamLost, CoordinatorRefused.
        """

        async def ask(node_id: int) -> Any:
            body = {"transactional_ids": [transactional_id]}
            answer = await self._own.ask(node_id, ApiKey.DescribeTransactions, _DESCRIBE_VERSION, body)
            return answer.transaction_states[0]

        return await self._at_coordinator(transactional_id, ask, error_of=lambda state: int(state.error_code))

    async def markers_end(self, partition: int) -> MarkersEnd:
        """Return the end of a markers partition at its leader. All records before this offset can be read.
        Raises UpstreamLost.
        """
        while True:
            leader = await self._leader(partition)
            topic_id = self._topic_id
            offset = None if leader is None else await self._high_watermark(leader, partition)
            # Another caller may have read a new id meanwhile. Then `offset` may be of the recreated topic.
            if offset is not None and topic_id == self._topic_id:
                return MarkersEnd(topic_id, offset)
            self._refreshed_at_s = float("-inf")
            await asyncio.sleep(_RETRY_PAUSE_S)

    def forget_topic(self) -> None:
        """Request the markers topic again, because it may have been recreated."""
        self._refreshed_at_s = float("-inf")

    def close(self) -> None:
        """Close the connections."""
        self._own.close()

    async def _at_coordinator(
        self, transactional_id: str, ask: Callable[[int], Awaitable[T]], error_of: Callable[[T], int]
    ) -> T:
        """Query a transaction's coordinator. If it has moved, or its broker is lost, look it up and query
        again.
        """
        while True:
            node_id = await self._coordinator(transactional_id)
            with suppress(UpstreamLost):
                answer = await ask(node_id)
                if error_of(answer) not in _RETRIABLE:
                    return answer
            self._coordinators.pop(transactional_id, None)
            await asyncio.sleep(_RETRY_PAUSE_S)

    async def _coordinator(self, transactional_id: str) -> int:
        """Return the broker that coordinates the transaction. Raises UpstreamLost, CoordinatorRefused."""
        node_id = self._coordinators.get(transactional_id)
        while node_id is None:
            body = {"key": transactional_id, "key_type": _TRANSACTION}
            answer = await self._own.ask(None, ApiKey.FindCoordinator, _FIND_COORDINATOR_VERSION, body)
            if answer.error_code in _RETRIABLE:
                await asyncio.sleep(_RETRY_PAUSE_S)
            elif answer.error_code:
                raise CoordinatorRefused(answer.error_code)
            else:
                self._cluster.update_brokers({answer.node_id: Address(answer.host, answer.port)})
                node_id = int(answer.node_id)
                if len(transactional_id) <= _CACHED_ID_MAX_CHARS:
                    self._coordinators[transactional_id] = node_id
        return node_id

    async def _leader(self, partition: int) -> int | None:
        """Return the leader of a markers partition, or None if it has no leader now. Raises UpstreamLost."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refreshed_at_s > _TOPIC_AGE_MAX_S:
            body = {"topics": [{"name": self.topic, "topic_id": None}], "allow_auto_topic_creation": False}
            answer = await self._own.ask(None, ApiKey.Metadata, _METADATA_VERSION, body)
            self._cluster.update_brokers({b.node_id: Address(b.host, b.port) for b in answer.brokers})
            (topic,) = answer.topics
            self._topic_id = topic.topic_id
            self._leaders = {p.partition_index: p.leader_id for p in topic.partitions if p.leader_id >= 0}
            self._refreshed_at_s = now_s
        return self._leaders.get(partition)

    async def _high_watermark(self, leader: int, partition: int) -> int | None:
        """Return the high watermark of a partition, or None if the caller has to retry."""
        body = {
            "replica_id": _NO_REPLICA,
            "isolation_level": _READ_UNCOMMITTED,
            "topics": [
                {
                    "name": self.topic,
                    "partitions": [{"partition_index": partition, "timestamp": _LATEST}],
                }
            ],
        }
        try:
            answer = await self._own.ask(leader, ApiKey.ListOffsets, _LIST_OFFSETS_VERSION, body)
        except UpstreamLost:
            return None
        (result,) = answer.topics[0].partitions
        return None if result.error_code else int(result.offset)
