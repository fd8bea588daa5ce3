"""Encoding and decoding of large messages off the event loop, in one thread for all connections, in which
clients take turns. Python code does not run in two threads at once. A thread keeps the interpreter for a
switch interval, which would delay each turn of the loop. `pause` releases the interpreter earlier.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any, ParamSpec, TypeVar

from gateway.fairness import FairThread
from gateway.wire import codec
from gateway.wire.codec import Fields
from gateway.wire.framing import RequestHeader

AT_ONCE_BYTES = 16 * 1024
"""Messages up to this size are decoded on the event loop, in about 5 ms."""
LONG = 1_000
"""Messages with more entries are encoded in the thread."""

# The shortest sleep that lets another thread run.
_PAUSE_S = 20e-6
run = FairThread("gateway-codec").run
"""Runs a function in the thread (`FairThread.run`)."""

P = ParamSpec("P")
R = TypeVar("R")


def pause() -> None:
    """Release the interpreter for the event loop."""
    time.sleep(_PAUSE_S)


async def decode_passed(header: RequestHeader, message: bytes) -> Any:
    """Decode a request as `codec.decode_passed` does."""
    if len(message) <= AT_ONCE_BYTES:
        return codec.decode_passed(header, message)
    return await run(codec.decode_passed, header, message, pause)


async def with_body(header: RequestHeader, message: bytes, request: Any) -> bytes:
    """Replace the body of a request as `codec.with_body` does."""
    return await run_sized(message, codec.with_body, header, message, request)


async def run_sized(message: bytes, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return the result of `work`, which is called in the thread if the message is large."""
    if len(message) <= AT_ONCE_BYTES:
        return work(*args, **kwargs)
    return await run(work, *args, **kwargs)


async def encode_fields(header: RequestHeader, fields: Fields) -> bytes:
    """Encode a response as `codec.encode_response` does."""
    return await encode_response(header, fields) if is_long(fields) else codec.encode_response(header, fields)


async def decode_frequent(api_key: int, api_version: int, response: bytes) -> Any:
    """Decode a response to the gateway itself, as `codec.decode_frequent` does.

    It does not use up the turn of a tenant, because several tenants may wait for it.
    """
    if len(response) <= AT_ONCE_BYTES:
        return codec.decode_frequent(api_key, api_version, response)
    return await Context().run(run, codec.decode_frequent, api_key, api_version, response, pause)


async def decode_response(api_key: int, api_version: int, response: bytes) -> Any:
    """Decode a response as `codec.decode_response` does."""
    return await run_sized(response, codec.decode_response, api_key, api_version, response)


async def encode_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str, body: Fields
) -> bytes:
    """Encode a request of the gateway as `codec.encode_request` does."""
    arguments = api_key, api_version, correlation_id, client_id, body
    if is_long(body):
        return await run(codec.encode_request, *arguments)
    return codec.encode_request(*arguments)


def encode_response(header: RequestHeader, response: Any) -> asyncio.Future[bytes]:
    """Encode a response in the thread, as `codec.encode_response` does. The future belongs to the running
    loop.
    """
    return run(codec.encode_response, header, response)


def is_long(fields: Fields) -> bool:
    """Return True if the lists of a message have more than LONG entries together."""
    return _left(fields, LONG) < 0


def _left(fields: Fields, left: int) -> int:
    """Return `left` minus the number of entries. The result is negative if there are more."""
    for value in fields.values():
        if isinstance(value, list):
            left -= len(value)
            if left >= 0 and value and isinstance(value[0], Mapping):
                for entry in value:
                    left = _left(entry, left)
                    if left < 0:
                        break
            if left < 0:
                break
    return left
