"""AddOffsetsToTxn (key 25) and TxnOffsetCommit (key 28): offsets in transactions, docs/decisions/0023.

The brokers coordinate transactions. A partition of the markers topic takes part in each transaction that has
offsets, so that the brokers write the outcome there. Until then the group's coordinator keeps the offsets
pending. Rows TG1 to TG11.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api, transaction_error
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.offset_commit import ValidPartitions, refused
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

# The time for all requests to the brokers. Together with ANSWER_TIMEOUT_MS it is less than clients' 30 s.
BROKERS_TIMEOUT_S = 4.0
# As in Kafka's AddPartitionsToTxnManager for a Produce. Kafka does not retry the group's own request.
_CONCURRENT_RETRY_S, _CONCURRENT_PAUSE_S = 0.1, 0.02

_FIRST_VERSION_WITH_IDS = 6  # of topics (KIP-1319)
_FIRST_VERSION_OF_TV2 = 5
_FIRST_VERSION_WITH_ABORTABLE = 4
_LAST_VERSION_WITHOUT_LOADING = 1
_ONGOING = "Ongoing"
_PREPARE = frozenset({"PrepareCommit", "PrepareAbort"})
_CODES: Mapping[int, Codes] = MappingProxyType({code: code for code in (*GatewayError, *ErrorCode)})


async def serve_add_offsets(context: RequestContext, request: Any) -> Fields:
    """Add the group's markers partition to the transaction, in place of one of __consumer_offsets.

    The broker behind the listener is the transaction's coordinator, if the client has looked it up.
    """
    denied = transaction_error(context, request.transactional_id, request.group_id)
    if denied is not None:
        return {"error_code": denied}
    transactions = context.services.transactions
    producer = TxnProducer(request.transactional_id, request.producer_id, request.producer_epoch)
    version = min(context.version, ADD_PARTITIONS_LAST_VERSION)
    try:
        async with asyncio.timeout(BROKERS_TIMEOUT_S):
            code = await transactions.add(
                context.node_id, version, producer, transactions.partition(request.group_id)
            )
    except (UpstreamLost, TimeoutError):
        return {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    return {"error_code": _refusal(transactions, code) or code}


async def serve_commit(context: RequestContext, request: Any) -> Fields | Deferred:
    """Commit the offsets of the existing partitions when the transaction commits."""
    by_id = context.version >= _FIRST_VERSION_WITH_IDS
    denied = transaction_error(context, request.transactional_id, request.group_id)
    if denied is not None:
        return await refused(context, request, denied, by_id=by_id)
    topics = await look_up(context, request.topics, Operation.READ, by_id=by_id)
    if topics is None:
        return await refused(context, request, _retriable_error(context), by_id=by_id)
    slices, valid = context.slices(), ValidPartitions()
    await slices.run(valid.separate(context, request, topics))
    if not valid.topics:
        return {"topics": valid.outcomes.fields()}
    if not request.group_id:
        return await valid.refuse(slices, ErrorCode.INVALID_GROUP_ID)
    await slices.run(
        valid.encode()
    )  # first, so that the request follows the check of the transaction at once
    partition = context.services.transactions.partition(request.group_id)
    producer = TxnProducer(request.transactional_id, request.producer_id, request.producer_epoch)
    found = await _open_position(context, producer, partition)
    if not isinstance(found, MarkersEnd):
        return await valid.refuse(slices, found)
    response = context.send(
        TxnOffsetCommit(
            **context.coordinator_header(request.group_id),
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            txn_version=2 if context.version >= _FIRST_VERSION_OF_TV2 else 1,
            txn_partition=partition,
            txn_position=found.offset,
            txn_topic_id=found.topic_id,
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            topics=valid.committed,
        ),
        ANSWER_TIMEOUT_MS,
    )
    return Deferred(asyncio.create_task(valid.merge(slices, response)), valid.all_fields)


async def _open_position(
    context: RequestContext, producer: TxnProducer, partition: int
) -> MarkersEnd | Codes:
    """Return the result of `_position`, within BROKERS_TIMEOUT_S."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        async with asyncio.timeout(BROKERS_TIMEOUT_S):
            found = await _position(context, context.services.transactions, producer, partition)
    except (UpstreamLost, TimeoutError):
        return _retriable_error(context)
    except CoordinatorRefused as error:
        return _known_code(error.error_code)
    # After a suspension of the process the answer and the timeout arrive together, and a request must not be
    # written long after its transaction.
    return found if loop.time() - began_s <= BROKERS_TIMEOUT_S else _retriable_error(context)


async def _position(
    context: RequestContext, transactions: Transactions, producer: TxnProducer, partition: int
) -> MarkersEnd | Codes:
    """Return the end of the markers partition, read during the open transaction, or the error."""
    if context.version >= _FIRST_VERSION_OF_TV2:
        code = await _add(transactions, producer, partition)
        if code == GatewayError.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if code:
            return _refusal(transactions, code) or _known_code(code)
    # Markers of the producer's earlier transactions are below this position, the marker of this one is not.
    position = await transactions.position(partition)
    described = await transactions.describe(producer.transactional_id)
    error = _error_unless_open(context.version, transactions.topic, described, producer, partition)
    return position if error is None else error


async def _add(transactions: Transactions, producer: TxnProducer, partition: int) -> int:
    """Add the partition to the transaction. While an earlier transaction ends, retry for a short time."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + _CONCURRENT_RETRY_S
    while True:
        code = await transactions.add_at_coordinator(producer, partition)
        if code != GatewayError.CONCURRENT_TRANSACTIONS or loop.time() > give_up_s:
            return code
        await asyncio.sleep(_CONCURRENT_PAUSE_S)


def _error_unless_open(
    version: int, topic: str, described: Any, producer: TxnProducer, partition: int
) -> Codes | None:
    """Row TG8: return the error if the producer has no open transaction with the partition, else None."""
    code = int(described.error_code)
    if code == GatewayError.TRANSACTIONAL_ID_NOT_FOUND or (
        not code and described.producer_id != producer.producer_id
    ):
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
    return _error_when_over(version)


def _error_when_over(version: int) -> ErrorCode:
    if version >= _FIRST_VERSION_OF_TV2:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if version >= _FIRST_VERSION_WITH_ABORTABLE:
        return ErrorCode.TRANSACTION_ABORTABLE
    return ErrorCode.INVALID_TXN_STATE


def _refusal(transactions: Transactions, code: int) -> Codes | None:
    """Return the client's error if the markers topic cannot be added, else None."""
    # The client does not know this topic, so it gets other errors than the broker's.
    if code == GatewayError.UNKNOWN_TOPIC_OR_PARTITION:
        transactions.forget_topic()
        transactions.warning.add(error="the topic does not exist: a start of the coordinator makes it")
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code == GatewayError.TOPIC_AUTHORIZATION_FAILED:
        transactions.warning.add(error="the gateway's principal may not WRITE to the topic")
        return GatewayError.GROUP_AUTHORIZATION_FAILED
    return None


def _retriable_error(context: RequestContext) -> Codes:
    if context.version <= _LAST_VERSION_WITHOUT_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return GatewayError.COORDINATOR_LOAD_IN_PROGRESS


def _known_code(code: int) -> Codes:
    return _CODES.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


ADD_OFFSETS_API = Api(key=ApiKey.AddOffsetsToTxn, serve=serve_add_offsets, asks_coordinator=False)
COMMIT_API = Api(key=ApiKey.TxnOffsetCommit, serve=serve_commit)
