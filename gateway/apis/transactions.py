"""AddOffsetsToTxn (key 25) and TxnOffsetCommit (key 28): offsets in transactions, docs/decisions/0023.

The brokers coordinate transactions, and write a marker with the outcome to each partition that takes part.
For a transaction that has offsets, this is a partition of the project's own markers topic instead of one of
__consumer_offsets. Until the marker is there, the coordinator keeps the offsets pending.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api, transaction_error
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.offset_commit import ValidPartitions, refuse_all
from gateway.apis.topics import Codes, look_up
from gateway.authorization.acls import Operation
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.upstream.connections import UpstreamLost
from gateway.upstream.transactions import (
    ADD_PARTITIONS_LAST_VERSION,
    CoordinatorRefused,
    MarkersEnd,
    Transactions,
    TxnProducer,
)
from gateway.wire.codec import Fields, GatewayError
from kafka_why.contract.kafka.requests import TxnOffsetCommit
from kafka_why.contract.messages import ErrorCode
from state.kafka.commits import error_of_an_ended_transaction

# The time for all requests to the brokers. Together with ANSWER_TIMEOUT_MS it is less than clients' 30 s.
BROKERS_TIMEOUT_S = 4.0
# The time and interval of retries after CONCURRENT_TRANSACTIONS, as in Kafka's AddPartitionsToTxnManager for
# a Produce. Kafka does not retry the group's own request.
_CONCURRENT_RETRY_S, _CONCURRENT_PAUSE_S = 0.1, 0.02

_FIRST_VERSION_WITH_IDS = 6  # of topics (KIP-1319)
_FIRST_VERSION_OF_TV2 = 5  # transaction.version 2 (KIP-890)
_LAST_VERSION_WITHOUT_LOADING = 1
_ONGOING = "Ongoing"
_PREPARE = frozenset({"PrepareCommit", "PrepareAbort"})
_CODES: Mapping[int, Codes] = MappingProxyType({code: code for code in (*GatewayError, *ErrorCode)})


async def serve_add_offsets(context: RequestContext, request: Any) -> Fields:
    """Add the group's markers partition to the transaction, in place of one of __consumer_offsets.

    A client that has looked up the transaction's coordinator uses the listener of that broker.
    """
    refusal = transaction_error(context, request.transactional_id, request.group_id)
    if refusal is not None:
        return {"error_code": refusal}
    transactions = context.services.transactions
    producer = TxnProducer(request.transactional_id, request.producer_id, request.producer_epoch)
    version = min(context.version, ADD_PARTITIONS_LAST_VERSION)
    try:
        async with asyncio.timeout(BROKERS_TIMEOUT_S):
            code = await transactions.add_partition(
                context.node_id, version, producer, transactions.partition(request.group_id)
            )
    except (UpstreamLost, TimeoutError):
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    return {"error_code": _markers_topic_error(transactions, code) or code}


async def serve_commit(context: RequestContext, request: Any) -> Fields | Deferred:
    """Send the offsets of existing partitions to the coordinator, which commits them with the transaction.

    The other partitions have an error in the response.
    """
    by_id = context.version >= _FIRST_VERSION_WITH_IDS
    refusal = transaction_error(context, request.transactional_id, request.group_id)
    if refusal is not None:
        return await refuse_all(context, request, refusal, by_id=by_id)
    topics = await look_up(context, request.topics, Operation.READ, by_id=by_id)
    if topics is None:
        return await refuse_all(context, request, _retriable_error(context), by_id=by_id)
    slices, valid = context.slices(), ValidPartitions()
    await slices.run(valid.separate(context, request, topics))
    if not valid.topics:
        return {"topics": valid.outcomes.topics}
    if not request.group_id:
        return await valid.refuse(slices, ErrorCode.INVALID_GROUP_ID)
    # Encode now, because the commit must follow the check of the transaction at once.
    await slices.run(valid.encode())
    partition = context.services.transactions.partition(request.group_id)
    producer = TxnProducer(request.transactional_id, request.producer_id, request.producer_epoch)
    end = await _markers_end_in_time(context, producer, partition)
    if not isinstance(end, MarkersEnd):
        return await valid.refuse(slices, end)
    response = context.send(
        TxnOffsetCommit(
            **context.coordinator_header(request.group_id),
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            txn_version=2 if context.version >= _FIRST_VERSION_OF_TV2 else 1,
            txn_partition=partition,
            txn_position=end.offset,
            txn_topic_id=end.topic_id,
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            topics=valid.committed,
        ),
        ANSWER_TIMEOUT_MS,
    )
    return Deferred(asyncio.create_task(valid.merge(slices, response)), valid.merged_fields)


async def _markers_end_in_time(
    context: RequestContext, producer: TxnProducer, partition: int
) -> MarkersEnd | Codes:
    """Return the result of `_markers_end`, within BROKERS_TIMEOUT_S."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        async with asyncio.timeout(BROKERS_TIMEOUT_S):
            end = await _markers_end(context, context.services.transactions, producer, partition)
    except (UpstreamLost, TimeoutError):
        return _retriable_error(context)
    except CoordinatorRefused as error:
        return _known_code(error.error_code)
    # If the process was suspended, an answer may arrive before the timeout is noticed. Then the offsets must
    # not be sent, because the transaction may have ended long ago.
    return end if loop.time() - began_s <= BROKERS_TIMEOUT_S else _retriable_error(context)


