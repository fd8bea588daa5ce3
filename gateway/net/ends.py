"""Why a connection of a client ends."""


class ClientGone(ConnectionError):
    """The client closed the connection. Not worth a report, like its subclasses. `reason` is for metrics."""

    reason = "client"


class Idle(ClientGone):
    """The client was idle for too long."""

    reason = "idle"


class Drained(ClientGone):
    """The gateway is about to end, and has answered what was under way."""

    reason = "drained"


class SlowReader(ConnectionError):
    """The client does not read its responses."""


class SlowSender(ConnectionError):
    """The client does not send the end of its request."""
