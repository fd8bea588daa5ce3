"""The tables of a broker for one group: its consumers, its producers, and its locks on queues."""

from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.contract.rocketmq.requests import (
    ConnectionClosed,
    ConsumeType,
    GetConsumerListByGroup,
    LockBatchMq,
    MessageModel,
    RegisterConsumer,
    RegisterProducer,
    SubscriptionGroupConfig,
    UnlockBatchMq,
    UnregisterConsumer,
    UnregisterProducer,
)
from kafka_why.contract.rocketmq.responses import (
    ConsumerListResponse,
    LockBatchMqResponse,
    RegisterResponse,
    ResponseCode,
    UnlockBatchMqResponse,
    UnregisterResponse,
)
from state.config import PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS, BrokerConfig
from state.rocketmq.context import ConsumerGroupEvent, StepContext
from state.rocketmq.group import ClientChannelInfo, LockEntry

# The consumers: a table keyed by connection, and the notifications when it changes.
#
# Source: ConsumerManager.java, ConsumerGroupInfo.java.


def register_consumer(
    context: StepContext, request: RegisterConsumer, config: SubscriptionGroupConfig
) -> bool:
    """Handle a full heartbeat: register the connection and the group's topics. Return whether either changed.

    A newer version of a known subscription is stored without a notification. A topic that the request does
    not name is removed. Members with different topics therefore undo each other's topics at every heartbeat,
    and all connections are notified each time.
    """
    is_new = _update_channel(context, request)
    if is_new:
        topics = tuple(dict.fromkeys(sub.topic for sub in request.subscription_data_set))
        context.call(
            ConsumerGroupEvent.CLIENT_REGISTER,
            connection=request.connection,
            client_id=request.client_id,
            topics=topics,
        )
    has_other_topics = request.update_subscription and _update_subscription(context, request)
    if is_new or has_other_topics:
        news = "connected" if is_new else "changed the group's topics"
        _change(context, config, f"client {request.client_id} {news}")
    context.call(ConsumerGroupEvent.REGISTER)
    return is_new or has_other_topics


def register_consumer_without_sub(
    context: StepContext, request: RegisterConsumer, config: SubscriptionGroupConfig
) -> bool:
    """Handle heartbeat V2's short form: register the connection and keep the topics. Return whether it is
    new.
    """
    is_new = _update_channel(context, request)
    if is_new:
        _change(context, config, f"client {request.client_id} connected")
    return is_new


def _update_channel(context: StepContext, request: RegisterConsumer) -> bool:
    """Register the client of the connection, and return whether the connection is new. The group's message
    model, consume type and start position become those of this request.
    """
    group = context.ensure_group()
    group.message_model = request.message_model
    group.consume_type = request.consume_type
    group.consume_from_where = request.consume_from_where
    known = group.channels.get(request.connection)
    context.arm_scan(context.config.channel_expired_timeout_ms)
    if known is not None and known.client_id == request.client_id:
        known.last_update_ms, known.reply_partition = context.now_ms, request.reply_partition
        return False
    group.channels[request.connection] = ClientChannelInfo(
        request.client_id, request.language, request.client_version, context.now_ms, request.reply_partition
    )
    about = {"client_id": request.client_id, "connection": request.connection}
    if known is None:
        context.record(EntryType.CONSUMER_CONNECTED, "first heartbeat on this connection", **about)
    else:
        reason = f"the connection was that of client {known.client_id}; nobody is notified of this"
        context.record(EntryType.CLIENT_ID_REPLACED, reason, **about)
        _note_if_duplicate_is_over(context, known.client_id)
    _note_if_duplicate(context, request)
    return known is None


def _note_if_duplicate(context: StepContext, request: RegisterConsumer) -> None:
    connections = context.group.connections_of(request.client_id)
    if len(connections) == 1:
        return
    channels = context.group.channels
    others = [
        f"{connection} (last heard of {context.now_ms - channels[connection].last_update_ms} ms ago)"
        for connection in connections
        if connection != request.connection
    ]
    harm = (
        "harmless while the group broadcasts"
        if request.message_model is MessageModel.BROADCASTING
        else "each of its clients takes the share of its first place, and other shares may be read by nobody"
    )
    context.record(
        EntryType.DUPLICATE_CLIENT_ID,
        f"client id {request.client_id} came on connection {request.connection} and is on "
        f"{', '.join(others)} already: it stands {len(connections)} times among the group's ids: {harm}",
        client_id=request.client_id,
        connection=request.connection,
        connections=connections,
        message_model=request.message_model,
    )