async def _markers_end(
    context: RequestContext, transactions: Transactions, producer: TxnProducer, partition: int
) -> MarkersEnd | Codes:
    """Return the end of the markers partition, read while the transaction is open, or the client's error if
    it is not open.
    """
    if context.version >= _FIRST_VERSION_OF_TV2:
        code = await _add_partition(transactions, producer, partition)
        if code == GatewayError.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if code:
            return _markers_topic_error(transactions, code) or _known_code(code)
    # Markers of the producer's earlier transactions are below `end`. The open transaction's will not be.
    end = await transactions.markers_end(partition)
    described = await transactions.describe(producer.transactional_id)
    error = _error_unless_open(context.version, transactions.topic, described, producer, partition)
    return end if error is None else error


async def _add_partition(transactions: Transactions, producer: TxnProducer, partition: int) -> int:
    """Add the partition to the transaction, and return the broker's error code. While the producer's earlier
    transaction ends, retry for a short time.
    """
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + _CONCURRENT_RETRY_S
    while True:
        code = await transactions.add_partition_at_coordinator(producer, partition)
        if code != GatewayError.CONCURRENT_TRANSACTIONS or loop.time() > give_up_s:
            return code
        await asyncio.sleep(_CONCURRENT_PAUSE_S)


def _error_unless_open(
    version: int, topic: str, described: Any, producer: TxnProducer, partition: int
) -> Codes | None:
    """Return the error if the producer has no open transaction with this partition of the markers topic, else
    None. `described` is the broker's description of the transaction.
    """
    code = int(described.error_code)
    is_of_another_producer = not code and described.producer_id != producer.producer_id
    if code == GatewayError.TRANSACTIONAL_ID_NOT_FOUND or is_of_another_producer:
        return GatewayError.INVALID_PRODUCER_ID_MAPPING
    if code:
        return _known_code(code)
    if described.transaction_state in _PREPARE:
        return GatewayError.CONCURRENT_TRANSACTIONS
    if described.producer_epoch != producer.epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    has_partition = any(t.topic == topic and partition in t.partitions for t in described.topics)
    if described.transaction_state == _ONGOING and has_partition:
        return None
    return error_of_an_ended_transaction(version)


def _markers_topic_error(transactions: Transactions, code: int) -> Codes | None:
    """Return the client's error if the broker's error is about the markers topic, else None.

    The client does not know this topic, so it gets other errors than the broker's.
    """
    if code == GatewayError.UNKNOWN_TOPIC_OR_PARTITION:
        transactions.forget_topic()
        transactions.warning.add(error="the topic does not exist: a start of the coordinator makes it")
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code == GatewayError.TOPIC_AUTHORIZATION_FAILED:
        transactions.warning.add(error="the gateway's principal may not WRITE to the topic")
        return GatewayError.GROUP_AUTHORIZATION_FAILED
    return None


def _retriable_error(context: RequestContext) -> Codes:
    """Return the error after which clients of this version retry."""
    if context.version <= _LAST_VERSION_WITHOUT_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return GatewayError.COORDINATOR_LOAD_IN_PROGRESS


def _known_code(code: int) -> Codes:
    return _CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


ADD_OFFSETS_API = Api(key=ApiKey.AddOffsetsToTxn, serve=serve_add_offsets, asks_coordinator=False)
COMMIT_API = Api(key=ApiKey.TxnOffsetCommit, serve=serve_commit)
