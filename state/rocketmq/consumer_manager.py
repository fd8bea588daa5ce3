"""The consumers of a group: a table keyed by connection, and who is told when it changes.

Source: ConsumerManager.java, ConsumerGroupInfo.java.
"""

from state.rocketmq.context import Turn
from state.rocketmq.effects import ConsumerGroupEvent, EventType
from state.rocketmq.group import ClientChannelInfo
from state.rocketmq.requests import (
    ConnectionClosed,
    GetConsumerListByGroup,
    MessageModel,
    RegisterConsumer,
    SubscriptionGroupConfig,
    UnregisterConsumer,
)
from state.rocketmq.responses import ConsumerListResponse, ResponseCode, UnregisterResponse


def register_consumer(turn: Turn, request: RegisterConsumer, config: SubscriptionGroupConfig) -> bool:
    """A full heartbeat: the connection is here, the group's topics are these. Answers whether that is news.

    A newer version of a subscription is kept without a word; topics that the request does not name are
    removed, so members that name different topics undo each other's with every heartbeat, and all are told.
    """
    is_new = _update_channel(turn, request)
    if is_new:
        topics = tuple(dict.fromkeys(sub.topic for sub in request.subscription_data_set))
        turn.call(
            ConsumerGroupEvent.CLIENT_REGISTER,
            connection=request.connection,
            client_id=request.client_id,
            topics=topics,
        )
    has_other_topics = request.update_subscription and _update_subscription(turn, request)
    if is_new or has_other_topics:
        news = "connected" if is_new else "changed the group's topics"
        _change(turn, config, f"client {request.client_id} {news}")
    turn.call(ConsumerGroupEvent.REGISTER)
    return is_new or has_other_topics


def register_consumer_without_sub(
    turn: Turn, request: RegisterConsumer, config: SubscriptionGroupConfig
) -> bool:
    """Heartbeat V2's short form: the connection is here, the topics are as they were."""
    is_new = _update_channel(turn, request)
    if is_new:
        _change(turn, config, f"client {request.client_id} connected")
    return is_new


def _update_channel(turn: Turn, request: RegisterConsumer) -> bool:
    """Note who is on the connection, now; the group's model, type and start are this request's."""
    group = turn.ensure_group()
    group.message_model = request.message_model
    group.consume_type = request.consume_type
    group.consume_from_where = request.consume_from_where
    known = group.channels.get(request.connection)
    turn.arm_scan(turn.config.channel_expired_timeout_ms)
    if known is not None and known.client_id == request.client_id:
        known.last_update_ms, known.reply_partition = turn.now_ms, request.reply_partition
        return False
    group.channels[request.connection] = ClientChannelInfo(
        request.client_id, request.language, request.client_version, turn.now_ms, request.reply_partition
    )
    about = {"client_id": request.client_id, "connection": request.connection}
    if known is None:
        turn.record(EventType.CONSUMER_CONNECTED, "first heartbeat on this connection", **about)
    else:
        reason = f"the connection was that of client {known.client_id}; nobody is notified of this"
        turn.record(EventType.CLIENT_ID_REPLACED, reason, **about)
        _note_if_duplicate_is_over(turn, known.client_id)
    _note_if_duplicate(turn, request)
    return known is None


def _note_if_duplicate(turn: Turn, request: RegisterConsumer) -> None:
    connections = turn.group.connections_of(request.client_id)
    if len(connections) == 1:
        return
    others = [
        f"{connection} (last heard of {turn.now_ms - turn.group.channels[connection].last_update_ms} ms ago)"
        for connection in connections
        if connection != request.connection
    ]
    harm = (
        "harmless while the group broadcasts"
        if request.message_model is MessageModel.BROADCASTING
        else "each of its clients takes the share of its first place, and other shares may be read by nobody"
    )
    turn.record(
        EventType.DUPLICATE_CLIENT_ID,
        f"client id {request.client_id} came on connection {request.connection} and is on "
        f"{', '.join(others)} already: it stands {len(connections)} times among the group's ids: {harm}",
        client_id=request.client_id,
        connection=request.connection,
        connections=connections,
        message_model=request.message_model,
    )


def _note_if_duplicate_is_over(turn: Turn, client_id: str) -> None:
    """One connection of this id just went."""
    connections = turn.group.connections_of(client_id)
    if len(connections) == 1:
        turn.record(
            EventType.DUPLICATE_CLIENT_ID_OVER,
            f"client id {client_id} is on connection {connections[0]} alone",
            client_id=client_id,
            connection=connections[0],
        )


