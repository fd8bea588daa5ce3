"""RocketMQ's broker side: assignment at a client's request, the table of handlers, and `step`, which applies
one event to one group.
"""

from collections.abc import Callable, Sequence

from assignors.rocketmq.api import (
    AllocateMessageQueueStrategy,
    IllegalArgumentException,
)
from assignors.rocketmq.strategies import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    allocate_for_pop,
)
from kafka_why.contract.messages import (
    ErrorCode,
    ErrorResponse,
    GroupType,
    ReleaseGroup,
    ReleaseGroupResponse,
)
from kafka_why.contract.rocketmq.history import ConnectionSnapshot, EntryType, GroupSnapshot
from kafka_why.contract.rocketmq.requests import (
    RETRY_GROUP_TOPIC_PREFIX,
    UNANSWERED,
    AnyRequest,
    ConnectionClosed,
    GatewayStarted,
    GetConsumerListByGroup,
    LockBatchMq,
    LockBatchMqResponse,
    MessageModel,
    MessageQueue,
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignment,
    QueryAssignmentResponse,
    RegisterConsumer,
    RegisterProducer,
    RegisterResponse,
    RequestMode,
    ResponseCode,
    SetMessageRequestMode,
    SetMessageRequestModeResponse,
    UnlockBatchMq,
    UnlockBatchMqResponse,
    UnregisterConsumer,
    UnregisterProducer,
    UnregisterResponse,
    sort_client_ids,
    sort_queues,
)
from state.config import PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS, BrokerConfig, CoordinatorConfig
from state.protocol import Failed, Handlers, Outage, Quarantine, Received, StoredKind, cause_of
from state.rocketmq import consumers
from state.rocketmq.context import Effects, Reply, StepContext, connection_details
from state.rocketmq.group import (
    ClientChannelInfo,
    ConsumerGroupInfo,
    LockEntry,
    RocketMqGroup,
    ScanDue,
    channel_info,
    next_scan,
)

# The producers of a group. Changes are not notified; the broker uses the connections to check transactions.
#
# Source: ProducerManager.java.


def register_producer(context: StepContext, request: RegisterProducer) -> None:
    """Handle the heartbeat of a producer: register or renew its connection. The client id stays as in the
    connection's first heartbeat.
    """
    producers = context.ensure_group().producers
    context.arm_scan(PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS)
    client = producers.get(request.connection)
    if client is not None:
        client.last_update_ms, client.reply_partition = context.now_ms, request.reply_partition
    else:
        info = producers[request.connection] = channel_info(request, context.now_ms)
        reason = "first heartbeat on this connection"
        context.record(EntryType.PRODUCER_CONNECTED, reason, **connection_details(request.connection, info))
    # As in RocketMQ, this is true for every heartbeat of version 1, which has the fingerprint 0.
    is_sub_change = request.heartbeat_fingerprint == 0
    context.reply(request, RegisterResponse, is_sub_change=is_sub_change, is_new=client is None)


def unregister_producer(context: StepContext, request: UnregisterProducer) -> None:
    """Remove the connection if it is registered."""
    _remove_producer(context, request.connection, "unregistered")
    context.reply(request, UnregisterResponse)


def close_producers(
    context: StepContext, is_closed: Callable[[str, ClientChannelInfo], bool], reason: str
) -> None:
    """Remove the producers' connections for which `is_closed` is true."""
    for connection in [c for c, info in context.group.producers.items() if is_closed(c, info)]:
        _remove_producer(context, connection, reason)


def scan_producers(context: StepContext) -> None:
    """Remove and close connections that were silent for too long."""
    limit_ms = PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS
    for connection, info in list(context.group.producers.items()):
        silent_ms = context.now_ms - info.last_update_ms
        if silent_ms > limit_ms:
            reason = f"silent for {silent_ms} ms, over {limit_ms}"
            _remove_producer(context, connection, reason)
            context.close(connection, info, reason)


def _remove_producer(context: StepContext, connection: str, reason: str) -> None:
    """Remove the producer's connection if it is registered, and record this."""
    info = context.group.producers.pop(connection, None) if context.has_group else None
    if info is not None:
        context.record(EntryType.PRODUCER_REMOVED, reason, **connection_details(connection, info))


# Locks on queues: only one client reads an ordered queue. Source: RebalanceLockManager.java.
#
# The holder of a lock is a client id, not a connection. Two clients with the same id both hold the lock.

