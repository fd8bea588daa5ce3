"""One client's connection: its requests in order, answered here or by the broker behind its listener.

As on a Kafka broker, a request for the coordinator is taken up when all before it are answered, and holds
those behind it: a parked JoinGroup too. What is for the broker may be under way several at a time; it
answers in order itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from gateway import apis, codec
from gateway.apis import find_coordinator
from gateway.apis.api_versions import API_VERSIONS, unsupported
from gateway.call import Call, Services
from gateway.framing import (
    FrameBuffer,
    ProtocolError,
    RequestHeader,
    correlation_id_of,
    expects_response,
    framed,
    request_header,
)
from gateway.limits import Limits
from gateway.security import Session
from gateway.upstream import READ_BYTES, Upstream, UpstreamLost

T = TypeVar("T")

log = structlog.get_logger()


class ClientGone(ConnectionError):
    """The client ended the connection, or was idle for too long: nothing to report."""


class NotLetIn(ConnectionError):
    """The client does not say who it is, or not rightly."""


class SlowReader(ConnectionError):
    """The client does not read its answers."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a client came in: for broker `node_id`, None for the first listener, for which any broker will
    do. `forwarding` has room for so many requests to brokers at a time, over all connections.
    """

    node_id: int | None
    services: Services
    limits: Limits
    forwarding: asyncio.Semaphore
    connect: Callable[[], Awaitable[Upstream]]
    advertised_host: str | None
    users: Mapping[str, str] | None


class Connection:
    """Serves one client until either side ends it. `unanswered` requests are read and under way."""

    def __init__(
        self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._reader = reader
        self._writer = writer
        # `drain` is to wait until the kernel has it all, so that closing loses no answer. A transport of TLS
        # counts its limit as too much already, so with 0 it would never be ready.
        writer.transport.set_write_buffer_limits(high=0 if writer.get_extra_info("ssl_object") is None else 1)
        self._peer = (writer.get_extra_info("peername") or ("unknown", 0))[0]
        self._own_host = listener.advertised_host or writer.get_extra_info("sockname")[0]
        self._session = Session(listener.users)
        self._room = asyncio.Semaphore(self._limits.in_flight_per_connection)
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        self._forwarded: asyncio.Queue[RequestHeader] = asyncio.Queue()
        self._forwarded_count = 0
        self.unanswered = 0
        self._upstream: Upstream | None = None
        self._returning: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve; returns when the connection is closed. Never raises but when cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._work(tasks))
        except* ClientGone:
            pass
        except* (ProtocolError, OSError) as errors:
            log.warning("a connection was closed", client=self._peer, why=str(errors.exceptions[0]))
        except* Exception as errors:
            log.error("a connection failed", client=self._peer, exc_info=errors)
        finally:
            self._close()

    def _close(self) -> None:
        if self._upstream is not None:
            self._upstream.close()
        for _ in range(self._forwarded_count):
            self._listener.forwarding.release()
        # What the client has not taken by now it is not waited for.
        self._writer.transport.abort()

    async def _read(self) -> None:
        """Take requests up, as many as there is room for."""
        buffer = FrameBuffer(self._limits.frame_bytes)
        while True:
            for message in buffer.feed(await self._read_some()):
                await self._room.acquire()
                self.unanswered += 1
                self._requests.put_nowait(message)

    async def _read_some(self) -> bytes:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.idle_timeout_s):
                    data = await self._from_client(self._reader.read(READ_BYTES))
                if not data:
                    raise ClientGone("the client ended the connection")
                return data
            if self.unanswered == 0:
                raise ClientGone("nothing was asked for too long")

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            message = await self._requests.get()
            header = request_header(message)
            if self._session.is_asked and (header.api_key in apis.SASL or not self._session.is_open):
                await self._let_in(tasks, header, message)
            elif not apis.is_allowed(header.api_key, header.api_version):
                await self._refuse(header)
            elif header.api_key not in apis.SERVED:
                await self._forward(tasks, header, message)
            else:
                await self._serve(tasks, header, message)

    async def _let_in(self, tasks: asyncio.TaskGroup, header: RequestHeader, message: bytes) -> None:
        """Until a client has named itself it may ask for versions, and name itself."""
        if header.api_key == API_VERSIONS and apis.is_allowed(header.api_key, header.api_version):
            await self._forward(tasks, header, message)
        elif header.api_version in apis.SASL_VERSIONS.get(header.api_key, ()):
            await self._answer_with(apis.SASL[header.api_key], header, codec.decode_request(header, message))
            if self._session.failed is not None:
                raise NotLetIn(self._session.failed)
        else:
            await self._refuse(header)

    async def _refuse(self, header: RequestHeader) -> None:
        if header.api_key != API_VERSIONS:
            raise ProtocolError(f"api {header.api_key} version {header.api_version} is not served")
        await self._forwarded.join()
        answer = unsupported(codec.versions(API_VERSIONS))
        await self._answer(codec.encode_response(header.at_version(0), answer))

    async def _serve(self, tasks: asyncio.TaskGroup, header: RequestHeader, message: bytes) -> None:
        """Answer here, when all before it are answered."""
        if len(message) > self._limits.group_frame_bytes:
            raise ProtocolError(f"a request of {len(message)} bytes to the coordinator")
        request = codec.decode_request(header, message)
        if header.api_key == apis.FIND_COORDINATOR and find_coordinator.is_upstreams(request):
            await self._forward(tasks, header, message)
            return
        await self._answer_with(apis.SERVED[header.api_key], header, request)

    async def _answer_with(self, serve: apis.Serve, header: RequestHeader, request: Any) -> None:
        await self._forwarded.join()
        answer = await serve(self._call(header), request)
        await self._answer(codec.encode_response(header, answer))

    async def _forward(self, tasks: asyncio.TaskGroup, header: RequestHeader, message: bytes) -> None:
        """Send it on as it is; `_return` brings the answer."""
        if self._upstream is None or (self._upstream.ended and not self._forwarded_count):
            # A broker ends connections that were idle; the client's is not.
            await self._reconnect(tasks)
        assert self._upstream is not None
        if not expects_response(header, message):
            await self._upstream.send(message)
            self._done()
            return
        await self._listener.forwarding.acquire()
        self._forwarded_count += 1
        self._forwarded.put_nowait(header)
        await self._upstream.send(message)

    async def _reconnect(self, tasks: asyncio.TaskGroup) -> None:
        if self._returning is not None:
            self._returning.cancel()
        if self._upstream is not None:
            self._upstream.close()
        self._upstream = await self._listener.connect()
        self._returning = tasks.create_task(self._return(self._upstream))

    async def _return(self, upstream: Upstream) -> None:
        """Bring the broker's answers back, in order."""
        while True:
            header = await self._forwarded.get()
            response = await upstream.receive()
            if correlation_id_of(response) != header.correlation_id:
                raise UpstreamLost("the broker answers something else than what was asked")
            await self._answer(await self._rewritten(header, response))
            self._forwarded_count -= 1
            self._listener.forwarding.release()
            self._forwarded.task_done()

    async def _rewritten(self, header: RequestHeader, response: bytes) -> bytes:
        if not apis.is_rewritten(header.api_key, header.api_version, response):
            return response
        decoded: Any = codec.decode_response(header.api_key, header.api_version, response)
        await apis.REWRITTEN[header.api_key](self._call(header), decoded)
        return codec.encode_response(header, decoded)

    async def _answer(self, message: bytes) -> None:
        """Give it to the client. Raises SlowReader where it takes nothing for too long."""
        self._writer.write(framed(message))
        transport = self._writer.transport
        left = transport.get_write_buffer_size()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.write_timeout_s):
                    await self._from_client(self._writer.drain())
                self._done()
                return
            left, before = transport.get_write_buffer_size(), left
            if left >= before:
                raise SlowReader(f"it took none of {left} bytes for {self._limits.write_timeout_s:.0f} s")

    def _done(self) -> None:
        self.unanswered -= 1
        self._room.release()

    async def _from_client(self, io: Coroutine[Any, Any, T]) -> T:
        try:
            return await io
        except OSError as error:  # the system's own TimeoutError too, which is none of ours
            raise ClientGone("the client ended the connection") from error

    def _call(self, header: RequestHeader) -> Call:
        return Call(
            services=self._listener.services,
            header=header,
            client_host=f"/{self._peer}",  # as Java shows an address without a name
            host=self._own_host,
            node_id=self._listener.node_id,
            session=self._session,
        )
