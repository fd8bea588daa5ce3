"""The consumers of a group: for each broker a table keyed by connection, and the notifications when it
changes.

Source: ConsumerManager.java, ConsumerGroupInfo.java, ClientManageProcessor.java.
"""

from collections.abc import Callable, Sequence

from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.requests import (
    ConsumerListResponse,
    ConsumeType,
    GetConsumerListByGroup,
    MessageModel,
    RegisterConsumer,
    RegisterResponse,
    ResponseCode,
    SubscriptionGroupConfig,
    UnregisterConsumer,
    UnregisterResponse,
)
from kafka_why.rocketmq_group import filter_text, shown_subscriptions, subscription_text
from kafka_why.wording import shortened
from state.rocketmq.context import ConsumerGroupEvent, StepContext, about
from state.rocketmq.group import ClientChannelInfo, ConsumerGroupInfo, channel_info

MAX_NAMED = 10
"""The maximum number of different subscriptions that a history entry names, and of topics for each."""

# The part of a heartbeat for one consumer group, in both versions.


def heartbeat(context: StepContext, request: RegisterConsumer) -> None:
    """Register the connection if the group has a configuration. The answer is the same without one.

    A heartbeat of version 2 has a fingerprint other than 0. The answer's IS_SUB_CHANGE is then true if the
    group's last heartbeat at this broker, from any client, had another fingerprint.
    """
    is_v2 = request.heartbeat_fingerprint != 0
    table = context.group.consumers.get(request.broker) if context.has_group else None
    last = None if table is None else table.heartbeat_fingerprint
    is_sub_change = last not in (None, request.heartbeat_fingerprint) if is_v2 else True
    is_pull = request.consume_type is ConsumeType.CONSUME_ACTIVELY
    if is_pull and context.config.reject_pull_consumer_enable:
        return context.reply(request, RegisterResponse, is_sub_change=not is_v2)
    is_new = changed = False
    if request.group_config is not None:
        table = context.ensure_group().consumers.setdefault(request.broker, ConsumerGroupInfo())
        is_new = request.connection not in table.channels
        register = register_consumer_without_sub if is_v2 and request.is_without_sub else register_consumer
        changed = register(context, table, request, request.group_config)
    if context.has_group:
        table = context.group.consumers.setdefault(request.broker, ConsumerGroupInfo())
        table.heartbeat_fingerprint = request.heartbeat_fingerprint
    context.reply(request, RegisterResponse, is_sub_change=is_sub_change, changed=changed, is_new=is_new)


def register_consumer(
    context: StepContext, table: ConsumerGroupInfo, request: RegisterConsumer, config: SubscriptionGroupConfig
) -> bool:
    """Handle a full heartbeat: register the connection and the group's topics. Return True if either changed.

    A newer version of a known subscription is stored without a notification. A topic that the request does
    not name is removed, so members with different topics undo each other's topics at every heartbeat, and all
    connections are notified each time. The history records only when this begins and ends.
    """
    own = sorted({subscription_text(sub.topic, filter_text(sub)) for sub in request.subscription_data_set})
    known = table.channels.get(request.connection)
    is_own_change = request.update_subscription and (known is None or known.subscriptions != own)
    is_new = _update_channel(context, table, request, own if request.update_subscription else None)
    if is_new:
        topics = tuple(dict.fromkeys(sub.topic for sub in request.subscription_data_set))
        context.call(
            ConsumerGroupEvent.CLIENT_REGISTER,
            connection=request.connection,
            client_id=request.client_id,
            topics=topics,
        )
    is_noted = is_new or is_own_change or not table.differing
    changes = _update_subscription(table, request) if request.update_subscription else []
    if (changes and is_noted) or (is_own_change and not is_new):
        _note_subscription(context, table, request, changes or own[:MAX_NAMED])
    if is_own_change:
        _note_differing(context, table, request.broker)
    if is_new or changes:
        news = "connected" if is_new else "changed the group's topics"
        reason = f"client {request.client_id} {news}" if is_noted else None
        _change(context, table, request.broker, config, reason)
    context.call(ConsumerGroupEvent.REGISTER)
    return is_new or bool(changes)


def register_consumer_without_sub(
    context: StepContext, table: ConsumerGroupInfo, request: RegisterConsumer, config: SubscriptionGroupConfig
) -> bool:
    """Handle heartbeat V2's short form: register the connection and keep the topics. Return True if the
    connection is new.
    """
    is_new = _update_channel(context, table, request, None)
    if is_new:
        _change(context, table, request.broker, config, f"client {request.client_id} connected")
    return is_new


