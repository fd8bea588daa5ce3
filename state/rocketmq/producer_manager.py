"""The producers of a group: nobody is told of them, the broker asks them about transactions.

Source: ProducerManager.java.
"""

from state.rocketmq.config import PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS
from state.rocketmq.effects import EventType
from state.rocketmq.group import ClientChannelInfo
from state.rocketmq.messages import ConnectionClosed, RegisterProducer, UnregisterProducer
from state.rocketmq.responses import RegisterResponse, UnregisterResponse
from state.rocketmq.turn import Turn


def register_producer(turn: Turn, request: RegisterProducer) -> None:
    """The connection is here. The client id is that of its first heartbeat, whatever later ones say."""
    producers = turn.ensure_group().producers
    turn.arm_scan(PRODUCER_CHANNEL_EXPIRED_TIMEOUT_MS)
    if request.connection in producers:
        producers[request.connection].last_update_ms = turn.now_ms
    else:
        producers[request.connection] = ClientChannelInfo(
            request.client_id, request.language, request.client_version, turn.now_ms
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
    silent_ms = {c: turn.now_ms - info.last_update_ms for c, info in turn.group.producers.items()}
    for connection, silence_ms in silent_ms.items():
        if silence_ms > limit_ms:
            _remove(turn, connection, f"silent for {silence_ms} ms, over {limit_ms}")
            turn.close(connection)


def _remove(turn: Turn, connection: str, reason: str) -> None:
    gone = turn.group.producers.pop(connection, None) if turn.has_group else None
    if gone is not None:
        turn.record(EventType.PRODUCER_REMOVED, reason, client_id=gone.client_id, connection=connection)
