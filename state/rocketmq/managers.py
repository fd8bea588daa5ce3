"""The producers of a group, and its locks on queues."""

from collections.abc import Callable

from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.contract.rocketmq.requests import (
    LockBatchMq,
    RegisterProducer,
    UnlockBatchMq,
    UnregisterProducer,
)
from kafka_why.contract.rocketmq.responses import (
    LockBatchMqResponse,
    RegisterResponse,
    UnlockBatchMqResponse,
    UnregisterResponse,
)
from state.config import PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS, BrokerConfig
from state.rocketmq.context import StepContext, about
from state.rocketmq.group import ClientChannelInfo, LockEntry, channel_info

# The producers of a group. Changes are not notified; the broker uses the connections to check transactions.
#
# Source: ProducerManager.java.


def register_producer(context: StepContext, request: RegisterProducer) -> None:
    """Register the connection. The client id stays as in the connection's first heartbeat."""
    producers = context.ensure_group().producers
    context.arm_scan(PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS)
    known = producers.get(request.connection)
    if known is not None:
        known.last_update_ms, known.reply_partition = context.now_ms, request.reply_partition
    else:
        info = producers[request.connection] = channel_info(request, context.now_ms)
        reason = "first heartbeat on this connection"
        context.record(EntryType.PRODUCER_CONNECTED, reason, **about(request.connection, info))
    is_sub_change = request.heartbeat_fingerprint == 0
    context.reply(request, RegisterResponse, is_sub_change=is_sub_change, is_new=known is None)


def unregister_producer(context: StepContext, request: UnregisterProducer) -> None:
    """Remove the connection if it is registered."""
    _remove(context, request.connection, "unregistered")
    context.reply(request, UnregisterResponse)


def close_producers(
    context: StepContext, is_closed: Callable[[str, ClientChannelInfo], bool], reason: str
) -> None:
    """Remove the closed connections."""
    for connection in [c for c, info in context.group.producers.items() if is_closed(c, info)]:
        _remove(context, connection, reason)


def scan_producers(context: StepContext) -> None:
    """Remove and close connections that were silent for too long."""
    limit_ms = PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS
    for connection, info in list(context.group.producers.items()):
        silent_ms = context.now_ms - info.last_update_ms
        if silent_ms > limit_ms:
            reason = f"silent for {silent_ms} ms, over {limit_ms}"
            _remove(context, connection, reason)
            context.close(connection, info, reason)


def _remove(context: StepContext, connection: str, reason: str) -> None:
    gone = context.group.producers.pop(connection, None) if context.has_group else None
    if gone is not None:
        context.record(EntryType.PRODUCER_REMOVED, reason, **about(connection, gone))


# Locks on queues: only one client reads an ordered queue. Source: RebalanceLockManager.java.
#
# The holder of a lock is a client id, not a connection. Two clients with the same id both hold the lock.

MAX_LOCKS = 20_000
"""The maximum number of locks of a group, because clients choose the names. RocketMQ has no limit."""


def is_expired(lock: LockEntry, now_ms: int, config: BrokerConfig) -> bool:
    """Return True if the holder did not renew the lock for longer than the lock's lifetime."""
    return now_ms - lock.last_update_ms > config.lock_max_live_ms


def lock_batch(context: StepContext, request: LockBatchMq) -> None:
    """Lock the queues that are free, expired, or locked by this client. Answer with the requested queues that
    the client now holds.
    """
    held: dict[MessageQueue, None] = {}
    taken_over: dict[str, list[str]] = {}
    if request.mq_set:
        context.ensure_group()
    for queue in request.mq_set:
        lock = context.group.locks.get(queue)
        if lock is None and len(context.group.locks) >= MAX_LOCKS:
            continue
        if lock is not None and lock.client_id != request.client_id:
            if not is_expired(lock, context.now_ms, context.config):
                continue
            taken_over.setdefault(lock.client_id, []).append(str(queue))
        context.group.locks[queue] = LockEntry(request.client_id, context.now_ms)
        held[queue] = None
    if held:
        context.arm_scan(context.config.lock_max_live_ms)
    for owner, queues in taken_over.items():
        context.record(
            EntryType.QUEUE_LOCKS_TAKEN_OVER,
            f"client {owner} did not renew its locks within {context.config.lock_max_live_ms} ms; "
            f"they are client {request.client_id}'s now: {', '.join(queues)}",
            client_id=request.client_id,
            connection=request.connection,
        )
    context.reply(request, LockBatchMqResponse, lock_ok_mq_set=tuple(held))


def unlock_batch(context: StepContext, request: UnlockBatchMq) -> None:
    """Remove the client's locks of these queues, expired or not. Locks of other clients stay."""
    locks = context.group.locks if context.has_group else {}
    for queue in request.mq_set:
        if queue in locks and locks[queue].client_id == request.client_id:
            del locks[queue]
    context.reply(request, UnlockBatchMqResponse)


def scan_locks(context: StepContext) -> None:
    """Remove expired locks. RocketMQ keeps them in memory; clients see no difference."""
    expired = [
        q for q, lock in context.group.locks.items() if is_expired(lock, context.now_ms, context.config)
    ]
    for queue in expired:
        del context.group.locks[queue]
