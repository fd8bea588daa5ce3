"""Encoding and decoding of large messages off the event loop, in one thread. Clients take turns in it.

Only one thread at a time runs Python code. A thread keeps the interpreter for a switch interval
(`sys.getswitchinterval`), and the event loop would have to wait that long again and again. `pause` releases
the interpreter earlier.
"""

import time
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any

from gateway.fairness import FairThread, P, R
from gateway.wire import codec
from gateway.wire.codec import Fields
from gateway.wire.framing import RequestHeader

AT_ONCE_BYTES = 16 * 1024
"""Messages up to this size are decoded on the event loop, in about 5 ms. Larger ones are *large*."""
LONG = 1_000
"""Messages with more entries in their lists are *long*: they are encoded in the thread."""

# The shortest sleep that lets another thread run.
_PAUSE_S = 20e-6
run = FairThread("gateway-codec").run
"""Runs a function in the thread (`FairThread.run`)."""


def pause() -> None:
    """Release the interpreter for the event loop."""
    time.sleep(_PAUSE_S)


async def decode_passed(header: RequestHeader, message: bytes) -> Any:
    """Decode a request that passes to a broker (`codec.decode_passed`), in the thread if it is large."""
    if len(message) <= AT_ONCE_BYTES:
        return codec.decode_passed(header, message)
    return await run(codec.decode_passed, header, message, pause)


async def with_body(header: RequestHeader, message: bytes, request: Any) -> bytes:
    """Replace the body of a request (`codec.with_body`), in the thread if the request is large."""
    return await run_if(len(message) > AT_ONCE_BYTES, codec.with_body, header, message, request)


async def run_if(is_large: bool, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return the result of `work`, which is called in the thread if `is_large`."""
    return await run(work, *args, **kwargs) if is_large else work(*args, **kwargs)


async def encode_fields(header: RequestHeader, fields: Fields) -> bytes:
    """Encode a response (`codec.encode_response`), in the thread if it is long."""
    return await run_if(is_long(fields), codec.encode_response, header, fields)


async def decode_frequent(api_key: int, api_version: int, response: bytes) -> Any:
    """Decode a response to a request of the gateway itself, in the thread if it is large.

    `codec.decode_frequent` describes the result.
    """
    if len(response) <= AT_ONCE_BYTES:
        return codec.decode_frequent(api_key, api_version, response)
    # Several tenants may wait for the response, so no tenant's turn is used: the empty context has no TENANT.
    return await Context().run(run, codec.decode_frequent, api_key, api_version, response, pause)


async def decode_response(api_key: int, api_version: int, response: bytes) -> Any:
    """Decode a response (`codec.decode_response`), in the thread if it is large."""
    return await run_if(len(response) > AT_ONCE_BYTES, codec.decode_response, api_key, api_version, response)


async def encode_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str, body: Fields
) -> bytes:
    """Encode a request of the gateway (`codec.encode_request`), in the thread if it is long."""
    return await run_if(
        is_long(body), codec.encode_request, api_key, api_version, correlation_id, client_id, body
    )


def is_long(fields: Fields) -> bool:
    """Return True if the lists of a message have more than LONG entries in total."""
    return _subtract_entries(fields, LONG) < 0


def _subtract_entries(fields: Fields, entries_left: int) -> int:
    """Return `entries_left` minus the number of entries in all lists, also in nested ones. Counting ends when
    the result is negative.
    """
    for value in fields.values():
        if isinstance(value, list):
            entries_left -= len(value)
            if entries_left >= 0 and value and isinstance(value[0], Mapping):
                for entry in value:
                    entries_left = _subtract_entries(entry, entries_left)
                    if entries_left < 0:
                        break
            if entries_left < 0:
                break
    return entries_left
