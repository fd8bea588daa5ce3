"""What one client, and all of them together, may take of the gateway."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, times in seconds; defaults are Kafka's where it has the like.

    A connection has one request at the coordinator at a time, and `in_flight_per_connection` that are read
    and not answered yet, so all of them together have a bound too: `connections` times that. What goes to
    the brokers at one time is bounded by `forwarded`.

    Where clients have to authenticate, a connection has one request under way until it has, and ends after
    `authentication_timeout_s`; a TLS handshake has that long too.
    """

    frame_bytes: int = 100 * MIB  # socket.request.max.bytes
    unauthenticated_frame_bytes: int = 512 * 1024  # sasl.server.max.receive.size
    authentication_timeout_s: float = 30.0  # Kafka has its connections.max.idle.ms alone
    group_frame_bytes: int = 2 * MIB  # what the requests topic takes
    connections: int = 10_000
    in_flight_per_connection: int = 16
    forwarded: int = 20_000
    write_timeout_s: float = 30.0  # a client that reads nothing for so long is cut off
    idle_timeout_s: float = 600.0  # connections.max.idle.ms
    connect_timeout_s: float = 10.0
    upstream_timeout_s: float = 30.0  # for the gateway's own requests
    groups_behind_max_s: float = 3.0  # ListGroups does not wait longer for the groups topic to be read
    member_held_s: float = 3.0  # by a coordinator that does not answer: docs/decisions/0009
