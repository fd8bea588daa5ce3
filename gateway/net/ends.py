"""Why a connection of a client ends."""

from traceback import clear_frames


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


def forget_frames(error: BaseException) -> None:
    """Let go of the values that the frames of an error hold: one of them may be a message. A log line can
    still show the traceback.

    A task group's error and the frame that raised it hold each other. Only Python's collector would find
    them, and it counts objects, not bytes: 870 refused messages of 2 MiB were 1.2 GiB.
    """
    clear_frames(error.__traceback__)
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (*inner, error.__cause__, error.__context__):
        if other is not None:
            forget_frames(other)
