"""The connection to a name server or broker of a polled RocketMQ cluster."""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.rocketmq.requests import ResponseCode
from kafka_why.numbers import parse_whole_number
from kafka_why.remoting.client import RemotingClient
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import Header
from kafka_why.remoting.strict_json import MalformedFrame
from kafka_why.topic_reader import ClientError

REQUESTS_PER_S = 10
_TIMEOUT_S = 5.0  # of a connection attempt, and of most requests
_RECONNECT_S = 10.0
"""After a failed connection attempt, requests fail for this time without another attempt."""
_RIGHTS = "(reading needs GET on the group and its topics, and the keys of --rocketmq-acl or the environment)"

T = TypeVar("T")
Fields = Mapping[str, str]
NO_FIELDS: Fields = MappingProxyType({})


class ServerError(ClientError):
    """The error when a server does not answer, or answers with an error.

    The text is a predicate, such as `does not answer`. `code` is the response code, or None if there is no
    answer.
    """

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


def _error_answer(header: Header) -> ServerError:
    """Return the error for an answer whose code is not SUCCESS."""
    is_refusal = header.code == ResponseCode.NO_PERMISSION
    text = f"{'refuses access' if is_refusal else f'answers {header.code}'}: {header.remark}"
    return ServerError(f"{text} {_RIGHTS}" if is_refusal else text, header.code)


def _unreadable(error: Exception) -> ServerError:
    return ServerError(f"gives an answer that cannot be read: {error}")


class Server:
    """A client of one name server or broker: one connection, at most REQUESTS_PER_S requests per second."""

    def __init__(self, address: str, servers: RocketMqServers) -> None:
        self.address = address
        self._servers = servers
        self._client: RemotingClient | None = None
        self._turn = asyncio.Lock()  # held while a request waits for its time or connects
        self._next_s = 0.0  # the earliest time of the next request
        # The error of the last connection attempt, with which requests fail until this time.
        self._failure, self._failed_until_s = "", 0.0

    async def ask(
        self,
        code: RequestCode,
        decode: Callable[[bytes], T],
        fields: Fields = NO_FIELDS,
        timeout_s: float = _TIMEOUT_S,
    ) -> T:
        """Send a request and return the decoded body of the answer. Raises ServerError."""
        _, body = await self._invoke(code, fields, timeout_s)
        try:
            return decode(body)
        except MalformedFrame as error:
            raise _unreadable(error) from error

    async def offset(self, code: RequestCode, fields: Fields) -> int | None:
        """Send a request, and return the offset in the answer, or None if the server has none.

        Raises ServerError.
        """
        try:
            header, _ = await self._invoke(code, fields, _TIMEOUT_S)
            return parse_whole_number(header.ext_fields.get("offset", ""))
        except ServerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        except ValueError as error:
            raise _unreadable(error) from error

    async def _invoke(self, code: RequestCode, fields: Fields, timeout_s: float) -> tuple[Header, bytes]:
        """Send a request, and return the header and the body of a successful answer. Raises ServerError."""
        try:
            client = await self._connected()
            header, body = await client.invoke(code, fields, timeout_s=timeout_s)
        except MalformedFrame as error:
            raise _unreadable(error) from error
        except OSError as error:
            raise ServerError(f"does not answer: {str(error) or type(error).__name__}") from error
        if header.code != ResponseCode.SUCCESS:
            raise _error_answer(header)
        return header, body

    async def _connected(self) -> RemotingClient:
        """Wait for this request's turn, and return the connection, opened if necessary. Raises OSError."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if loop.time() < self._failed_until_s:
                raise OSError(self._failure)
            await asyncio.sleep(self._next_s - loop.time())
            self._next_s = loop.time() + 1 / REQUESTS_PER_S
            if self._client is None or self._client.has_failed:
                try:
                    self._client = await RemotingClient.open(
                        self.address,
                        credentials=self._servers.keys,
                        tls=self._servers.tls,
                        timeout_s=_TIMEOUT_S,
                    )
                except OSError as error:
                    self._failure = str(error) or type(error).__name__
                    self._failed_until_s = loop.time() + _RECONNECT_S
                    raise
            return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
