"""The producers of a group. Changes are not notified; the broker uses the connections to check transactions.

Source: ProducerManager.java.
"""

from kafka_why.contract.rocketmq.history import EntryType
from kafka_why.contract.rocketmq.requests import ConnectionClosed, RegisterProducer, UnregisterProducer
from kafka_why.contract.rocketmq.responses import RegisterResponse, UnregisterResponse
from state.config import PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS
from state.rocketmq.context import StepContext
from state.rocketmq.group import ClientChannelInfo


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


def channel_closed(context: StepContext, request: ConnectionClosed) -> None:
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
