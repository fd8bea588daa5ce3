"""What the gateway remembers of a connection between its requests."""

from dataclasses import dataclass, field

from gateway.apis.fetch_sessions import FetchSessions, ShareSession
from gateway.apis.pattern_looks import PatternLooks
from gateway.telemetry.instance import ClientMetricsInstance


@dataclass(frozen=True, slots=True)
class Remembered:
    """It ends with the connection, so nothing of it has to be expired."""

    fetches: FetchSessions = field(default_factory=FetchSessions)
    shares: ShareSession = field(default_factory=ShareSession)
    looks: PatternLooks = field(default_factory=PatternLooks)
    pushes: ClientMetricsInstance = field(default_factory=ClientMetricsInstance)
