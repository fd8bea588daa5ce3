"""SASL/PLAIN (RFC 4616): authorization identity, name and password in one message, separated by NUL."""

from gateway.log_text import quoted
from gateway.security.credentials import Users
from gateway.security.exchange import MAX_NAME_CHARS, Accepted, ExchangeResult, Refused

PLAIN = "PLAIN"

_PARTS = 3
_MESSAGE = "Authentication failed: Invalid username or password"


class PlainExchange:
    """One authentication with PLAIN."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def evaluate(self, message: bytes) -> ExchangeResult:
        """See `Exchange`."""
        parts = message.split(b"\0")
        if len(parts) != _PARTS:
            return Refused("a PLAIN message that has not three parts")
        acts_as, name, password = parts
        try:
            user = name.decode()
        except UnicodeDecodeError:
            return Refused(f"authentication of user {quoted(name)} failed", _MESSAGE)
        is_right = self._users.has_password(user, password) and len(user) <= MAX_NAME_CHARS
        if not is_right or acts_as not in (b"", name):
            return Refused(f"authentication of user {quoted(name)} failed", _MESSAGE)
        return Accepted(user)
