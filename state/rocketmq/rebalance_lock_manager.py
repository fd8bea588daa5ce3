"""Locks on queues: only one client reads an ordered queue. Source: RebalanceLockManager.java.

The holder of a lock is a client id, not a connection. Two clients with the same id both hold the lock.
"""

from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.contract.rocketmq.requests import LockBatchMq, UnlockBatchMq
from kafka_why.contract.rocketmq.responses import LockBatchMqResponse, UnlockBatchMqResponse
from state.config import BrokerConfig
from state.rocketmq.context import StepContext
from state.rocketmq.group import LockEntry


def is_expired(lock: LockEntry, now_ms: int, config: BrokerConfig) -> bool:
    """Whether the holder did not renew the lock for longer than the lock's lifetime."""
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
        is_own = lock is None or lock.client_id == request.client_id
        if lock is not None and not is_own:
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