def _note_if_duplicate_is_over(context: StepContext, client_id: str) -> None:
    """Record that the client id has one connection again, after one of its connections was removed."""
    connections = context.group.connections_of(client_id)
    if len(connections) == 1:
        context.record(
            EntryType.DUPLICATE_CLIENT_ID_OVER,
            f"client id {client_id} is on connection {connections[0]} alone",
            client_id=client_id,
            connection=connections[0],
        )


def _update_subscription(context: StepContext, request: RegisterConsumer) -> bool:
    """Set the group's topics to those of the request. Return whether a topic was added or removed."""
    table = context.group.subscriptions
    wanted = {sub.topic for sub in request.subscription_data_set}
    added: list[str] = []
    for sub in request.subscription_data_set:
        if sub.topic not in table:
            added.append(sub.topic)
            table[sub.topic] = sub
        elif sub.sub_version > table[sub.topic].sub_version:
            table[sub.topic] = sub
    removed = [topic for topic in table if topic not in wanted]
    for topic in removed:
        del table[topic]
    if added or removed:
        changes = [*(f"+{topic}" for topic in added), *(f"-{topic}" for topic in removed)]
        context.record(
            EntryType.SUBSCRIPTION_CHANGED,
            f"heartbeat of client {request.client_id}: {', '.join(changes)}",
            client_id=request.client_id,
            connection=request.connection,
            topics=list(table),
        )
    return bool(added or removed)


def unregister_consumer(context: StepContext, request: UnregisterConsumer) -> None:
    """Remove the connection and notify all others, even if the connection was not registered."""
    if context.has_consumers:
        _unregister(context, request.connection, request.client_id, "unregistered")
        config = request.group_config or SubscriptionGroupConfig()
        _change(context, config, f"client {request.client_id} unregistered")
        _forget_if_empty(context)
    context.reply(request, UnregisterResponse)


def consumer_channel_closed(context: StepContext, request: ConnectionClosed) -> None:
    """Remove a closed connection and notify all others, whatever the group's configuration says.

    With `enable_fast_channel_event_process`, RocketMQ notifies broadcasting groups as well.
    """
    if not context.has_consumers or request.connection not in context.group.channels:
        return
    client_id = context.group.channels[request.connection].client_id
    _unregister(context, request.connection, client_id, "its connection closed")
    is_broadcasting = context.group.message_model is MessageModel.BROADCASTING
    if context.config.enable_fast_channel_event_process or not is_broadcasting:
        context.change(f"client {client_id}: its connection closed")
    _forget_if_empty(context)


def scan_consumers(context: StepContext) -> None:
    """Remove and close connections that were silent for too long. As in RocketMQ, the other connections are
    not notified: they see the change at their own next rebalance.
    """
    group, limit_ms = context.group, context.config.channel_expired_timeout_ms
    expired = [c for c, info in group.channels.items() if context.now_ms - info.last_update_ms > limit_ms]
    for connection in expired:
        client_id = group.channels[connection].client_id
        silent_ms = context.now_ms - group.channels[connection].last_update_ms
        topics = tuple(group.subscriptions)
        context.call(
            ConsumerGroupEvent.CLIENT_UNREGISTER, connection=connection, client_id=client_id, topics=topics
        )
        reason = f"silent for {silent_ms} ms, over {limit_ms}"
        context.close(connection, group.channels[connection], reason)
        _remove_channel(context, connection, f"{reason}; the others are not notified")
    _forget_if_empty(context)


