"""A connection of a client. The gateway or the broker behind the listener answers its requests, in order.

Requests run concurrently, but take effect on a group in order, as on a Kafka broker, which starts a request
when all earlier requests are answered:

- Requests to the coordinator start in order: two requests about one group reach the log in order.
- A request that the coordinator may park, such as a JoinGroup until other members have joined, starts in
  order. Later requests wait for its response.
- Requests to the broker are forwarded in order, and the broker answers in order. They wait for all earlier
  requests to the coordinator, and vice versa.
- Exclusive requests (ListGroups) wait for all earlier requests, and all later requests wait for them.
"""

import asyncio
from functools import partial
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway import apis
from gateway.apis.api import Answer, Api, Screened
from gateway.apis.context import ConnectionCaches, Deferred, RequestContext
from gateway.apis.handshake import is_valid_api_versions, unsupported_version_fields
from gateway.fairness import TENANT
from gateway.net.lifecycle import forget_frames
from gateway.net.limits.requests import ForwardedRequests
from gateway.net.listener import AuthenticationFailed, Listener
from gateway.net.responses import CLOSED, BrokerRequests, Responses
from gateway.net.stream import HELD_MAX_BYTES, ClientStream, passes_undecoded, relay
from gateway.net.writing import RequestOrdering, ResponseSlot
from gateway.upstream.connections import Upstream, UpstreamLost
from gateway.wire import codec, offload
from gateway.wire.framing import (
    ProtocolError,
    RequestHeader,
    correlation_id_of,
    expects_response,
    framed,
    request_header,
    size_prefix,
)
from kafka_why.contract.messages import ErrorCode


