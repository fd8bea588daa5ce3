"""What the harness's own clients share."""

from typing import TypedDict


class Common(TypedDict):
    """The fields every request has."""

    group_id: str
    correlation_id: str
    reply_partition: int
    api_version: int
    client_id: str