def _update_channel(
    context: StepContext, table: ConsumerGroupInfo, request: RegisterConsumer, own: list[str] | None
) -> bool:
    """Register the client of the connection. Return True if the connection is new.

    `own` are the client's subscriptions, or None if the request does not have them.
    """
    table.message_model = request.message_model
    table.consume_type = request.consume_type
    table.consume_from_where = request.consume_from_where
    known = table.channels.get(request.connection)
    own = own if own is not None or known is None else known.subscriptions
    context.arm_scan(context.config.channel_expired_timeout_ms)
    if known is not None and known.client_id == request.client_id:
        known.last_update_ms, known.reply_partition = context.now_ms, request.reply_partition
        known.subscriptions = own
        return False
    info = table.channels[request.connection] = channel_info(request, context.now_ms)
    info.subscriptions = own
    subscriptions = None if own is None else {request.connection: own}
    details = about(request.connection, info)
    if known is None:
        reason = "first heartbeat on this connection"
        context.record(EntryType.CONSUMER_CONNECTED, reason, subscriptions=subscriptions, **details)
    else:
        reason = f"the connection belonged to client {known.client_id}; no client is notified of this"
        context.record(EntryType.CLIENT_ID_REPLACED, reason, subscriptions=subscriptions, **details)
        _note_if_duplicate_is_over(context, table, table.connections_of(known.client_id))
    _note_if_duplicate(context, table, request)
    return known is None


def _note_if_duplicate(context: StepContext, table: ConsumerGroupInfo, request: RegisterConsumer) -> None:
    connections = table.connections_of(request.client_id)
    if len(connections) == 1:
        return
    others = [
        f"{connection} (last heartbeat {context.now_ms - table.channels[connection].last_update_ms} ms ago)"
        for connection in connections
        if connection != request.connection
    ]
    harm = (
        "This is harmless while the group broadcasts"
        if request.message_model is MessageModel.BROADCASTING
        else "Each of its clients takes the share of the first entry; the other shares may have no reader"
    )
    context.record(
        EntryType.DUPLICATE_CLIENT_ID,
        f"client id {request.client_id} connected on {request.connection}, and is already on "
        f"{', '.join(others)}. It is {len(connections)} times in the group's list of client ids. {harm}",
        connections=connections,
        message_model=request.message_model,
        **about(request.connection, table.channels[request.connection]),
    )


def _note_if_duplicate_is_over(context: StepContext, table: ConsumerGroupInfo, left: list[str]) -> None:
    """Record that a client id has one connection again, if `left` is its only one."""
    if len(left) == 1:
        info = table.channels[left[0]]
        context.record(
            EntryType.DUPLICATE_CLIENT_ID_OVER,
            f"client id {info.client_id} is on connection {left[0]} alone",
            **about(left[0], info),
        )


def _update_subscription(table: ConsumerGroupInfo, request: RegisterConsumer) -> list[str]:
    """Set the group's topics to those of the request.

    Return the changes: `+orders` for a topic that was added, `-orders` for one that was removed.
    """
    wanted = {sub.topic for sub in request.subscription_data_set}
    added: list[str] = []
    for sub in request.subscription_data_set:
        if sub.topic not in table.subscriptions:
            added.append(sub.topic)
            table.subscriptions[sub.topic] = sub
        elif sub.sub_version > table.subscriptions[sub.topic].sub_version:
            table.subscriptions[sub.topic] = sub
    removed = [topic for topic in table.subscriptions if topic not in wanted]
    for topic in removed:
        del table.subscriptions[topic]
    return [*(f"+{topic}" for topic in added), *(f"-{topic}" for topic in removed)]


def _note_subscription(
    context: StepContext, table: ConsumerGroupInfo, request: RegisterConsumer, changes: Sequence[str]
) -> None:
    info = table.channels[request.connection]
    context.record(
        EntryType.SUBSCRIPTION_CHANGED,
        f"heartbeat of client {request.client_id}: {', '.join(changes)}",
        topics=list(table.subscriptions),
        subscriptions={request.connection: info.subscriptions or []},
        **about(request.connection, info),
    )


def _note_differing(context: StepContext, table: ConsumerGroupInfo, broker: str) -> None:
    """Record the clients' different subscriptions if they are not those recorded last."""
    found = table.different_subscriptions()
    differing = [list(own) for own in found] if len(found) > 1 else []
    if differing == table.differing:
        return
    table.differing = differing
    if not differing:
        reason = "all clients subscribe to the same again"
        return context.record(EntryType.SUBSCRIPTIONS_DIFFER_OVER, reason, broker=broker or None)
    named = list(found.items())[:MAX_NAMED]
    reason = "; ".join(
        _describe_subscribers(table, connections, shown_subscriptions(own, found))
        for own, connections in named
    )
    context.record(
        EntryType.SUBSCRIPTIONS_DIFFER,
        f"{reason}: each heartbeat replaces the subscriptions of the others",
        broker=broker or None,
        subscriptions={connections[0]: list(own) for own, connections in named},
    )


def _describe_subscribers(table: ConsumerGroupInfo, connections: Sequence[str], own: Sequence[str]) -> str:
    """Return `client A (10.0.0.5:1234) and 3 more: orders, users (a || b)`."""
    first = table.channels[connections[0]]
    others = f" and {len(connections) - 1} more" if len(connections) > 1 else ""
    topics = shortened(own, MAX_NAMED) or "no topic"
    return f"client {first.client_id} ({first.client_address or connections[0]}){others}: {topics}"


