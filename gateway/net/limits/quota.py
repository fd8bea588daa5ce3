"""The request quota of the client of one connection (KIP-13, KIP-219).

A request over the quota is handled like any other. Its response has `throttle_time_ms`, and the gateway
dispatches no other request of the connection until that time has passed, as a broker mutes the channel.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from gateway.apis.context import RequestContext
from gateway.fairness import CapacityLimiter
from gateway.metrics.counts import GatewayCounts
from gateway.quotas import Quotas, TokenBucket

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

    def over(self, principal: str, client_id: str | None, api_key: int) -> TokenBucket | None:
        """Count a request. Return the bucket of the client's quota if the request exceeds it, else None."""
        bucket = self._of(principal, client_id)
        if bucket is None or not bucket.charge_exceeds(self._quotas.now_s()):
            return None
        self._counts.throttled[api_key] += 1
        return bucket

    async def pay(self, principal: str, client_id: str | None, api_key: int) -> None:
        """Charge an item of a request to the client's quota, and wait for each charge, because a quota's
        limited debt would cover only a few items.
        """
        while self._quotas.has_request_rates and (bucket := self._of(principal, client_id)) is not None:
            now_s = self._quotas.now_s()
            if bucket.try_charge(now_s):
                return
            wait_s = bucket.wait_s(now_s)
            self._counts.throttled[api_key] += 1
            self._counts.throttled_s += wait_s
            await asyncio.sleep(wait_s)

    def throttled(self, bucket: TokenBucket, fields: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
        """Return the seconds for which to mute the connection, and the response with `throttle_time_ms`."""
        throttle_s = bucket.throttle_s(self._quotas.now_s())
        self._counts.throttled_s += throttle_s
        return throttle_s, {**fields, "throttle_time_ms": math.ceil(throttle_s * 1000)}

    def _of(self, principal: str, client_id: str | None) -> TokenBucket | None:
        """Return the bucket of the client's quota, or None if it has none."""
        quotas = self._quotas
        wanted = quotas.version, principal, client_id
        if wanted != self._bucket_key:
            self._bucket = quotas.requests_of(principal.removeprefix(_USER), client_id or "")
            self._bucket_key = quotas.version, principal, client_id  # a lookup may change the version
        return self._bucket


# The bytes of an item are 0, because those of its request are counted once.
_NO_BYTES = 0


class FanOutSlots:
    """The capacity and quota of the items of one connection's requests (`gateway.apis.context.FanOut`).
    `items` is the number with capacity.
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
