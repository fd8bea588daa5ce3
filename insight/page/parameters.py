"""What stands in an address of the page, and the refusal of what cannot be read."""

from starlette.requests import Request

MAX_TEXT_CHARS = 32_767
"""Of a parameter in an address: a group id is not longer."""


class Refused(Exception):
    """A request that cannot be answered. The message is for the reader."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def parameter(request: Request, name: str) -> str:
    """Return what the address has under a name. Raises Refused if that is nothing, or too long."""
    found = request.query_params.get(name)
    if not found or len(found) > MAX_TEXT_CHARS:
        raise Refused(400, f"the address has no {name}, or one that is too long")
    return found


def time_parameter(request: Request, name: str) -> int:
    """Return a time in milliseconds since the epoch. Raises Refused."""
    text = parameter(request, name)
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise Refused(400, f"`{name}` is a time in milliseconds")
    return int(text)