def _update_subscription(turn: Turn, request: RegisterConsumer) -> bool:
    """Make the group's topics those of the request; answers whether one was added or removed."""
    table = turn.group.subscriptions
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
        turn.record(
            EventType.SUBSCRIPTION_CHANGED,
            f"heartbeat of client {request.client_id}: {', '.join(changes)}",
            client_id=request.client_id,
            connection=request.connection,
            topics=list(table),
        )
    return bool(added or removed)


def unregister_consumer(turn: Turn, request: UnregisterConsumer) -> None:
    """The connection leaves. All others are told, even where it was not there."""
    if turn.has_consumers:
        _remove(turn, request.connection, request.client_id, "unregistered")
        config = request.group_config or SubscriptionGroupConfig()
        _change(turn, config, f"client {request.client_id} unregistered")
        _forget_if_empty(turn)
    turn.reply(request, UnregisterResponse)


def channel_closed(turn: Turn, request: ConnectionClosed) -> None:
    """The connection is gone. All others are told, whatever the group's configuration says.

    RocketMQ's fast way to find a connection's groups tells broadcasting groups too.
    """
    if not turn.has_consumers or request.connection not in turn.group.channels:
        return
    client_id = turn.group.channels[request.connection].client_id
    _remove(turn, request.connection, client_id, "its connection closed")
    is_broadcasting = turn.group.message_model is MessageModel.BROADCASTING
    if turn.config.enable_fast_channel_event_process or not is_broadcasting:
        turn.change(f"client {client_id}: its connection closed")
    _forget_if_empty(turn)


def scan_consumers(turn: Turn) -> None:
    """Connections that were silent for too long go and are closed. Nobody is told, as in RocketMQ: the
    others learn of it when they rebalance by themselves.
    """
    group, limit_ms = turn.group, turn.config.channel_expired_timeout_ms
    expired = [c for c, info in group.channels.items() if turn.now_ms - info.last_update_ms > limit_ms]
    for connection in expired:
        client_id = group.channels[connection].client_id
        silent_ms = turn.now_ms - group.channels[connection].last_update_ms
        topics = tuple(group.subscriptions)
        turn.call(
            ConsumerGroupEvent.CLIENT_UNREGISTER, connection=connection, client_id=client_id, topics=topics
        )
        reason = f"silent for {silent_ms} ms, over {limit_ms}"
        turn.close(connection, group.channels[connection], reason)
        _take_out(turn, connection, f"{reason}; the others are not notified")
    _forget_if_empty(turn)


def consumer_list(turn: Turn, request: GetConsumerListByGroup) -> None:
    """Answer with the client ids, or with SYSTEM_ERROR where there is none."""
    if turn.has_consumers:
        return turn.reply(request, ConsumerListResponse, consumer_id_list=tuple(turn.group.client_ids()))
    remark = f"no consumer for this group, {turn.group_id}"
    turn.reply(request, ConsumerListResponse, code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _remove(turn: Turn, connection: str, named_client_id: str, reason: str) -> None:
    """Take a connection out, if it is in, and tell the listener; `named_client_id` is what it is told."""
    group = turn.group
    if connection in group.channels:
        turn.call(
            ConsumerGroupEvent.CLIENT_UNREGISTER,
            connection=connection,
            client_id=named_client_id,
            topics=tuple(group.subscriptions),
        )
        _take_out(turn, connection, reason)
    if not group.channels:
        turn.call(ConsumerGroupEvent.UNREGISTER)


def _take_out(turn: Turn, connection: str, reason: str) -> None:
    gone = turn.group.channels.pop(connection)
    about = {"client_id": gone.client_id, "connection": connection}
    turn.record(EventType.CONSUMER_REMOVED, reason, **about)
    _note_if_duplicate_is_over(turn, gone.client_id)


def _change(turn: Turn, config: SubscriptionGroupConfig, reason: str) -> None:
    is_broadcasting = turn.group.message_model is MessageModel.BROADCASTING
    if config.notify_consumer_ids_changed_enable and not is_broadcasting:
        turn.change(reason)


def _forget_if_empty(turn: Turn) -> None:
    if not turn.group.channels:
        turn.group.forget_consumers()
