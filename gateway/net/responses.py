"""The responses on one connection that the gateway builds itself, at once or when the coordinator answers.

Also the quota of the connection's requests, and the order of its requests at the broker.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Answer, Api, Screened
from gateway.apis.context import Deferred, RequestContext
from gateway.fairness import CapacityLimiter
from gateway.limits import Quotas, TokenBucket
from gateway.metrics.numbers import GatewayCounts
from gateway.net.listener import Listener
from gateway.net.stream import ClientStream
from gateway.net.writing import ResponseSlot
from gateway.upstream.connections import CLIENT_ID, Upstream, UpstreamLost
from gateway.upstream.passthrough import SaslRelay, SaslReply
from gateway.wire import codec, offload
from gateway.wire.codec import GatewayError
from gateway.wire.framing import RequestHeader, framed, size_prefix
from kafka_why.contract.messages import ErrorCode, Response

# The request quota of the client of one connection (KIP-13, KIP-219).
#
# A request over the quota is handled like any other. Its response has `throttle_time_ms`, and the gateway
# dispatches no other request of the connection until that time has passed, as a broker mutes the channel.


_USER = "User:"


@dataclass(slots=True, eq=False)
class QuotaMeter:
    """The meter of the requests of one connection."""

    _quotas: Quotas
    _counts: GatewayCounts
    _bucket_key: tuple[int, str, str | None] | None = None
    """The quotas' version, the principal and the client id of `_bucket`."""
    _bucket: TokenBucket | None = None

    def count(self, principal: str, client_id: str | None, api_key: int) -> TokenBucket | None:
        """Count a request. Return the bucket of the client's quota if the request exceeds it, else None."""
        bucket = self._bucket_of(principal, client_id)
        if bucket is None or not bucket.charge_exceeds(self._quotas.now_s()):
            return None
        self._counts.throttled[api_key] += 1
        return bucket

    async def pay(self, principal: str, client_id: str | None, api_key: int) -> None:
        """Charge an item of a request to the client's quota, waiting until there is a token.

        A request may overdraw the quota, which then delays the client (`TokenBucket`). An item may not: the
        debt of a bucket is limited, so a request with many items would be delayed for only a few of them.
        """
        while self._quotas.has_request_rates and (bucket := self._bucket_of(principal, client_id)):
            now_s = self._quotas.now_s()
            if bucket.try_charge(now_s):
                return
            wait_s = bucket.wait_s(now_s)
            self._counts.throttled[api_key] += 1
            self._counts.throttled_s += wait_s
            await asyncio.sleep(wait_s)

    def throttle(self, bucket: TokenBucket, fields: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
        """Return the seconds for which to mute the connection, and `fields` with `throttle_time_ms`."""
        throttle_s = bucket.throttle_s(self._quotas.now_s())
        self._counts.throttled_s += throttle_s
        return throttle_s, {**fields, "throttle_time_ms": math.ceil(throttle_s * 1000)}

    def _bucket_of(self, principal: str, client_id: str | None) -> TokenBucket | None:
        """Return the bucket of the client's quota, or None if the client has no quota."""
        quotas = self._quotas
        if self._bucket_key != (quotas.version, principal, client_id):
            self._bucket = quotas.requests_of(principal.removeprefix(_USER), client_id or "")
            # Read the version again, because `requests_of` may have changed it.
            self._bucket_key = quotas.version, principal, client_id
        return self._bucket


@dataclass(slots=True, eq=False)
class FanOutSlots:
    """The capacity and quota of the items of one connection's requests (`gateway.apis.context.FanOut`). A
    request about several groups, for example, has an item for each group.

    `items` is the number of items that hold capacity. An item takes no bytes of the capacity, because the
    bytes of its whole request are counted.
    """

    _capacity: CapacityLimiter
    _meter: QuotaMeter
    _counts: GatewayCounts
    items: int = 0

    def count(self, context: RequestContext, items: int) -> None:
        """Count the items of a request for the metrics."""
        self._counts.items[context.header.api_key] += items

    async def pay(self, context: RequestContext) -> None:
        """Charge an item to the client's quota."""
        await self._meter.pay(context.principal, context.header.client_id, context.header.api_key)

    def try_acquire(self) -> bool:
        """Acquire capacity for an item without waiting. Return False if there is none."""
        if not self._capacity.try_acquire():
            return False
        self.items += 1
        return True

    def release(self) -> None:
        """Release the capacity of an item."""
        self.items -= 1
        self._capacity.release()

    @asynccontextmanager
    async def acquired(self, context: RequestContext) -> AsyncIterator[None]:
        """Charge an item to the quota, and hold capacity for it until the block ends."""
        await self.pay(context)
        await self._capacity.acquire()
        self.items += 1
        try:
            yield
        finally:
            self.release()


class _ParkedRequest(NamedTuple):
    """A request that the coordinator may have parked."""

    slot: ResponseSlot
    header: RequestHeader
    answer: Deferred
    number: int  # in `ParkedMemoryLimit`
    response_type: type[Response]  # of the coordinator


# Responses to ListGroups share the bytes of their entries, so their parts are not joined.
_LIST_GROUPS = ApiKey.ListGroups.value


class Responses:
    """The responses on one connection that the gateway builds itself. They are encoded and put into their
    slots.
    """

    __slots__ = (
        "_capacity",
        "_client",
        "_counts",
        "_is_draining",
        "_large_requests",
        "_meter",
        "_parked",
        "_parked_memory",
        "fan_out",
    )  # fmt: skip

    def __init__(self, listener: Listener, client: ClientStream) -> None:
        self._client = client
        self._capacity, self._large_requests = listener.capacity, listener.large_requests
        self._counts = listener.counts
        self._meter = QuotaMeter(listener.quotas, listener.counts)
        self.fan_out = FanOutSlots(listener.capacity, self._meter, listener.counts)
        self._parked: _ParkedRequest | None = None
        """The JoinGroup or other request that the coordinator may have parked. Later requests wait for it."""
        self._parked_memory = listener.parked_memory
        self._is_draining = False

    def count(self, api: Api, slot: ResponseSlot, header: RequestHeader, principal: str) -> None:
        """Count a request for its client's quota. If the request exceeds the quota, the connection is
        muted.
        """
        if api.is_metered:
            slot.quota = self._meter.count(principal, header.client_id, header.api_key)
            if slot.quota is not None:
                self._client.mute()

    def answer(self, api: Api, slot: ResponseSlot, header: RequestHeader, answer: Answer) -> None:
        """Answer a request, now or when the coordinator has answered."""
        if not isinstance(answer, Deferred):
            self.release(slot)
            self._respond(slot, header, answer, answer.get("error_code", 0))
            return
        slot.waits_for = answer.response
        answer.response.add_done_callback(partial(self._on_answer, api, slot, header, answer.fields))
        if api.parks is not None:
            # After this error the client looks for the coordinator, and sends the request again.
            give_up = partial(self._answer_parked, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            number = self._parked_memory.add(slot.sent_bytes, give_up)
            self._parked = _ParkedRequest(slot, header, answer, number, api.parks)
            if self._is_draining:
                self._answer_parked(GatewayError.NOT_COORDINATOR)
            self._parked_memory.shrink()

    def drain(self) -> None:
        """Answer a parked request with NOT_COORDINATOR, as a broker whose groups move to another broker.

        The client then finds another coordinator and sends the request again, with its member id.
        """
        self._is_draining = True
        self._answer_parked(GatewayError.NOT_COORDINATOR)

    def try_acquire(self, slot: ResponseSlot) -> bool:
        """Acquire capacity at the coordinator without waiting. Return False if there is none."""
        slot.has_capacity = self._capacity.try_acquire(slot.sent_bytes)
        return slot.has_capacity

    async def acquire(self, api: Api, slot: ResponseSlot, context: RequestContext, request: Any) -> None:
        """Wait for the rate limit of large requests, and then for capacity at the coordinator.

        A request that may be parked needs no capacity. A request that the gateway answers itself needs
        neither. Nothing is read from a client that waits for capacity.
        """
        if not api.asks_coordinator:
            return
        slot.sent_bytes += api.added_bytes(context, request)
        await self._large_requests.acquire(slot.sent_bytes)
        if api.parks is None and not self.try_acquire(slot):
            self._client.set_waiting(waiting=True)
            await self._capacity.acquire(slot.sent_bytes)
            self._client.set_waiting(waiting=False)
            slot.has_capacity = True

    def release(self, slot: ResponseSlot) -> None:
        """Release the capacity of a request, if it has any."""
        if slot.has_capacity:
            slot.has_capacity = False
            self._capacity.release(slot.sent_bytes)

    def _on_answer(
        self,
        api: Api,
        slot: ResponseSlot,
        header: RequestHeader,
        fields: Callable[[Any], codec.Fields],
        response: asyncio.Future[Any],
    ) -> None:
        """Answer a request with the coordinator's response, and release its capacity."""
        self.release(slot)
        if self._parked is not None and self._parked.slot is slot:
            self._parked_memory.remove(self._parked.number)
            self._parked = None
        # A parked request may have been given up, and so answered, before or just after the response came.
        if response.cancelled() or slot.frame is not None:
            return
        try:
            result = response.result()
            self._respond(slot, header, fields(result), api.error_code(result))
        except Exception as error:  # noqa: BLE001 - it ends this connection: see `Connection.run`
            self._client.end(error)

    def _respond(
        self, slot: ResponseSlot, header: RequestHeader, fields: codec.Fields, error_code: int
    ) -> None:
        """Encode a response, in a thread if it is long, and put it into its slot."""
        if error_code:
            self._counts.errors[header.api_key, error_code] += 1
        if slot.quota is not None:
            throttle_s, fields = self._meter.throttle(slot.quota, fields)
            self._client.unmute_after(throttle_s)
        if offload.is_long(fields):
            encoding = offload.run(codec.encode_response, header, fields)
            encoding.add_done_callback(partial(self._on_encoded, slot))
            slot.waits_for = encoding
        elif header.api_key == _LIST_GROUPS:
            parts = codec.encode_parts(header, fields)
            self._client.answer(slot, size_prefix(sum(map(len, parts))), *parts)
        else:
            self._client.answer(slot, framed(codec.encode_response(header, fields)))

    def _on_encoded(self, slot: ResponseSlot, encoded: asyncio.Future[bytes]) -> None:
        """Put a response that was encoded in the thread into its slot."""
        if encoded.cancelled():
            return
        if (error := encoded.exception()) is not None:
            self._client.end(cast(Exception, error))
        else:
            self._client.answer(slot, framed(encoded.result()))

    def _answer_parked(self, error: GatewayError | ErrorCode) -> None:
        """Answer the parked request, if any, with this error. Drop the coordinator's later response."""
        if self._parked is None:
            return
        parked, self._parked = self._parked, None
        self._parked_memory.remove(parked.number)
        parked.answer.response.cancel()
        # `fields` converts a response of the coordinator, so it gets an empty one. Its error is replaced.
        empty = parked.response_type(
            group_id="", correlation_id="", request="", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        self._respond(parked.slot, parked.header, {**parked.answer.fields(empty), "error_code": error}, error)


# The requests of one client's connection at its broker, in the order of the responses: requests of the
# client, and requests of the gateway under the client's principal.


CLOSED = "the broker closed the connection on which it had authenticated the client"

ClientsRequest = tuple[RequestHeader, ResponseSlot, Screened | None]
"""A request of the client at the broker. `Screened` completes its response."""


class BrokerRequests:
    """The requests at the broker that have no response yet, and the client's authentication there.

    A request of the gateway delays an authentication by at most `timeout_s`. `end` ends the client's
    connection.
    """

    def __init__(self, end: Callable[[Exception], None], timeout_s: float) -> None:
        self._end = end
        self._timeout_s = timeout_s
        self._requests: asyncio.Queue[ClientsRequest | asyncio.Future[bytes]] = asyncio.Queue()
        self._upstream: Upstream | None = None
        """The connection to the broker, from `next` to `close`."""
        self._sasl = SaslRelay()
        self._own_response: asyncio.Future[bytes] | None = None
        """The response to the gateway's pending request."""

    def put(self, header: RequestHeader, slot: ResponseSlot, screened: Screened | None) -> None:
        """Add a request of the client. The caller forwards it at once."""
        self._requests.put_nowait((header, slot, screened))

    async def next(self, upstream: Upstream) -> ClientsRequest:
        """Return the client's request whose response comes next on this connection. Raises UpstreamLost."""
        self._upstream = upstream
        while isinstance(request := await self._requests.get(), asyncio.Future):
            request.set_result(await upstream.receive())
            self._own_response = None
        return request

    def close(self) -> None:
        """End the gateway's request, if any, because the connection has ended."""
        self._upstream = None
        if self._own_response is not None and not self._own_response.done():
            self._own_response.set_exception(UpstreamLost("the client's connection has ended"))
            self._own_response.exception()  # marks it as retrieved, because asyncio logs other exceptions

    async def relay_sasl(self, header: RequestHeader, message: bytes, upstream: Upstream) -> SaslReply:
        """Relay a SASL request of the client, after the gateway's pending request, if any.

        Raises ProtocolError. Raises UpstreamLost if the broker does not answer the pending request in time.
        """
        if self._own_response is not None:
            await asyncio.wait([self._own_response], timeout=self._timeout_s)
            if self._own_response is not None:
                raise UpstreamLost("the broker does not answer a request of the gateway")
        return await self._sasl.relay(header, message, upstream)

    async def ask(self, api_key: int, version: int, body: codec.Fields) -> Any:
        """Send a request of the gateway on the client's connection to the broker, and return the response.

        Raises UpstreamLost if the connection is lost. Also raises it while the client authenticates, or while
        another request of the gateway is pending.
        """
        request = await offload.encode_request(api_key, version, 0, CLIENT_ID, body)
        upstream = self._upstream
        if upstream is not None and upstream.ended:
            lost = UpstreamLost(CLOSED)
            # The client then authenticates again.
            self._end(lost)
            raise lost
        if upstream is None or self._sasl.is_running or self._own_response is not None:
            raise UpstreamLost("the client's connection to the broker cannot be used now")
        self._own_response = own_response = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(own_response)
        await upstream.send(request)
        # A cancelled caller must not cancel the future, because `next` sets its result.
        return await offload.decode_response(api_key, version, await asyncio.shield(own_response))
