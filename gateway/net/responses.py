"""The responses that the gateway itself gives on one connection, at once or when the coordinator answers."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Answer, Api
from gateway.apis.context import Deferred
from gateway.net.limits.quota import Items, Meter
from gateway.net.listener import Listener
from gateway.net.stream import ClientStream
from gateway.net.writing import Place
from gateway.wire import beside, codec
from gateway.wire.errors import GatewayError
from gateway.wire.framing import RequestHeader, framed, size_prefix
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.messages import Response

_LIST_GROUPS = ApiKey.ListGroups.value
"""Its responses share their entries."""


class Responses:
    """Encodes responses and puts them into their places."""

    __slots__ = (
        "_all_parked", "_client", "_counts", "_flow", "_is_draining", "_meter", "_parked", "_room", "fan_out",
    )  # fmt: skip

    def __init__(self, listener: Listener, client: ClientStream) -> None:
        self._client = client
        self._room, self._flow = listener.room, listener.flow
        self._counts = listener.counts
        self._meter = Meter(listener.quotas, listener.counts)
        self.fan_out = Items(listener.room, self._meter, listener.counts)
        self._parked: tuple[Place, RequestHeader, Deferred, int, type[Response]] | None = None
        """The request that the coordinator may park, and its number in `_all_parked`. The requests behind it
        wait.
        """
        self._all_parked = listener.parked
        self._is_draining = False

    def count(self, api: Api, place: Place, header: RequestHeader, principal: str) -> None:
        """Count a request for its client's quota, where there are quotas. If it is over the quota, none is
        taken up behind it.
        """
        if api.is_metered:
            place.quota = self._meter.over(principal, header.client_id, header.api_key)
            if place.quota is not None:
                self._client.mute()

    def answer(self, api: Api, place: Place, header: RequestHeader, answer: Answer) -> None:
        """Answer a request, at once or later."""
        if not isinstance(answer, Deferred):
            self.leave(place)
            self._respond(place, header, answer, answer.get("error_code", 0))
            return
        place.waits_for = answer.response
        answer.response.add_done_callback(partial(self._complete, api, place, header, answer.fields))
        if api.parks is not None:
            number = self._all_parked.enter(place.sent_bytes, self._give_up)
            self._parked = place, header, answer, number, api.parks
            if self._is_draining:
                self._unpark(GatewayError.NOT_COORDINATOR)
            self._all_parked.shrink()

    def drain(self) -> None:
        """Answer a request that may be parked with NOT_COORDINATOR, as a broker whose groups move to another
        broker. The client sends it again, with its member id, to the coordinator that it finds then.
        """
        self._is_draining = True
        self._unpark(GatewayError.NOT_COORDINATOR)

    def enter_at_once(self, place: Place) -> bool:
        """Take room at the coordinator. Returns whether there is some."""
        place.has_room = self._room.enter_at_once(place.sent_bytes)
        return place.has_room

    async def enter(self, api: Api, place: Place) -> None:
        """Wait for the turn of a large request, and then for room at the coordinator, which a request that
        may be parked does not take. While it waits for room, nothing is read of the client.
        """
        await self._flow.enter(place.sent_bytes)
        if api.parks is None and not self.enter_at_once(place):
            self._client.pause(paused=True)
            await self._room.enter(place.sent_bytes)
            self._client.pause(paused=False)
            place.has_room = True

    def leave(self, place: Place) -> None:
        """Give the room of a request back, if it has some."""
        if place.has_room:
            place.has_room = False
            self._room.leave(place.sent_bytes)

    def _complete(
        self,
        api: Api,
        place: Place,
        header: RequestHeader,
        fields: Callable[[Any], codec.Fields],
        response: asyncio.Future[Any],
    ) -> None:
        """Answer a request with the coordinator's response."""
        self.leave(place)
        if self._parked is not None and self._parked[0] is place:
            self._all_parked.leave(self._parked[3])
            self._parked = None
        if response.cancelled() or place.frame is not None:  # perhaps given up when it had just been answered
            return
        try:
            result = response.result()
            self._respond(place, header, fields(result), api.error_code(result))
        except Exception as error:  # noqa: BLE001 - it ends this connection: see `Connection.run`
            self._client.end(error)

    def _respond(self, place: Place, header: RequestHeader, fields: codec.Fields, error_code: int) -> None:
        if error_code:
            self._counts.errors[header.api_key, error_code] += 1
        if place.quota is not None:
            throttle_s, fields = self._meter.throttled(place.quota, fields)
            self._client.unmute_after(throttle_s)
        if beside.is_long(fields):
            encoding = beside.encode_response(header, fields)
            encoding.add_done_callback(partial(self._encoded, place))
            place.waits_for = encoding
        elif header.api_key == _LIST_GROUPS:
            parts = codec.encode_parts(header, fields)
            self._client.answer(place, size_prefix(sum(map(len, parts))), *parts)
        else:
            self._client.answer(place, framed(codec.encode_response(header, fields)))

    def _encoded(self, place: Place, encoded: asyncio.Future[bytes]) -> None:
        if encoded.cancelled():
            return
        if (error := encoded.exception()) is not None:
            self._client.end(cast(Exception, error))
        else:
            self._client.answer(place, framed(encoded.result()))

    def _give_up(self) -> None:
        """The client sends the request again, when it has looked for the coordinator."""
        self._unpark(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _unpark(self, error: GatewayError | ErrorCode) -> None:
        """The coordinator's own response is dropped when it comes."""
        if self._parked is None:
            return
        (place, header, answer, number, kind), self._parked = self._parked, None
        self._all_parked.leave(number)
        answer.response.cancel()
        nothing = kind(
            group_id="", correlation_id="", request="", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        self._respond(place, header, {**answer.fields(nothing), "error_code": error}, error)