MAX_LOCKS = 20_000
"""The maximum number of locks of a group, because clients choose the names. RocketMQ has no limit."""


def is_expired(lock: LockEntry, now_ms: int, config: BrokerConfig) -> bool:
    """Return True if the holder did not renew the lock for longer than the lock's lifetime."""
    return now_ms - lock.last_update_ms > config.lock_max_live_ms


def lock_batch(context: StepContext, request: LockBatchMq) -> None:
    """Lock the queues that are free, expired, or locked by this client, but at most `MAX_LOCKS` queues of the
    group. Answer with the requested queues that the client now holds.
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
    context.group.locks = {
        queue: lock
        for queue, lock in context.group.locks.items()
        if not is_expired(lock, context.now_ms, context.config)
    }


# Assignment by the broker, at a client's request. Source: QueryAssignmentProcessor.java.


# A light message queue (LMQ) is a topic with this prefix and one queue.
LMQ_PREFIX = "%LMQ%"
LMQ_QUEUE_ID = 0

_STRATEGIES: dict[str | None, AllocateMessageQueueStrategy] = {
    strategy.name: strategy
    for strategy in (AllocateMessageQueueAveragely(), AllocateMessageQueueAveragelyByCircle())
}


def query_assignment(context: StepContext, request: QueryAssignment) -> None:
    """Answer with the client's queues, or with None, which tells the client to keep its present queues. A
    topic without a stored mode is pulled.
    """
    modes = context.group.request_modes if context.has_group else {}
    mode = modes.get(request.topic, RequestMode(MessageRequestMode.PULL, 0))
    queues = _do_load_balance(context, request, mode)
    assignments = (
        None
        if queues is None
        else tuple(MessageQueueAssignment(queue, mode.mode) for queue in dict.fromkeys(queues))
    )
    context.reply(request, QueryAssignmentResponse, message_queue_assignments=assignments)


def _do_load_balance(
    context: StepContext, request: QueryAssignment, mode: RequestMode
) -> Sequence[MessageQueue] | None:
    """Return the client's queues by the requested strategy, or None if they cannot be computed. A
    broadcasting client reads all queues.
    """
    if request.message_model is MessageModel.BROADCASTING:
        return request.topic_queues
    queues = request.topic_queues
    if request.topic.startswith(LMQ_PREFIX):
        # The broker is `name/id`. An unknown broker gets RocketMQ's default name.
        queues = (MessageQueue(request.topic, request.broker.rpartition("/")[0] or "broker", LMQ_QUEUE_ID),)
    if queues is None:
        return None
    strategy = _STRATEGIES.get(request.strategy_name)
    table = context.consumers_at(request.broker)
    if table is None or strategy is None:
        return None
    mq_all, cid_all = sort_queues(dict.fromkeys(queues)), sort_client_ids(table.client_ids())
    client_id = request.client_id
    try:
        if mode.mode is MessageRequestMode.POP:
            return allocate_for_pop(strategy, client_id, mq_all, cid_all, mode.pop_share_queue_num)
        return strategy.allocate(client_id, mq_all, cid_all)
    except IllegalArgumentException:
        return None


def set_message_request_mode(context: StepContext, request: SetMessageRequestMode) -> None:
    """Store the mode (pull or pop) in which the group's clients request messages of a topic. Retry topics are
    refused.
    """
    code, remark = _check_mode_request(request)
    if code is ResponseCode.SUCCESS:
        mode = RequestMode(request.mode, request.pop_share_queue_num)
        context.ensure_group().request_modes[request.topic] = mode
        reason = f"{request.mode}, each client's queues are shared with {request.pop_share_queue_num} others"
        context.record(EntryType.MESSAGE_REQUEST_MODE_SET, reason, topics=[request.topic])
    context.reply(request, SetMessageRequestModeResponse, code=code, remark=remark)


def _check_mode_request(request: SetMessageRequestMode) -> tuple[ResponseCode, str | None]:
    """Return the code and the remark of the answer: SUCCESS and None if the request is not refused."""
    if request.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"
    if not request.topic_exists:
        return ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic}] not exist"
    if request.group_config is None:
        return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
    return ResponseCode.SUCCESS, None


def _take_over(context: StepContext, outage: Outage) -> None:
    """Renew all connections and locks, because no renewal could be handled in the outage.

    A RocketMQ broker that restarts has no clients until they reconnect. This coordinator keeps them.
    """
    group = context.group
    if group.quarantined is not None or not _expiring_entries(group):
        return
    _renew_all(context)
    context.record(
        EntryType.TAKEN_OVER,
        f"no coordinator ran for {outage.length_ms} ms: all connections and locks are renewed now",
    )


def _renew_all(context: StepContext) -> None:
    """Renew all connections and locks, as if each client had just sent a heartbeat."""
    for entry in _expiring_entries(context.group):
        entry.last_update_ms = context.now_ms


def _expiring_entries(group: RocketMqGroup) -> tuple[ClientChannelInfo | LockEntry, ...]:
    """Return the entries that expire when their client is silent."""
    return (*(info for _, info in group.channels()), *group.producers.values(), *group.locks.values())


def snapshot(group: RocketMqGroup) -> GroupSnapshot:
    """Return a copy of the group for readers.

    Its message model, consume type and start position are those of the first broker with consumers.
    """
    tables = [table for table in group.consumers.values() if table.channels]
    first_table = tables[0] if tables else ConsumerGroupInfo()
    duplicates: dict[str, list[str]] = {}
    for table in tables:
        for client_id, connections in table.duplicate_client_ids().items():
            duplicates.setdefault(client_id, []).extend(connections)
    return GroupSnapshot(
        group_id=group.group_id,
        incarnation=group.incarnation,
        seq=group.seq,
        at_ms=group.clock_ms,
        message_model=first_table.message_model,
        consume_type=first_table.consume_type,
        consume_from_where=first_table.consume_from_where,
        consumers=[_connection_snapshot(*channel) for channel in group.channels()],
        producers=[_connection_snapshot(*channel) for channel in group.producers.items()],
        subscriptions={t: sub.sub_string for table in tables for t, sub in table.subscriptions.items()},
        request_modes=dict(group.request_modes),
        duplicate_client_ids=duplicates,
        quarantined=group.quarantined,
        different_subscriptions={
            connection: info.subscriptions
            for table in tables
            if table.differing
            for connection, info in table.channels.items()
            if info.subscriptions is not None
        },
    )


def _connection_snapshot(connection: str, info: ClientChannelInfo) -> ConnectionSnapshot:
    return ConnectionSnapshot(
        connection,
        info.client_id,
        info.language,
        info.version,
        info.broker,
        info.client_address,
        info.gateway,
        info.gateway_start,
    )


def _close_channel(context: StepContext, request: ConnectionClosed) -> None:
    """Remove connections that a gateway reports as closed."""
    closed = {request.connection, *request.others}
    _remove_connections(context, lambda connection, _: connection in closed, request.reason)


def _close_gateway(context: StepContext, request: GatewayStarted) -> None:
    """Remove the connections of the gateway's earlier processes, because a process ends with its sockets.

    If `gateway_start` is empty, the gateway is reported as gone, and all its connections are removed. If it
    is only slow, it receives a CloseConnection for each of them and closes the sockets, and the clients
    register again.
    """

    def is_closed(_: str, info: ClientChannelInfo) -> bool:
        return info.gateway == request.gateway and info.gateway_start != request.gateway_start

    reason = f"gateway {request.gateway} {'was started again' if request.gateway_start else 'is gone'}"
    if context.has_group and not request.gateway_start:
        for connection, info in (*context.group.channels(), *context.group.producers.items()):
            if is_closed(connection, info):
                context.close(connection, info, reason)
    _remove_connections(context, is_closed, reason)


def _remove_connections(
    context: StepContext, is_closed: Callable[[str, ClientChannelInfo], bool], reason: str | None
) -> None:
    """Remove the connections of producers and consumers for which `is_closed` is true. `reason` is None if
    the gateway reported none.
    """
    if context.has_group:
        close_producers(context, is_closed, reason or "its connection closed")
        consumers.close_consumers(context, is_closed, reason or "its connection closed")


def _scan(context: StepContext, deadline: ScanDue) -> None:
    """Remove silent connections and expired locks."""
    if context.has_group:
        context.group.last_fired_ms = max(context.group.last_fired_ms, deadline.deadline_ms)
        scan_producers(context)
        consumers.scan_consumers(context)
        scan_locks(context)


class RocketMqKind(StoredKind[RocketMqGroup, ScanDue]):
    """The groups of RocketMQ. The only deadline is the next scan."""

    group_type = GroupType.ROCKETMQ
    group_class = RocketMqGroup
    view = staticmethod(snapshot)

    def due_deadlines(self, group: RocketMqGroup, until_ms: int, config: CoordinatorConfig) -> list[ScanDue]:
        scan = next_scan(group, config.rocketmq)
        return [] if scan is None or scan.deadline_ms > until_ms else [scan]

    def refusal_effects(self, group: RocketMqGroup, answers: Sequence[tuple[int, ErrorResponse]]) -> Effects:
        return Effects(group, [Reply(*answer) for answer in answers])


ROCKETMQ = RocketMqKind()


HANDLERS: Handlers = {
    RegisterConsumer: consumers.heartbeat,
    RegisterProducer: register_producer,
    UnregisterConsumer: consumers.unregister_consumer,
    UnregisterProducer: unregister_producer,
    ConnectionClosed: _close_channel,
    GatewayStarted: _close_gateway,
    GetConsumerListByGroup: consumers.consumer_list,
    LockBatchMq: lock_batch,
    UnlockBatchMq: unlock_batch,
    QueryAssignment: query_assignment,
    SetMessageRequestMode: set_message_request_mode,
}


# The entry of RocketMQ's side: `step` applies one event to one group.


RocketMqRequest = AnyRequest | ReleaseGroup
RocketMqEvent = (
    Received[RocketMqRequest] | Failed[RocketMqRequest] | ScanDue | Outage | Quarantine[ScanDue | Outage]
)


def step(
    group: RocketMqGroup | None, group_id: str, event: RocketMqEvent, now_ms: int, config: BrokerConfig
) -> Effects:
    """Apply one event to a group at `now_ms`, and return the effects.

    `group` is changed in place; None means that the group does not exist. The effects have the group after
    the step. `now_ms` is never before the group's clock. No client request raises an exception: errors are
    answers. The caller fires due scans (`state.rocketmq.group.next_scan`) in time order, before requests of
    the same time (`state.timeline`).
    """
    context = StepContext(group, group_id, cause_of(event), now_ms, config)
    if group is not None:
        assert now_ms >= group.clock_ms, "a group's clock never runs backwards"
        group.clock_ms = now_ms
    match event:
        case Received():
            _handle_request(context, event)
        case ScanDue():
            _scan(context, event)
        case Outage():
            _take_over(context, event)
        case Failed():
            _refuse(context, event.request, "the broker failed at this request")
        case Quarantine():
            context.group.quarantined = event.error
            context.record(EntryType.QUARANTINED, f"{event.deadline} raised {event.error}")
    return context.effects()


def _handle_request(context: StepContext, event: Received[RocketMqRequest]) -> None:
    """Pass the request to its handler, unless its group name is empty or its group is quarantined."""
    request = event.request
    if context.has_group and event.late_by_ms:
        context.record(
            EntryType.APPLIED_LATE,
            "a request follows a completed scan in the log; it is applied at the group's clock",
            late_by_ms=event.late_by_ms,
        )
    if isinstance(request, ReleaseGroup):
        _release(context, request)
    elif not request.group_id:
        _refuse(context, request, "the group's name is empty")
    elif context.has_group and context.group.quarantined is not None:
        _refuse(context, request, f"group {context.group_id} is quarantined: {context.group.quarantined}")
    else:
        HANDLERS[type(request)](context, request)


def _refuse(context: StepContext, request: RocketMqRequest, remark: str) -> None:
    """Answer any request with SYSTEM_ERROR, or a ReleaseGroup with Kafka's UNKNOWN_SERVER_ERROR."""
    if isinstance(request, ReleaseGroup):
        context.reply(request, ReleaseGroupResponse, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    elif not isinstance(request, UNANSWERED):
        # RocketMQ's clients keep their queues after this error.
        context.reply(request, request.response_type, code=ResponseCode.SYSTEM_ERROR, remark=remark)


def _release(context: StepContext, request: ReleaseGroup) -> None:
    """End the group's quarantine, and renew its connections and locks, because the quarantine refused
    renewals.
    """
    if context.group.quarantined is not None:
        context.group.quarantined = None
        _renew_all(context)
        context.deadline_at(context.now_ms)  # so that the timeline searches for the next scan
        context.record(EntryType.RELEASED, "released by an operator; its scans run again")
    context.reply(request, ReleaseGroupResponse, error_code=ErrorCode.NONE)
