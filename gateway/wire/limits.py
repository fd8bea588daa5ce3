"""Limits on what one client, and all clients together, may use of the gateway."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds. The defaults are Kafka's if Kafka has the limit.

    A connection has at most `in_flight_per_connection` requests that are read and not yet answered. While
    these have `in_flight_bytes_per_connection` bytes or more, the gateway reads nothing more of the
    connection. So one frame may exceed this bound. `forwarded` bounds the requests at the brokers at one
    time, over all connections, `at_coordinator` those at the coordinator that it does not park. Connections
    that find no room wait, and the gateway reads nothing more of them.

    If clients have to authenticate, a connection has one request under way until it has authenticated, and
    the gateway closes it after `authentication_timeout_s` without. A TLS handshake has the same time.
    """

    frame_bytes: int = 100 * MIB  # socket.request.max.bytes
    unauthenticated_frame_bytes: int = 512 * 1024  # sasl.server.max.receive.size
    authentication_timeout_s: float = 30.0  # Kafka has only connections.max.idle.ms for this
    failed_authentication_delay_s: float = 0.1  # connection.failed.authentication.delay.ms
    group_frame_bytes: int = 2 * MIB  # the limit of the requests topic
    connections: int = 10_000
    in_flight_per_connection: int = 512
    in_flight_bytes_per_connection: int = 16 * MIB
    at_coordinator: int = 4_000  # a coordinator that answers 2,000 a second answers each within 2 s
    bytes_at_coordinator: int = 256 * MIB
    forwarded: int = 20_000
    write_timeout_s: float = 30.0  # a client that reads nothing for this long is disconnected
    idle_timeout_s: float = 600.0  # connections.max.idle.ms
    connect_timeout_s: float = 10.0
    upstream_timeout_s: float = 30.0  # for the gateway's own requests
    groups_behind_max_s: float = 3.0  # how long ListGroups waits for the reader of the groups topic
    member_held_s: float = 3.0  # by a coordinator that does not answer: docs/decisions/0009
