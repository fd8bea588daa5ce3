"""The consumers of a group: for each broker a table of connections, and the notifications when it changes. A
broadcasting group, in which every client reads all queues, needs no notifications.

Source: ConsumerManager.java, ConsumerGroupInfo.java, ClientManageProcessor.java.
"""

from collections.abc import Callable, Sequence

from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.requests import (
    ConsumerListResponse,
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
from state.rocketmq.context import StepContext, connection_details
from state.rocketmq.group import ClientChannelInfo, ConsumerGroupInfo, channel_info

MAX_NAMED = 10
"""The maximum number of different subscriptions that a history entry names, and of topics for each."""

# The part of a heartbeat for one consumer group, in both versions.


def heartbeat(context: StepContext, request: RegisterConsumer) -> None:
    """Handle the heartbeat of a consumer: register its connection, unless the broker has no configuration of
    the group. The sender gets the same answer in both cases.

    A heartbeat of version 2 has a fingerprint other than 0. The answer's IS_SUB_CHANGE is then true if the
    group's last heartbeat at this broker, from any client, had another fingerprint. For version 1 it is
    always true.
    """
    is_v2 = request.heartbeat_fingerprint != 0
    table = context.group.consumers.get(request.broker) if context.has_group else None
    last_fingerprint = None if table is None else table.heartbeat_fingerprint
    is_sub_change = not is_v2 or last_fingerprint not in (None, request.heartbeat_fingerprint)
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

    A newer version of a stored subscription is stored without a notification. A topic that the request does
    not name is removed. So clients with different topics replace each other's topics at every heartbeat, and
    all connections are notified each time. The history records only when such differences begin and end.
    """
    own_subscriptions = sorted(
        {subscription_text(sub.topic, filter_text(sub)) for sub in request.subscription_data_set}
    )
    client = table.channels.get(request.connection)
    is_own_change = request.update_subscription and (
        client is None or client.subscriptions != own_subscriptions
    )
    is_new = _update_channel(
        context, table, request, own_subscriptions if request.update_subscription else None
    )
    # While clients have different topics, a change that only restores this client's topics has no entry.
    is_recorded = is_new or is_own_change or not table.differing
    changes = _update_subscription(table, request) if request.update_subscription else []
    # If the group's topics do not change, the entry shows the client's own subscriptions.
    if (changes and is_recorded) or (is_own_change and not is_new):
        _record_subscription(context, table, request, changes or own_subscriptions[:MAX_NAMED])
    if is_own_change:
        _record_differing_subscriptions(context, table, request.broker)
    if is_new or changes:
        action = "connected" if is_new else "changed the group's topics"
        reason = f"client {request.client_id} {action}" if is_recorded else None
        _notify_consumers(context, table, request.broker, config, reason)
    return is_new or bool(changes)


def register_consumer_without_sub(
    context: StepContext, table: ConsumerGroupInfo, request: RegisterConsumer, config: SubscriptionGroupConfig
) -> bool:
    """Handle the short form of a V2 heartbeat, which has no subscriptions: register the connection and keep
    the topics. Return True if the connection is new.
    """
    is_new = _update_channel(context, table, request, own_subscriptions=None)
    if is_new:
        _notify_consumers(context, table, request.broker, config, f"client {request.client_id} connected")
    return is_new


def _update_channel(
    context: StepContext,
    table: ConsumerGroupInfo,
    request: RegisterConsumer,
    own_subscriptions: list[str] | None,
) -> bool:
    """Register or renew the client of the connection. Return True if the connection is new.

    `own_subscriptions` are the client's subscriptions, or None if the request does not have them.
    """
    table.message_model = request.message_model
    table.consume_type = request.consume_type
    table.consume_from_where = request.consume_from_where
    client = table.channels.get(request.connection)
    if own_subscriptions is None and client is not None:
        own_subscriptions = client.subscriptions
    context.arm_scan(context.config.channel_expired_timeout_ms)
    if client is not None and client.client_id == request.client_id:
        client.last_update_ms, client.reply_partition = context.now_ms, request.reply_partition
        client.subscriptions = own_subscriptions
        return False
    info = table.channels[request.connection] = channel_info(request, context.now_ms)
    info.subscriptions = own_subscriptions
    subscriptions = None if own_subscriptions is None else {request.connection: own_subscriptions}
    details = connection_details(request.connection, info)
    if client is None:
        reason = "first heartbeat on this connection"
        context.record(EntryType.CONSUMER_CONNECTED, reason, subscriptions=subscriptions, **details)
    else:
        reason = f"the connection belonged to client {client.client_id}; no client is notified of this"
        context.record(EntryType.CLIENT_ID_REPLACED, reason, subscriptions=subscriptions, **details)
        _record_end_of_duplicate(context, table, table.connections_of(client.client_id))
    _record_duplicate(context, table, request)
    return client is None


def _record_duplicate(context: StepContext, table: ConsumerGroupInfo, request: RegisterConsumer) -> None:
    """Record that the client id has more than one connection, if it has."""
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
        **connection_details(request.connection, table.channels[request.connection]),
    )


def _record_end_of_duplicate(context: StepContext, table: ConsumerGroupInfo, remaining: list[str]) -> None:
    """Record that a client id is no longer a duplicate, if only one of its connections remains."""
    if len(remaining) == 1:
        info = table.channels[remaining[0]]
        context.record(
            EntryType.DUPLICATE_CLIENT_ID_OVER,
            f"client id {info.client_id} is on connection {remaining[0]} alone",
            **connection_details(remaining[0], info),
        )


def _update_subscription(table: ConsumerGroupInfo, request: RegisterConsumer) -> list[str]:
    """Set the group's topics to those of the request.

    Return the changes: `+orders` for a topic that was added, `-orders` for one that was removed.
    """
    requested = {sub.topic for sub in request.subscription_data_set}
    added: list[str] = []
    for sub in request.subscription_data_set:
        if sub.topic not in table.subscriptions:
            added.append(sub.topic)
            table.subscriptions[sub.topic] = sub
        elif sub.sub_version > table.subscriptions[sub.topic].sub_version:
            table.subscriptions[sub.topic] = sub
    removed = [topic for topic in table.subscriptions if topic not in requested]
    for topic in removed:
        del table.subscriptions[topic]
    return [*(f"+{topic}" for topic in added), *(f"-{topic}" for topic in removed)]


def _record_subscription(
    context: StepContext, table: ConsumerGroupInfo, request: RegisterConsumer, changes: Sequence[str]
) -> None:
    """Record the changes of the group's topics, or else the client's own subscriptions (`changes`)."""
    info = table.channels[request.connection]
    context.record(
        EntryType.SUBSCRIPTION_CHANGED,
        f"heartbeat of client {request.client_id}: {', '.join(changes)}",
        topics=list(table.subscriptions),
        subscriptions={request.connection: info.subscriptions or []},
        **connection_details(request.connection, info),
    )


def _record_differing_subscriptions(context: StepContext, table: ConsumerGroupInfo, broker: str) -> None:
    """Record how the clients' subscriptions differ, or that they are equal again, unless the last such entry
    recorded the same.
    """
    connections_of = table.different_subscriptions()  # by the client's own subscriptions
    differing = (
        [list(own_subscriptions) for own_subscriptions in connections_of] if len(connections_of) > 1 else []
    )
    if differing == table.differing:
        return
    table.differing = differing
    if not differing:
        reason = "all clients subscribe to the same again"
        return context.record(EntryType.SUBSCRIPTIONS_DIFFER_OVER, reason, broker=broker or None)
    shown = list(connections_of.items())[:MAX_NAMED]
    reason = "; ".join(
        _describe_subscribers(table, connections, shown_subscriptions(own_subscriptions, connections_of))
        for own_subscriptions, connections in shown
    )
    context.record(
        EntryType.SUBSCRIPTIONS_DIFFER,
        f"{reason}: each heartbeat replaces the subscriptions of the others",
        broker=broker or None,
        subscriptions={connections[0]: list(own_subscriptions) for own_subscriptions, connections in shown},
    )


def _describe_subscribers(
    table: ConsumerGroupInfo, connections: Sequence[str], own_subscriptions: Sequence[str]
) -> str:
    """Return `client A (10.0.0.5:1234) and 3 more: orders, users (a || b)`."""
    first = table.channels[connections[0]]
    others = f" and {len(connections) - 1} more" if len(connections) > 1 else ""
    topics = shortened(own_subscriptions, MAX_NAMED) or "no topic"
    return f"client {first.client_id} ({first.client_address or connections[0]}){others}: {topics}"


# The end of connections.


def unregister_consumer(context: StepContext, request: UnregisterConsumer) -> None:
    """Remove the connection and notify all others, even if the connection was not registered."""
    table = context.consumers_at(request.broker)
    if table is not None:
        if request.connection in table.channels:
            duplicates = table.duplicate_client_ids()
            _remove_channel(context, table, request.connection, "unregistered", duplicates)
        config = request.group_config or SubscriptionGroupConfig()
        _notify_consumers(context, table, request.broker, config, f"client {request.client_id} unregistered")
        _update_after_removal(context, table, request.broker)
    context.reply(request, UnregisterResponse)


def close_consumers(
    context: StepContext, is_closed: Callable[[str, ClientChannelInfo], bool], reason: str
) -> None:
    """Remove the connections for which `is_closed` is true, and notify all other connections to the same
    brokers.

    The group's configuration cannot turn these notifications off. A broadcasting group is notified only if
    `enable_fast_channel_event_process` is True.
    """
    for broker, table in context.group.consumers.items():
        closed = [(c, info.client_id) for c, info in table.channels.items() if is_closed(c, info)]
        if not closed:
            continue
        duplicates = table.duplicate_client_ids()
        for connection, _ in closed:
            _remove_channel(context, table, connection, reason, duplicates)
        is_broadcasting = table.message_model is MessageModel.BROADCASTING
        if context.config.enable_fast_channel_event_process or not is_broadcasting:
            clients = f"client {closed[0][1]}" if len(closed) == 1 else f"{len(closed)} clients"
            context.notify_consumer_ids_changed(table, broker, f"{clients}: {reason}")
        _update_after_removal(context, table, broker)


def scan_consumers(context: StepContext) -> None:
    """Remove and close connections that were silent for too long.

    As in RocketMQ, the other connections are not notified: they see the change at their
    own next rebalance.
    """
    limit_ms = context.config.channel_expired_timeout_ms
    for broker, table in context.group.consumers.items():
        duplicates = table.duplicate_client_ids()
        for connection, info in list(table.channels.items()):
            silent_ms = context.now_ms - info.last_update_ms
            if silent_ms <= limit_ms:
                continue
            reason = f"silent for {silent_ms} ms, over {limit_ms}"
            context.close(connection, info, reason)
            _remove_channel(context, table, connection, f"{reason}; the others are not notified", duplicates)
        _update_after_removal(context, table, broker)


def _remove_channel(
    context: StepContext,
    table: ConsumerGroupInfo,
    connection: str,
    reason: str,
    duplicates: dict[str, list[str]],
) -> None:
    """Remove a connection from the table and from `duplicates`, which has the connections of each duplicate
    client id.
    """
    info = table.channels.pop(connection)
    context.record(EntryType.CONSUMER_REMOVED, reason, **connection_details(connection, info))
    if (remaining := duplicates.get(info.client_id)) is not None:
        remaining.remove(connection)
        _record_end_of_duplicate(context, table, remaining)


def _update_after_removal(context: StepContext, table: ConsumerGroupInfo, broker: str) -> None:
    """Update the subscriptions of the broker's table after connections were removed from it."""
    if table.differing:
        _record_differing_subscriptions(context, table, broker)
    if not table.channels:
        table.forget_consumers()


def _notify_consumers(
    context: StepContext,
    table: ConsumerGroupInfo,
    broker: str,
    config: SubscriptionGroupConfig,
    reason: str | None,
) -> None:
    """Notify the broker's connections, unless the group's configuration turns that off or the group
    broadcasts.
    """
    if config.notify_consumer_ids_changed_enable and table.message_model is not MessageModel.BROADCASTING:
        context.notify_consumer_ids_changed(table, broker, reason)


def consumer_list(context: StepContext, request: GetConsumerListByGroup) -> None:
    """Answer with the broker's client ids, or with SYSTEM_ERROR if it has no consumer of the group."""
    table = context.consumers_at(request.broker)
    if table is not None:
        return context.reply(request, ConsumerListResponse, consumer_id_list=tuple(table.client_ids()))
    remark = f"no consumer for this group, {context.group_id}"
    context.reply(request, ConsumerListResponse, code=ResponseCode.SYSTEM_ERROR, remark=remark)