class Connection:
    """The connection of one client, served until either side ends it."""

    def __init__(self, listener: Listener, client: ClientStream) -> None:
        self._listener = listener
        self._client = client
        client.dispatcher.start_at_once = self._start_at_once
        self._peer = client.peer
        self._client_host = f"/{self._peer}"  # as Java prints an address without a name
        self._own_host = listener.advertised_host or client.own_host
        self._session = listener.security.session(client.peer_certificate)
        self._responses = Responses(listener, client)
        self._caches = ConnectionCaches()
        self._latest_ordering: RequestOrdering | None = None  # that of the latest request
        self._broker = BrokerRequests(client.end, listener.limits.upstream_timeout_s)
        self._forwarded = ForwardedRequests(listener.forwarding)
        self._upstream: Upstream | None = None
        self._relay_task: asyncio.Task[None] | None = None

    @property
    def unanswered(self) -> int:
        """The number of unanswered requests."""
        return self._client.unanswered

    @property
    def items(self) -> int:
        """The number of requests' items, such as groups, that hold capacity at the coordinator."""
        return self._responses.fan_out.items

    @property
    def forwarded(self) -> int:
        """The number of requests at the broker."""
        return self._forwarded.requests

    @property
    def has_upstream(self) -> bool:
        """True if a connection to a broker is open for this client."""
        return self._upstream is not None and not self._upstream.ended

    @property
    def is_muted(self) -> bool:
        """True if the client is throttled."""
        return self._client.is_muted

    def drain(self) -> None:
        """Finish the running requests (`Responses.drain`), then end the connection."""
        self._responses.drain()
        self._client.finish()

    async def run(self) -> None:
        """Serve until the connection is closed. Raises nothing except when cancelled."""
        reason = "stopped"
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._end_with_client())
                await self._serve_requests(tasks)
        except ExceptionGroup as errors:
            reason = self._listener.log_lines.log_end(self._peer, errors)
            forget_frames(errors)
        finally:
            self._listener.counts.closed[reason] += 1
            self._close()

    def _close(self) -> None:
        self._caches.share_session.end()
        if self._upstream is not None:
            self._upstream.close()
        self._broker.close()
        self._forwarded.close()
        self._client.abort()

    async def _end_with_client(self) -> None:
        raise await self._client.ended

    async def _serve_requests(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            message, slot = await self._client.dispatcher.take()
            try:
                await self._start_request(tasks, request_header(message), message, slot)
            except ProtocolError:
                # Earlier requests are well-formed, and get a response.
                await self._client.dispatcher.wait_for_earlier(slot)
                raise
            del message  # it may be large, and the next one may take long to arrive

    async def _start_request(
        self, tasks: asyncio.TaskGroup, header: RequestHeader, message: bytes, slot: ResponseSlot
    ) -> None:
        """Start a request. When this returns, the next one may start."""
        TENANT.set(self._session.tenant(self._peer))
        slot.api_key = header.api_key
        api = apis.SERVED.get(header.api_key)
        if header.api_key in apis.SASL or not self._session.is_open:
            await self._authenticate(tasks, header, message, slot)
        elif not apis.is_allowed(header.api_key, header.api_version):
            self._refuse(header, slot)
        elif api is None or api.passes(self._listener.services):
            await self._pass_on(tasks, header, message, slot)
        else:
            await self._serve(api, tasks, header, message, slot)

    def _start_at_once(self, message: bytes, slot: ResponseSlot) -> bool:
        """Start a request without waiting. Return False if `_start_request` has to do it."""
        try:
            return self._try_start(message, slot)
        except ProtocolError:
            return False  # `_start_request` raises it
        except Exception as error:  # noqa: BLE001 - it ends this connection: see `run`
            self._responses.release(slot)
            self._client.end(error)
            return True

    def _try_start(self, message: bytes, slot: ResponseSlot) -> bool:
        TENANT.set(self._session.tenant(self._peer))  # the transport calls this in another context
        header = request_header(message)
        slot.api_key = header.api_key
        api = apis.SERVED.get(header.api_key)
        if api is None or api.serve_at_once is None or not self._may_start_at_once(api, header, slot):
            return False
        request = api.decode_at_once(header, message, self._caches.last_heartbeat)
        if api.needs_capacity and not self._responses.try_acquire(slot):
            return False
        answer = api.serve_at_once(self._context(header), request)
        if answer is None:  # `_start_request` has to serve it
            self._responses.release(slot)
            return False
        self._latest_ordering = RequestOrdering.COORDINATOR
        if self._listener.quotas.has_request_rates:
            self._responses.count(api, slot, header, self._session.principal)
        self._answer(api, slot, header, answer)
        return True

    def _may_start_at_once(self, api: Api, header: RequestHeader, slot: ResponseSlot) -> bool:
        """Return True if the request need not wait, even for earlier requests: the latest of these was to the
        coordinator, too (`_wait_for_order`), or all of them are answered.
        """
        return (
            self._session.is_open
            and (self._latest_ordering is RequestOrdering.COORDINATOR or self._client.unanswered == 1)
            and slot.request_bytes <= offload.AT_ONCE_BYTES
            and header.api_version in api.versions
            and not api.passes(self._listener.services)
        )

    async def _wait_for_order(self, slot: ResponseSlot, ordering: RequestOrdering) -> None:
        """Wait for all earlier requests if the order of this one requires it (`RequestOrdering`)."""
        if ordering is not self._latest_ordering or ordering is RequestOrdering.EXCLUSIVE:
            await self._client.dispatcher.wait_for_earlier(slot)
            self._latest_ordering = ordering

    async def _authenticate(
        self, tasks: asyncio.TaskGroup, header: RequestHeader, message: bytes, slot: ResponseSlot
    ) -> None:
        """Serve a SASL request, or any request of a client that is not authenticated."""
        if self._session.failure is not None:
            raise AuthenticationFailed(self._session.failure)
        sasl = apis.SASL.get(header.api_key)
        if self._session.has_ended and sasl is None:
            raise AuthenticationFailed("the session ended before the client had authenticated again")
        # ApiVersions is allowed before the first authentication, but not after the end of a session.
        if header.api_key == ApiKey.ApiVersions and apis.is_allowed(header.api_key, header.api_version):
            await self._answer_versions(header, message, slot)
        elif sasl is not None and header.api_version in sasl.versions:
            if len(message) > self._listener.limits.unauthenticated_frame_bytes:
                raise ProtocolError(f"a SASL request of {len(message)} bytes")
            await self._wait_for_order(slot, RequestOrdering.EXCLUSIVE)
            if self._session.brokers_authenticate:
                await self._pass_sasl(tasks, header, message, slot)
                return
            answer = await sasl.answer(self._context(header), sasl.decode(header, message, None))
            if self._session.is_open:
                self._client.authenticate()  # before the response, which lets the client send
            self._client.answer(slot, framed(codec.encode_response(header, answer)))
            if self._session.failure is not None:
                await self._end_unauthenticated(self._session.failure)
        else:
            self._refuse(header, slot)

    async def _answer_versions(self, header: RequestHeader, message: bytes, slot: ResponseSlot) -> None:
        """Answer ApiVersions for the broker, so that an unauthenticated client needs no connection to it."""
        await self._wait_for_order(slot, RequestOrdering.EXCLUSIVE)
        request = codec.decode_request(header, message)
        if is_valid_api_versions(request, header.api_version):
            versions = self._listener.api_versions
            response = await versions.response(header, partial(self._rewrite, screened=None))
        else:
            response = codec.encode_response(header, {"error_code": ErrorCode.INVALID_REQUEST})
        self._client.answer(slot, framed(response))

    async def _pass_sasl(
        self, tasks: asyncio.TaskGroup, header: RequestHeader, message: bytes, slot: ResponseSlot
    ) -> None:
        reply = await self._broker.relay_sasl(header, message, await self._connect_to_broker(tasks, slot))
        if reply.accepted is not None:
            self._session.accept(reply.accepted, reply.lifetime_ms)
            self._client.authenticate()
        self._client.answer(slot, framed(reply.response))
        if reply.failure is not None:
            await self._end_unauthenticated(reply.failure)

    async def _end_unauthenticated(self, why: str) -> None:
        """End the connection shortly after the last response, as a broker does.

        A client that receives the response and the end at once may report only the end.
        """
        await self._client.dispatcher.wait_for_all()
        await asyncio.sleep(self._listener.limits.failed_authentication_delay_s)
        raise AuthenticationFailed(why)

    def _refuse(self, header: RequestHeader, slot: ResponseSlot) -> None:
        """Answer an ApiVersions of an unknown version. Raise ProtocolError for any other API."""
        if header.api_key != ApiKey.ApiVersions:
            raise ProtocolError(f"api {header.api_key} version {header.api_version} is not served")
        answer = unsupported_version_fields(codec.versions(ApiKey.ApiVersions))
        self._client.answer(slot, framed(codec.encode_response(header.at_version(0), answer)))

    async def _serve(
        self, api: Api, tasks: asyncio.TaskGroup, header: RequestHeader, message: bytes, slot: ResponseSlot
    ) -> None:
        """Start a request that the gateway answers."""
        oversized_bytes = 0
        if len(message) > self._listener.services.frame_max_bytes:
            oversized_bytes, slot.sent_bytes = len(message), 0  # the coordinator gets nothing of it
        request = await api.decode_offloaded(header, message)
        if api.is_for_broker is not None and api.is_for_broker(request):
            await self._pass_on(tasks, header, message, slot)
            return
        ordering = RequestOrdering.EXCLUSIVE if api.is_exclusive else RequestOrdering.COORDINATOR
        await self._wait_for_order(slot, ordering)
        if self._listener.quotas.has_request_rates:
            self._responses.count(api, slot, header, self._session.principal)
        context = self._context(header, oversized_bytes)
        await self._responses.acquire(api, slot, context, request)
        try:
            answer = await api.answer(context, request)
        except BaseException:
            self._responses.release(slot)
            raise
        self._answer(api, slot, header, answer)

    def _answer(self, api: Api, slot: ResponseSlot, header: RequestHeader, answer: Answer) -> None:
        """Answer a request, now or when the coordinator has answered."""
        if isinstance(answer, Deferred) and answer.holds_back:
            self._latest_ordering = RequestOrdering.EXCLUSIVE
        self._responses.answer(api, slot, header, answer)

    async def _pass_on(
        self, tasks: asyncio.TaskGroup, header: RequestHeader, message: bytes, slot: ResponseSlot
    ) -> None:
        """Forward the part of a request that the client is allowed to send."""
        context = self._context(header)
        if not apis.is_screening_needed(context):
            await self._forward(tasks, header, message, slot)
            return
        await self._wait_for_order(slot, RequestOrdering.BROKERS)
        if header.api_key != ApiKey.Produce and len(message) > self._listener.limits.decoded_frame_bytes:
            raise ProtocolError(f"a request of {len(message)} bytes that has to be decoded")
        screened = await apis.screen(context, message)
        if screened is None:
            await self._forward(tasks, header, message, slot)
            return
        has_response = expects_response(header, message)
        if screened.remaining is not None:
            await self._forward(tasks, header, screened.remaining, slot, screened)
        elif has_response:
            self._client.answer(slot, framed(await offload.encode_fields(header, screened.refused)))
        if not has_response:
            # As a broker does, because a client that expects no response has no other sign of an error.
            raise ProtocolError("a Produce with acks=0 to a topic that the client may not change")

    async def _forward(
        self,
        tasks: asyncio.TaskGroup,
        header: RequestHeader,
        message: bytes,
        slot: ResponseSlot,
        screened: Screened | None = None,
    ) -> None:
        """Forward `message`. `_relay_responses` adds the errors of `screened` to the response."""
        await self._wait_for_order(slot, RequestOrdering.BROKERS)
        upstream = await self._connect_to_broker(tasks, slot)
        if not expects_response(header, message):
            await upstream.send(message)
            self._client.answer(slot)
            return
        await self._forwarded.acquire(partial(self._client.dispatcher.wait_for_earlier, slot))
        self._broker.put(header, slot, screened)
        await upstream.send(message)

    async def _connect_to_broker(self, tasks: asyncio.TaskGroup, slot: ResponseSlot) -> Upstream:
        """Return the connection to the broker. If the broker has closed it while idle, open another."""
        upstream = self._upstream
        # A connection that ended with pending requests is not replaced: `_relay_responses` raises an error.
        if upstream is not None and (not upstream.ended or self._forwarded.requests):
            if upstream.is_reauthentication_due:
                await self._client.dispatcher.wait_for_earlier(slot)
                await upstream.authenticate()
            return upstream
        # Another connection would lack the client's authentication and its share session.
        if self._session.brokers_authenticate and self._session.is_authenticated:
            raise UpstreamLost(CLOSED)
        if upstream is not None and self._caches.share_session.member is not None:
            raise UpstreamLost("the broker closed the connection of the share session")
        if self._relay_task is not None:
            self._relay_task.cancel()
        if upstream is not None:
            upstream.close()
        self._upstream = upstream = await self._listener.connect()
        self._relay_task = tasks.create_task(self._relay_responses(upstream))
        return upstream

    async def _relay_responses(self, upstream: Upstream) -> None:
        """Send the broker's responses to the client, in order."""
        while True:
            header, slot, screened = await self._broker.next(upstream)
            TENANT.set(self._session.tenant(self._peer))
            if await upstream.next_response_size() > HELD_MAX_BYTES and passes_undecoded(header, screened):
                await relay(upstream, self._client, header, slot, screened)
            else:
                response = await upstream.receive()
                if correlation_id_of(response) != header.correlation_id:
                    raise UpstreamLost("the broker answered another request")
                response = await self._rewrite(header, response, screened)
                self._client.answer(slot, size_prefix(len(response)), response)
                del response
            await self._client.drain()  # nothing more is read from the broker before the client has this
            self._forwarded.release()

    async def _rewrite(self, header: RequestHeader, response: bytes, screened: Screened | None) -> bytes:
        """Return the broker's response as the client gets it, with the changes and errors of `screened`."""
        rewrite = apis.rewrite_of(header.api_key, header.api_version, response)
        if screened is not None:
            screened.receive(response)
        if rewrite is None and (screened is None or not screened.changes_response):
            return response
        decoded: Any = await offload.decode_response(header.api_key, header.api_version, response)
        if rewrite is not None:
            await rewrite(self._context(header), decoded)
        decoded, has_many_errors = (decoded, False) if screened is None else await screened.complete(decoded)
        is_large = has_many_errors or len(response) > offload.AT_ONCE_BYTES
        return await offload.run_if(is_large, codec.encode_response, header, decoded)

    def _context(self, header: RequestHeader, oversized_bytes: int = 0) -> RequestContext:
        return RequestContext(
            services=self._listener.services,
            header=header,
            client_host=self._client_host,
            principal=self._session.principal,
            host=self._own_host,
            node_id=self._listener.node_id,
            session=self._session,
            caches=self._caches,
            fan_out=self._responses.fan_out,
            ask_as_client=self._broker.ask if self._session.brokers_authenticate else None,
            oversized_bytes=oversized_bytes,
        )
