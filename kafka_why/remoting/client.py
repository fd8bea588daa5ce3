"""A client of RocketMQ's name servers and brokers."""

import asyncio
import hmac
import ssl
from asyncio import StreamReader, StreamWriter
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from struct import Struct
from typing import NamedTuple, Self

from kafka_why.remoting.frames import (
    CURRENT_VERSION,
    WORD_BYTES,
    Header,
    decode_header,
    encode_frame,
    header_length,
)
from kafka_why.remoting.strict_json import MalformedFrame

TIMEOUT_S = 5.0

_LENGTH_AND_WORD = Struct(">ii")  # the beginning of a frame
_LANGUAGE = "PYTHON"


class AclCredentials(NamedTuple):
    """The keys of an account in RocketMQ's ACL 1.0 or 2.0."""

    access_key: str
    secret_key: str
    security_token: str | None = None  # of a temporary account


def sign_fields(ext_fields: Mapping[str, str], body: bytes, credentials: AclCredentials) -> dict[str, str]:
    """Return a request's extFields with the account and the signature. Source: AclClientRPCHook, AclUtils."""
    fields = {**ext_fields, "AccessKey": credentials.access_key}
    if credentials.security_token is not None:
        fields["SecurityToken"] = credentials.security_token
    content = "".join(fields[name] for name in sorted(fields)).encode() + body
    signature = hmac.digest(credentials.secret_key.encode(), content, "sha1")
    return {**fields, "Signature": b64encode(signature).decode()}


class RemotingClient:
    """A connection to a server. Several requests may be in flight.

    After a failure it is not opened again: every later request raises ConnectionError.
    """

    def __init__(
        self, reader: StreamReader, writer: StreamWriter, credentials: AclCredentials | None, timeout_s: float
    ) -> None:
        self._writer = writer
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._opaques = count(1)  # ids of requests
        self._pending: dict[int, asyncio.Future[tuple[Header, bytes]]] = {}
        self._failure: Exception | None = None  # the first one, after which the connection is unusable
        self._reading = asyncio.create_task(self._read_responses(reader))

    @property
    def has_failed(self) -> bool:
        """True if the connection can no longer be used."""
        return self._failure is not None

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        credentials: AclCredentials | tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Self:
        """Connect to `host:port`. Raises OSError, which includes TimeoutError.

        `timeout_s` limits connecting and, by default, each request.
        """
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
        except (ValueError, OverflowError) as error:  # of the port, or of a host name with an empty label
            raise OSError(f"{address!r} is not an address: {error}") from error
        return cls(reader, writer, None if credentials is None else AclCredentials(*credentials), timeout_s)

    async def invoke(
        self,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> tuple[Header, bytes]:
        """Send a request. Return the header and the body of its response, whatever its code.

        Raises OSError if the connection fails, which includes TimeoutError, and MalformedFrame for bytes that
        are not a frame.
        """
        if self._failure is not None:
            raise ConnectionError(f"the connection is closed: {self._failure}")
        fields = dict(ext_fields or {})
        if self._credentials is not None:
            fields = sign_fields(fields, body, self._credentials)
        header = Header(
            code, next(self._opaques), language=_LANGUAGE, version=CURRENT_VERSION, ext_fields=fields
        )
        response: asyncio.Future[tuple[Header, bytes]] = asyncio.get_running_loop().create_future()
        self._pending[header.opaque] = response
        try:
            self._writer.write(encode_frame(header, body))
            async with asyncio.timeout(self._timeout_s if timeout_s is None else timeout_s):
                return await response
        finally:
            del self._pending[header.opaque]

    async def close(self) -> None:
        """Close the connection. Requests in flight raise ConnectionError."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._fail(ConnectionError("closed by this side"))
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _read_responses(self, reader: StreamReader) -> None:
        """Complete the pending requests with their responses, until the connection fails."""
        try:
            while True:
                header, body = await _read_frame(reader)
                response = self._pending.get(header.opaque)
                # A server's own requests, such as NOTIFY_CONSUMER_IDS_CHANGED, are not for this client.
                if header.is_response and response is not None and not response.done():
                    response.set_result((header, body))
        except asyncio.IncompleteReadError:
            self._fail(ConnectionError("closed by the server"))
        except (OSError, MalformedFrame) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Close the connection, and let the pending requests raise `error`."""
        self._failure = self._failure or error
        for response in self._pending.values():
            if not response.done():
                response.set_exception(error)
        self._writer.transport.abort()


async def _read_frame(reader: StreamReader) -> tuple[Header, bytes]:
    length, word = _LENGTH_AND_WORD.unpack(await reader.readexactly(_LENGTH_AND_WORD.size))
    header_bytes = header_length(length, word)
    header = decode_header(word, await reader.readexactly(header_bytes))
    return header, await reader.readexactly(length - WORD_BYTES - header_bytes)