def consumer_list(context: StepContext, request: GetConsumerListByGroup) -> None:
    """Answer with the client ids, or with SYSTEM_ERROR if the group has no consumer."""
    if context.has_consumers:
        return context.reply(
            request, ConsumerListResponse, consumer_id_list=tuple(context.group.client_ids())
        )
    remark = f"no consumer for this group, {context.group_id}"
    context.reply(request, ConsumerListResponse, code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _unregister(context: StepContext, connection: str, named_client_id: str, reason: str) -> None:
    """Remove a connection if it is registered, and call the listener with `named_client_id`."""
    group = context.group
    if connection in group.channels:
        context.call(
            ConsumerGroupEvent.CLIENT_UNREGISTER,
            connection=connection,
            client_id=named_client_id,
            topics=tuple(group.subscriptions),
        )
        _remove_channel(context, connection, reason)
    if not group.channels:
        context.call(ConsumerGroupEvent.UNREGISTER)


def _remove_channel(context: StepContext, connection: str, reason: str) -> None:
    gone = context.group.channels.pop(connection)
    about = {"client_id": gone.client_id, "connection": connection}
    context.record(EntryType.CONSUMER_REMOVED, reason, **about)
    _note_if_duplicate_is_over(context, gone.client_id)


def _change(context: StepContext, config: SubscriptionGroupConfig, reason: str) -> None:
    is_broadcasting = context.group.message_model is MessageModel.BROADCASTING
    if config.notify_consumer_ids_changed_enable and not is_broadcasting:
        context.change(reason)


def _forget_if_empty(context: StepContext) -> None:
    if not context.group.channels:
        context.group.forget_consumers()


# The part of a heartbeat for one consumer group, in both versions. Source: ClientManageProcessor.java.


def heartbeat(context: StepContext, request: RegisterConsumer) -> None:
    """Register the connection. A group without configuration is not registered, and the answer does not say
    so.

    A heartbeat of version 2 has a fingerprint other than 0. Its IS_SUB_CHANGE says whether the group's last
    heartbeat, of any client, had another fingerprint.
    """
    is_v2 = request.heartbeat_fingerprint != 0
    last = context.group.heartbeat_fingerprint if context.has_group else None
    is_sub_change = last not in (None, request.heartbeat_fingerprint) if is_v2 else True
    is_pull = request.consume_type is ConsumeType.CONSUME_ACTIVELY
    if is_pull and context.config.reject_pull_consumer_enable:
        return context.reply(request, RegisterResponse, is_sub_change=not is_v2)
    changed = False
    if request.group_config is not None:
        register = register_consumer_without_sub if is_v2 and request.is_without_sub else register_consumer
        changed = register(context, request, request.group_config)
    if context.has_group:
        context.group.heartbeat_fingerprint = request.heartbeat_fingerprint
    context.reply(request, RegisterResponse, is_sub_change=is_sub_change, changed=changed)


# The producers of a group. Changes are not notified; the broker uses the connections to check transactions.
#
# Source: ProducerManager.java.


def register_producer(context: StepContext, request: RegisterProducer) -> None:
    """Register the connection. The client id stays as in the connection's first heartbeat."""
    producers = context.ensure_group().producers
    context.arm_scan(PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS)
    if request.connection in producers:
        known = producers[request.connection]
        known.last_update_ms, known.reply_partition = context.now_ms, request.reply_partition
    else:
        producers[request.connection] = ClientChannelInfo(
            request.client_id,
            request.language,
            request.client_version,
            context.now_ms,
            request.reply_partition,
        )
        context.record(
            EntryType.PRODUCER_CONNECTED,
            "first heartbeat on this connection",
            client_id=request.client_id,
            connection=request.connection,
        )
    context.reply(request, RegisterResponse, is_sub_change=request.heartbeat_fingerprint == 0)


def unregister_producer(context: StepContext, request: UnregisterProducer) -> None:
    """Remove the connection if it is registered."""
    _remove(context, request.connection, "unregistered")
    context.reply(request, UnregisterResponse)


def producer_channel_closed(context: StepContext, request: ConnectionClosed) -> None:
    """Remove the closed connection if it is registered."""
    _remove(context, request.connection, "its connection closed")


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
        context.record(EntryType.PRODUCER_REMOVED, reason, client_id=gone.client_id, connection=connection)


# Locks on queues: only one client reads an ordered queue. Source: RebalanceLockManager.java.
#
# The holder of a lock is a client id, not a connection. Two clients with the same id both hold the lock.


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
