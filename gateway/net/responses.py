"""Responses of the gateway itself on one connection, sent at once or when the coordinator answers, and the
quota of the requests.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

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
from gateway.upstream.passthrough import PassedSasl, SaslReply
from gateway.wire import codec, offload
from gateway.wire.codec import GatewayError
from gateway.wire.framing import RequestHeader, framed, size_prefix
from kafka_why.contract.messages import ErrorCode, Response

# The request quota of the client of one connection (KIP-13, KIP-219).
#
# A request over the quota is handled like any other. Its response has `throttle_time_ms`, and the gateway
# dispatches no other request of the connection until that time has passed, as a broker mutes the channel.


_USER = "User:"


class QuotaMeter:
    """The meter of the requests of one connection."""

    __slots__ = ("_bucket", "_bucket_key", "_counts", "_quotas")

    def __init__(self, quotas: Quotas, counts: GatewayCounts) -> None:
        self._quotas = quotas
        self._counts = counts
        self._bucket_key: tuple[int, str, str | None] | None = None
        """The quotas' version, the principal and the client id of `_bucket`."""
        self._bucket: TokenBucket | None = None

    def count(self, principal: str, client_id: str | None, api_key: int) -> TokenBucket | None:
        """Count a request. Return the bucket of the client's quota if the request exceeds it, else None."""
        bucket = self._bucket_of(principal, client_id)
        if bucket is None or not bucket.charge_exceeds(self._quotas.now_s()):
            return None
        self._counts.throttled[api_key] += 1
        return bucket

    async def pay(self, principal: str, client_id: str | None, api_key: int) -> None:
        """Charge an item of a request to the client's quota, waiting until there is a token.

        A debt is limited, so it would delay the client for only a few items.
        """
        while self._quotas.has_request_rates and (bucket := self._bucket_of(principal, client_id)):
            now_s = self._quotas.now_s()
            if bucket.try_charge(now_s):
                return
            wait_s = bucket.wait_s(now_s)
            self._counts.throttled[api_key] += 1
            self._counts.throttled_s += wait_s
            await asyncio.sleep(wait_s)

    def throttled(self, bucket: TokenBucket, fields: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
        """Return the seconds for which to mute the connection, and `fields` with `throttle_time_ms`."""
        throttle_s = bucket.throttle_s(self._quotas.now_s())
        self._counts.throttled_s += throttle_s
        return throttle_s, {**fields, "throttle_time_ms": math.ceil(throttle_s * 1000)}

    def _bucket_of(self, principal: str, client_id: str | None) -> TokenBucket | None:
        """Return the bucket of the client's quota, or None if the client has no quota."""
        quotas = self._quotas
        wanted = quotas.version, principal, client_id
        if wanted != self._bucket_key:
            self._bucket = quotas.requests_of(principal.removeprefix(_USER), client_id or "")
            self._bucket_key = quotas.version, principal, client_id  # a lookup may change the version
        return self._bucket


# An item takes no bytes of the capacity, because the bytes of its whole request are counted.
_NO_BYTES = 0


class FanOutSlots:
    """The capacity and quota of the items of one connection's requests (`gateway.apis.context.FanOut`).
    `items` is the number of items that hold capacity.
    """

    __slots__ = ("_capacity", "_counts", "_meter", "items")

    def __init__(self, capacity: CapacityLimiter, meter: QuotaMeter, counts: GatewayCounts) -> None:
        self._capacity = capacity
        self._meter = meter
        self._counts = counts
        self.items = 0

    def count(self, context: RequestContext, items: int) -> None:
        """Count the items of a request for the metrics."""
        self._counts.items[context.header.api_key] += items

    async def pay(self, context: RequestContext) -> None:
        """Charge an item to the client's quota."""
        await self._meter.pay(context.principal, context.header.client_id, context.header.api_key)

    def try_acquire(self) -> bool:
        """Acquire capacity for an item without waiting. Return False if there is none."""
        if not self._capacity.try_acquire(_NO_BYTES):
            return False
        self.items += 1
        return True

    def release(self) -> None:
        """Release the capacity of an item."""
        self.items -= 1
        self._capacity.release(_NO_BYTES)

    @asynccontextmanager
    async def acquired(self, context: RequestContext) -> AsyncIterator[None]:
        """Charge an item to the quota, and hold capacity for it until the block ends."""
        await self.pay(context)
        await self._capacity.acquire(_NO_BYTES)
        self.items += 1
        try:
            yield
        finally:
            self.release()


# Responses to ListGroups share the bytes of their entries, so their parts are not joined.
_LIST_GROUPS = ApiKey.ListGroups.value


class Responses:
    """The gateway's own responses on one connection, which it encodes and puts into their slots."""

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
        self._parked: tuple[ResponseSlot, RequestHeader, Deferred, int, type[Response]] | None = None
        """The parked request, and its number in `_parked_memory`. Later requests wait for it."""
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
        answer.response.add_done_callback(partial(self._complete, api, slot, header, answer.fields))
        if api.parks is not None:
            # The client sends the request again after finding the coordinator.
            give_up = partial(self._unpark, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            number = self._parked_memory.add(slot.sent_bytes, give_up)
            self._parked = slot, header, answer, number, api.parks
            if self._is_draining:
                self._unpark(GatewayError.NOT_COORDINATOR)
            self._parked_memory.shrink()

    def drain(self) -> None:
        """Answer a parked request with NOT_COORDINATOR, as a broker whose groups move to another broker.

        The client then finds another coordinator and sends the request again, with its member id.
        """
        self._is_draining = True
        self._unpark(GatewayError.NOT_COORDINATOR)

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
            self._client.pause(paused=True)
            await self._capacity.acquire(slot.sent_bytes)
            self._client.pause(paused=False)
            slot.has_capacity = True

    def release(self, slot: ResponseSlot) -> None:
        """Release the capacity of a request, if it has any."""
        if slot.has_capacity:
            slot.has_capacity = False
            self._capacity.release(slot.sent_bytes)

    def _complete(
        self,
        api: Api,
        slot: ResponseSlot,
        header: RequestHeader,
        fields: Callable[[Any], codec.Fields],
        response: asyncio.Future[Any],
    ) -> None:
        """Answer a request with the coordinator's response."""
        self.release(slot)
        if self._parked is not None and self._parked[0] is slot:
            self._parked_memory.remove(self._parked[3])
            self._parked = None
        if response.cancelled() or slot.frame is not None:  # given up, perhaps just after the response came
            return
        try:
            result = response.result()
            self._respond(slot, header, fields(result), api.error_code(result))
        except Exception as error:  # noqa: BLE001 - it ends this connection: see `Connection.run`
            self._client.end(error)

    def _respond(
        self, slot: ResponseSlot, header: RequestHeader, fields: codec.Fields, error_code: int
    ) -> None:
        if error_code:
            self._counts.errors[header.api_key, error_code] += 1
        if slot.quota is not None:
            throttle_s, fields = self._meter.throttled(slot.quota, fields)
            self._client.unmute_after(throttle_s)
        if offload.is_long(fields):
            encoding = offload.encode_response(header, fields)
            encoding.add_done_callback(partial(self._encoded, slot))
            slot.waits_for = encoding
        elif header.api_key == _LIST_GROUPS:
            parts = codec.encode_parts(header, fields)
            self._client.answer(slot, size_prefix(sum(map(len, parts))), *parts)
        else:
            self._client.answer(slot, framed(codec.encode_response(header, fields)))

    def _encoded(self, slot: ResponseSlot, encoded: asyncio.Future[bytes]) -> None:
        if encoded.cancelled():
            return
        if (error := encoded.exception()) is not None:
            self._client.end(cast(Exception, error))
        else:
            self._client.answer(slot, framed(encoded.result()))

    def _unpark(self, error: GatewayError | ErrorCode) -> None:
        """Answer the parked request, if any, with this error. The coordinator's later response is dropped."""
        if self._parked is None:
            return
        (slot, header, answer, number, kind), self._parked = self._parked, None
        self._parked_memory.remove(number)
        answer.response.cancel()
        nothing = kind(
            group_id="", correlation_id="", request="", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        self._respond(slot, header, {**answer.fields(nothing), "error_code": error}, error)


# The requests of one client's connection at its broker, in the order of the responses: the client's, and
# those that the gateway sends there as the client.


CLOSED = "the broker closed the connection on which it had authenticated the client"

ClientsRequest = tuple[RequestHeader, ResponseSlot, Screened | None]


class AtBroker:
    """The requests at the broker that have no response yet, and the client's authentication there.

    A request of the gateway delays an authentication by at most `timeout_s`. `end` ends the client's
    connection.
    """

    def __init__(self, end: Callable[[Exception], None], timeout_s: float) -> None:
        self._end = end
        self._timeout_s = timeout_s
        self._requests: asyncio.Queue[ClientsRequest | asyncio.Future[bytes]] = asyncio.Queue()
        self._upstream: Upstream | None = None
        self._sasl = PassedSasl()
        self._own: asyncio.Future[bytes] | None = None

    def put(self, header: RequestHeader, slot: ResponseSlot, screened: Screened | None) -> None:
        """Add a request of the client, which is sent at once."""
        self._requests.put_nowait((header, slot, screened))

    async def next(self, upstream: Upstream) -> ClientsRequest:
        """Return the client's request whose response comes next on this connection. Raises UpstreamLost."""
        self._upstream = upstream
        while isinstance(request := await self._requests.get(), asyncio.Future):
            request.set_result(await upstream.receive())
            self._own = None
        return request

    def close(self) -> None:
        """End the gateway's request, if any, because the connection has ended."""
        self._upstream = None
        if self._own is not None and not self._own.done():
            self._own.set_exception(UpstreamLost("the client's connection has ended"))
            self._own.exception()  # perhaps nobody waits for it any more

    async def relay_sasl(self, header: RequestHeader, message: bytes, upstream: Upstream) -> SaslReply:
        """Relay a SASL request of the client when no other request is pending. Raises ProtocolError,
        UpstreamLost.
        """
        if self._own is not None:
            await asyncio.wait([self._own], timeout=self._timeout_s)
            if self._own is not None:
                raise UpstreamLost("the broker does not answer a request of the gateway")
        return await self._sasl.relay(header, message, upstream)

    async def ask(self, api_key: int, version: int, body: codec.Fields) -> Any:
        """Send a request of the gateway as the client, one at a time, and return the response.

        Raises UpstreamLost, also while the client authenticates.
        """
        request = await offload.encode_request(api_key, version, 0, CLIENT_ID, body)
        upstream = self._upstream
        if upstream is not None and upstream.ended:
            lost = UpstreamLost(CLOSED)
            # The client then authenticates again.
            self._end(lost)
            raise lost
        if upstream is None or self._sasl.is_running or self._own is not None:
            raise UpstreamLost("the client's connection to the broker cannot be used now")
        self._own = own = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(own)
        await upstream.send(request)
        return await offload.decode_response(api_key, version, await asyncio.shield(own))
