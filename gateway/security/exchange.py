"""What all SASL mechanisms share: an exchange takes the client's messages one by one, until it is decided."""

from typing import Protocol

from msgspec import Struct

# A principal is in every entry of the history that its requests cause.
MAX_NAME_CHARS = 1_024


class Accepted(Struct, frozen=True):
    """The client is this user. `expires_at_ms` is when its credential expires, None if it does not."""

    name: str
    reply: bytes = b""
    expires_at_ms: int | None = None


class Continues(Struct, frozen=True):
    """The client has to send another message."""

    reply: bytes


class Refused(Struct, frozen=True):
    """The authentication failed. `why` is for the log. `message` is for the client, and says nothing about
    which part of its credentials is wrong. If it is None, the client gets a sentence that is the same for
    every mechanism.
    """

    why: str
    message: str | None = None


ExchangeResult = Accepted | Continues | Refused


class Exchange(Protocol):
    """One authentication of one client."""

    def evaluate(self, message: bytes) -> ExchangeResult:
        """Take the client's next message. It raises nothing, whatever the bytes are."""
