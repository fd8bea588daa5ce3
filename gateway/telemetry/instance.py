"""When a client may ask for its subscription, and when it may push: as ClientMetricsManager and
ClientMetricsInstance of org.apache.kafka.server in Kafka 4.4.

Kafka keeps an instance until the connection that made it ends. Here it is a part of that connection, so
nothing else has to bound or expire it. Kafka keeps times by the id that the client sends. Here they are the
connection's, because a client could send another id each time.
"""

from math import inf
from uuid import UUID

from gateway.wire.errors import GatewayError
from kafka_why.contract.errors import ErrorCode

_RESERVED = UUID(int=1)  # Kafka's Uuid.RESERVED; a message with the id 0 has None
# A client that got one of these asks for its subscription at once.
_ASK_AGAIN = (GatewayError.UNKNOWN_SUBSCRIPTION_ID, GatewayError.UNSUPPORTED_COMPRESSION_TYPE)


class ClientMetricsInstance:
    """What the gateway remembers of the pushes of one connection. Times are of a monotonic clock."""

    __slots__ = ("_is_terminating", "_last_error", "_last_get_s", "_last_push_s")

    def __init__(self) -> None:
        self._last_get_s = -inf
        self._last_push_s = -inf
        self._last_error = 0
        self._is_terminating = False

    def take_get(self, now_s: float, interval_s: float) -> int:
        """Take a GetTelemetrySubscriptions. Returns its error, 0 for none."""
        if now_s - max(self._last_get_s, self._last_push_s) >= interval_s:
            self._last_get_s = now_s
        elif self._last_error not in _ASK_AGAIN:
            return GatewayError.THROTTLING_QUOTA_EXCEEDED
        self._last_error = 0
        return ErrorCode.NONE

    def take_push(self, now_s: float, interval_s: float, *, is_terminating: bool) -> int:
        """Take a PushTelemetry, before its content is looked at. Returns its error, 0 for none.

        The first push after a subscription may come at any time, and so may the last one, with which the
        client terminates. Nothing may follow that.
        """
        if self._is_terminating:
            return ErrorCode.INVALID_REQUEST
        self._is_terminating = is_terminating
        if self._last_get_s > self._last_push_s or now_s - self._last_push_s >= interval_s:
            self._last_push_s = now_s
        elif not is_terminating:
            return GatewayError.THROTTLING_QUOTA_EXCEEDED
        return ErrorCode.NONE

    def answered(self, error: int) -> int:
        """Note the error of the answer to a push, 0 for none. Returns it."""
        self._last_error = error
        return error


def is_valid_id(client_instance_id: UUID | None) -> bool:
    """Whether a client may push with this id."""
    return client_instance_id is not None and client_instance_id != _RESERVED
