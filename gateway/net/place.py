"""The order of responses on one connection."""

import time
from asyncio import Future
from typing import Any

from gateway.quotas.token_bucket import TokenBucket


class Place:
    """One request's place in the order of responses.

    `frame` is the response as a frame, in one or several parts, without a part for a request that expects no
    response. It is None until the response is ready.
    `waits_for` is cancelled if the connection ends before that. With `has_room` the request has room of
    `gateway.fairness.room`. `quota` is the quota that it is over, None if it is over none. `response_bytes`
    of the response are counted as unread (`gateway.net.unread`). `sent_bytes` of the request go to the
    coordinator: none if the gateway refuses it.
    """

    __slots__ = (
        "api_key",
        "began_s",
        "frame",
        "has_room",
        "quota",
        "request_bytes",
        "response_bytes",
        "sent_bytes",
        "waits_for",
    )

    def __init__(self, request_bytes: int) -> None:
        self.request_bytes = self.sent_bytes = request_bytes
        self.api_key = -1
        self.began_s = time.monotonic()
        self.quota: TokenBucket | None = None
        self.frame: tuple[bytes, ...] | None = None
        self.waits_for: Future[Any] | None = None
        self.has_room = False
        self.response_bytes = 0