# The end of connections.


def unregister_consumer(context: StepContext, request: UnregisterConsumer) -> None:
    """Remove the connection and notify all others, even if the connection was not registered."""
    table = context.consumers_at(request.broker)
    if table is not None:
        duplicates = table.duplicate_client_ids()
        _unregister(context, table, request.connection, "unregistered", request.client_id, duplicates)
        config = request.group_config or SubscriptionGroupConfig()
        _change(context, table, request.broker, config, f"client {request.client_id} unregistered")
        _update_after_removal(context, table, request.broker)
    context.reply(request, UnregisterResponse)


def close_consumers(
    context: StepContext, is_closed: Callable[[str, ClientChannelInfo], bool], reason: str
) -> None:
    """Remove closed connections and notify all others of their brokers.

    They are notified even if the group's configuration turns notifications off. Broadcasting groups are
    notified only with `enable_fast_channel_event_process`.
    """
    for broker, table in context.group.consumers.items():
        closed = [(c, info.client_id) for c, info in table.channels.items() if is_closed(c, info)]
        if not closed:
            continue
        duplicates = table.duplicate_client_ids()
        for connection, client_id in closed:
            _unregister(context, table, connection, reason, client_id, duplicates)
        is_broadcasting = table.message_model is MessageModel.BROADCASTING
        if context.config.enable_fast_channel_event_process or not is_broadcasting:
            who = f"client {closed[0][1]}" if len(closed) == 1 else f"{len(closed)} clients"
            context.change(table, broker, f"{who}: {reason}")
        _update_after_removal(context, table, broker)


def scan_consumers(context: StepContext) -> None:
    """Remove and close connections that were silent for too long.

    As in RocketMQ, the other connections are not notified: they see the change at their own next rebalance.
    """
    limit_ms = context.config.channel_expired_timeout_ms
    for broker, table in context.group.consumers.items():
        duplicates = table.duplicate_client_ids()
        for connection, info in list(table.channels.items()):
            silent_ms = context.now_ms - info.last_update_ms
            if silent_ms <= limit_ms:
                continue
            context.call(
                ConsumerGroupEvent.CLIENT_UNREGISTER,
                connection=connection,
                client_id=info.client_id,
                topics=tuple(table.subscriptions),
            )
            reason = f"silent for {silent_ms} ms, over {limit_ms}"
            context.close(connection, info, reason)
            _remove_channel(context, table, connection, f"{reason}; the others are not notified", duplicates)
        _update_after_removal(context, table, broker)


def _unregister(
    context: StepContext,
    table: ConsumerGroupInfo,
    connection: str,
    reason: str,
    named_client_id: str,
    duplicates: dict[str, list[str]],
) -> None:
    """Remove a connection if it is registered, and call the listener with `named_client_id`."""
    if connection in table.channels:
        context.call(
            ConsumerGroupEvent.CLIENT_UNREGISTER,
            connection=connection,
            client_id=named_client_id,
            topics=tuple(table.subscriptions),
        )
        _remove_channel(context, table, connection, reason, duplicates)
    if not table.channels:
        context.call(ConsumerGroupEvent.UNREGISTER)


def _remove_channel(
    context: StepContext,
    table: ConsumerGroupInfo,
    connection: str,
    reason: str,
    duplicates: dict[str, list[str]],
) -> None:
    """Remove a connection from the table and from its `duplicate_client_ids`."""
    gone = table.channels.pop(connection)
    context.record(EntryType.CONSUMER_REMOVED, reason, **about(connection, gone))
    if (left := duplicates.get(gone.client_id)) is not None:
        left.remove(connection)
        _note_if_duplicate_is_over(context, table, left)


def _update_after_removal(context: StepContext, table: ConsumerGroupInfo, broker: str) -> None:
    """Update the broker's table after connections were removed from it."""
    if table.differing:
        _note_differing(context, table, broker)
    if not table.channels:
        table.forget_consumers()


def _change(
    context: StepContext,
    table: ConsumerGroupInfo,
    broker: str,
    config: SubscriptionGroupConfig,
    reason: str | None,
) -> None:
    is_broadcasting = table.message_model is MessageModel.BROADCASTING
    if config.notify_consumer_ids_changed_enable and not is_broadcasting:
        context.change(table, broker, reason)


def consumer_list(context: StepContext, request: GetConsumerListByGroup) -> None:
    """Answer with the broker's client ids, or with SYSTEM_ERROR if it has no consumer of the group."""
    table = context.consumers_at(request.broker)
    if table is not None:
        return context.reply(request, ConsumerListResponse, consumer_id_list=tuple(table.client_ids()))
    remark = f"no consumer for this group, {context.group_id}"
    context.reply(request, ConsumerListResponse, code=ResponseCode.SYSTEM_ERROR, remark=remark)
