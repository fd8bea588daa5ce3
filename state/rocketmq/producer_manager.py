"""The producers of a group: nobody is told of them, the broker asks them about transactions.

Source: ProducerManager.java.
"""

from state.config import PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS
from state.rocketmq.context import Turn
from state.rocketmq.effects import EventType
from state.rocketmq.group import ClientChannelInfo
from state.rocketmq.requests import ConnectionClosed, RegisterProducer, UnregisterProducer
from state.rocketmq.responses import RegisterResponse, UnregisterResponse


def register_producer(turn: Turn, request: RegisterProducer) -> None:
    """The connection is here. The client id is that of its first heartbeat, whatever later ones say."""
    producers = turn.ensure_group().producers
    turn.arm_scan(PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS)
    if request.connection in producers:
        known = producers[request.connection]
        known.last_update_ms, known.reply_partition = turn.now_ms, request.reply_partition
    else:
        producers[request.connection] = ClientChannelInfo(
            request.client_id, request.language, request.client_version, turn.now_ms, request.reply_partition
        )
        turn.record(
            EventType.PRODUCER_CONNECTED,
            "first heartbeat on this connection",
            client_id=request.client_id,
            connection=request.connection,
        )
    turn.reply(request, RegisterResponse, is_sub_change=request.heartbeat_fingerprint == 0)


def unregister_producer(turn: Turn, request: UnregisterProducer) -> None:
    """The connection leaves, if it is here."""
    _remove(turn, request.connection, "unregistered")
    turn.reply(request, UnregisterResponse)


def channel_closed(turn: Turn, request: ConnectionClosed) -> None:
    """The connection is gone."""
    _remove(turn, request.connection, "its connection closed")


def scan_producers(turn: Turn) -> None:
    """Connections that were silent for too long go and are closed."""
    limit_ms = PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS
    for connection, info in list(turn.group.producers.items()):
        silent_ms = turn.now_ms - info.last_update_ms
        if silent_ms > limit_ms:
            reason = f"silent for {silent_ms} ms, over {limit_ms}"
            _remove(turn, connection, reason)
            turn.close(connection, info, reason)


def _remove(turn: Turn, connection: str, reason: str) -> None:
    gone = turn.group.producers.pop(connection, None) if turn.has_group else None
    if gone is not None:
        turn.record(EventType.PRODUCER_REMOVED, reason, client_id=gone.client_id, connection=connection)
